// RUN: %disc_opt %s --passes=fuse-elementwise,fuse-compute,stitch,form-fusions,speculate-versions --stage=fused | %filecheck %s

// Whether rows are few and long, whether they are whole vectors and whether the result outgrows the caches is left to the call.
// CHECK-LABEL: func.func @main
// CHECK: versions = ["at_most(4, S0) and at_least(131072, S1)", "divides(16, S1) and beyond_cache(S0 * S1 * 4)", "at_least(64, S1) and beyond_cache(S0 * S1 * 4)", "divides(16, S1)", ""]
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg0.1"} : () -> ()
func.func @main(%x: tensor<?x?xf32, [@S0, @S1]>) -> (tensor<?x?xf32, [@S0, @S1]>) {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %m = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [1] : (tensor<?x?xf32, [@S0, @S1]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  %mb = "disc.broadcast_in_dim"(%m) {dims = array<i64: 0>, maybe = array<i64>} : (tensor<?xf32, [@S0]>) -> tensor<?x?xf32, [@S0, @S1]>
  %d = stablehlo.subtract %x, %mb : tensor<?x?xf32, [@S0, @S1]>
  return %d : tensor<?x?xf32, [@S0, @S1]>
}

// -----
// Rows of 64 are whole; a result of at most 512 KiB fits any last-level cache.
// CHECK-LABEL: func.func @main
// CHECK: versions = [""]
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, max = 2048 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x64xf32, [@S0, 64]>) -> (tensor<?x64xf32, [@S0, 64]>) {
  %0 = stablehlo.negate %x : tensor<?x64xf32, [@S0, 64]>
  return %0 : tensor<?x64xf32, [@S0, 64]>
}

// -----
// Memory does not wait for a result that takes many instructions, nor for one that is smaller than what is reduced.
// CHECK-LABEL: func.func @main
// CHECK-DAG: {kind = "loop", name = "loop_power", versions = [""]}
// CHECK-DAG: {kind = "stitch", name = "stitch_reduce", versions = [""]}
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x64xf32, [@S0, 64]>, %y: tensor<?x64xf32, [@S0, 64]>) -> (tensor<?x64xf32, [@S0, 64]>, tensor<?xf32, [@S0]>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.power %x, %x : tensor<?x64xf32, [@S0, 64]>
  %1 = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<?x64xf32, [@S0, 64]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  return %0, %1 : tensor<?x64xf32, [@S0, 64]>, tensor<?xf32, [@S0]>
}

// -----
// Rows of 100 end within a line; all but their ends can go past the caches.
// CHECK-LABEL: func.func @main
// CHECK: versions = ["beyond_cache(S0 * 400)", ""]
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x100xf32, [@S0, 100]>, %y: tensor<100xf32, [100]>) -> (tensor<?x100xf32, [@S0, 100]>) {
  %b = "disc.broadcast_in_dim"(%y) {dims = array<i64: 1>, maybe = array<i64>} : (tensor<100xf32, [100]>) -> tensor<?x100xf32, [@S0, 100]>
  %0 = stablehlo.add %x, %b : tensor<?x100xf32, [@S0, 100]>
  return %0 : tensor<?x100xf32, [@S0, 100]>
}

// -----
// Of rows of 33 too many lines would be written by halves.
// CHECK-LABEL: func.func @main
// CHECK: versions = [""]
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x33xf32, [@S0, 33]>, %y: tensor<33xf32, [33]>) -> (tensor<?x33xf32, [@S0, 33]>) {
  %b = "disc.broadcast_in_dim"(%y) {dims = array<i64: 1>, maybe = array<i64>} : (tensor<33xf32, [33]>) -> tensor<?x33xf32, [@S0, 33]>
  %0 = stablehlo.add %x, %b : tensor<?x33xf32, [@S0, 33]>
  return %0 : tensor<?x33xf32, [@S0, 33]>
}
