// RUN: %disc_opt %s --passes=fuse-elementwise,fuse-compute,stitch,fuse-attention,form-fusions,choose-kernels --target=sm_90 --stage=fused | %filecheck %s

// A loop is flat blocks of elements.
// CHECK-LABEL: func.func @main
// CHECK: {disc.plan = {"cuda:x86-64-v3+sm_90" = "loop{block = 1024, warps = 4}"}, kind = "loop"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x64xf32, [@S0, 64]>) -> tensor<?x64xf32, [@S0, 64]> {
  %0 = stablehlo.negate %x : tensor<?x64xf32, [@S0, 64]>
  return %0 : tensor<?x64xf32, [@S0, 64]>
}

// -----
// A product with its epilogue is one kernel, of which a tree chooses the schedule in every call.
// CHECK-LABEL: func.func @main
// CHECK: "cuda:x86-64-v3+sm_90" = "product{schedules = [16x64x64+w4+s3+g8{{.*}}], nodes = [m>{{.*}}], precision = tf32x3}"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x256xf32, [@S0, 256]>) -> tensor<?x512xf32, [@S0, 512]> {
  %w = "disc.weight"() {name = "w"} : () -> tensor<256x512xf32, [256, 512]>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<?x256xf32, [@S0, 256]>, tensor<256x512xf32, [256, 512]>) -> tensor<?x512xf32, [@S0, 512]>
  %1 = stablehlo.negate %0 : tensor<?x512xf32, [@S0, 512]>
  return %1 : tensor<?x512xf32, [@S0, 512]>
}

// -----
// Rows of up to 16,384 elements lie whole in registers, in blocks by their length; longer ones are gone through.
// CHECK-LABEL: func.func @main
// CHECK: "cuda:x86-64-v3+sm_90" = "rows{blocks = [row_block{columns = 32, rows = 16, warps = 4}, row_block{columns = 128, rows = 8, warps = 4}, row_block{columns = 1024, rows = 2, warps = 4}, row_block{columns = 4096, rows = 1, warps = 8}, row_block{columns = 16384, rows = 1, warps = 16}], looped = row_block{columns = 2048, rows = 1, warps = 8}}"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg0.1"} : () -> ()

func.func @main(%x: tensor<?x?xf32, [@S0, @S1]>) -> tensor<?x?xf32, [@S0, @S1]> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %m = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [1] : (tensor<?x?xf32, [@S0, @S1]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  %mb = "disc.broadcast_in_dim"(%m) {dims = array<i64: 0>, maybe = array<i64>} : (tensor<?xf32, [@S0]>) -> tensor<?x?xf32, [@S0, @S1]>
  %d = stablehlo.subtract %x, %mb : tensor<?x?xf32, [@S0, @S1]>
  %e = stablehlo.exponential %d : tensor<?x?xf32, [@S0, @S1]>
  %s = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<?x?xf32, [@S0, @S1]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  %sb = "disc.broadcast_in_dim"(%s) {dims = array<i64: 0>, maybe = array<i64>} : (tensor<?xf32, [@S0]>) -> tensor<?x?xf32, [@S0, @S1]>
  %p = stablehlo.divide %e, %sb : tensor<?x?xf32, [@S0, @S1]>
  return %p : tensor<?x?xf32, [@S0, @S1]>
}

// -----
// A softmax between two products is an online softmax over blocks of keys, of which a tree chooses the schedule in every call.
// CHECK-LABEL: func.func @main
// CHECK: "cuda:x86-64-v3+sm_90" = "attention{schedules = [16x64+w4+s2, 64x32+w8+s2], nodes = [batch>64?4:1, batch>22?3:2, @0, @1, @1], precision = tf32x3}"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()

func.func @main(%q: tensor<?x50x32xf32, [@S0, 50, 32]>, %k: tensor<?x70x32xf32, [@S0, 70, 32]>, %v: tensor<?x70x32xf32, [@S0, 70, 32]>) -> tensor<?x50x32xf32, [@S0, 50, 32]> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %x = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<?x50x32xf32, [@S0, 50, 32]>, tensor<?x70x32xf32, [@S0, 70, 32]>) -> tensor<?x50x70xf32, [@S0, 50, 70]>
  %m = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [2] : (tensor<?x50x70xf32, [@S0, 50, 70]>, tensor<f32>) -> tensor<?x50xf32, [@S0, 50]>
  %mb = "disc.broadcast_in_dim"(%m) {dims = array<i64: 0, 1>, maybe = array<i64>} : (tensor<?x50xf32, [@S0, 50]>) -> tensor<?x50x70xf32, [@S0, 50, 70]>
  %d = stablehlo.subtract %x, %mb : tensor<?x50x70xf32, [@S0, 50, 70]>
  %e = stablehlo.exponential %d : tensor<?x50x70xf32, [@S0, 50, 70]>
  %s = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [2] : (tensor<?x50x70xf32, [@S0, 50, 70]>, tensor<f32>) -> tensor<?x50xf32, [@S0, 50]>
  %sb = "disc.broadcast_in_dim"(%s) {dims = array<i64: 0, 1>, maybe = array<i64>} : (tensor<?x50xf32, [@S0, 50]>) -> tensor<?x50x70xf32, [@S0, 50, 70]>
  %p = stablehlo.divide %e, %sb : tensor<?x50x70xf32, [@S0, 50, 70]>
  %r = stablehlo.dot_general %p, %v, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<?x50x70xf32, [@S0, 50, 70]>, tensor<?x70x32xf32, [@S0, 70, 32]>) -> tensor<?x50x32xf32, [@S0, 50, 32]>
  return %r : tensor<?x50x32xf32, [@S0, 50, 32]>
}

// -----
// An op of the library that has a kernel.
// CHECK-LABEL: func.func @main
// CHECK: "cuda:x86-64-v3+sm_90" = "library{op = disc.cumulative, precision = tf32x3}"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()

func.func @main(%x: tensor<?x24xf32, [@S0, 24]>) -> tensor<?x24xf32, [@S0, 24]> {
  %0 = "disc.cumulative"(%x) {dim = 0 : i64, kind = "max"} : (tensor<?x24xf32, [@S0, 24]>) -> tensor<?x24xf32, [@S0, 24]>
  return %0 : tensor<?x24xf32, [@S0, 24]>
}
