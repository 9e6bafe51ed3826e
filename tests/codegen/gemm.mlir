// RUN: %disc_opt %s --passes=fuse-elementwise,fuse-compute,form-fusions,speculate-versions,choose-kernels --target=x86-64-v4 --stage=fused | %filecheck %s

// A weight is packed when compiling; which schedule a call takes depends on its rows and on the threads.
// CHECK-LABEL: func.func @main
// CHECK: "gemm{product = product{form = f32, left = in-place, right = packed-ahead, panel = 64, vectors = 4}, turned = false, few = no, tree = tree{schedules = [
// CHECK-SAME: ], nodes = [
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x256xf32, [@S0, 256]>) -> tensor<?x512xf32, [@S0, 512]> {
  %w = "disc.weight"() {name = "w"} : () -> tensor<256x512xf32, [256, 512]>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<?x256xf32, [@S0, 256]>, tensor<256x512xf32, [256, 512]>) -> tensor<?x512xf32, [@S0, 512]>
  %1 = stablehlo.negate %0 : tensor<?x512xf32, [@S0, 512]>
  return %1 : tensor<?x512xf32, [@S0, 512]>
}

// -----
// B comes with the call: up to six rows read it where it lies, more rows too, but for the columns that are no whole vector.
// CHECK-LABEL: func.func @main
// CHECK: right = in-place, panel = 64, vectors = 4}, turned = false, few = across,
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg1.1"} : () -> ()
func.func @main(%x: tensor<?x256xf32, [@S0, 256]>, %y: tensor<256x?xf32, [256, @S1]>) -> tensor<?x?xf32, [@S0, @S1]> {
  %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : (tensor<?x256xf32, [@S0, 256]>, tensor<256x?xf32, [256, @S1]>) -> tensor<?x?xf32, [@S0, @S1]>
  return %0 : tensor<?x?xf32, [@S0, @S1]>
}

// -----
// Columns of B lie one behind the other: they are packed panel by panel, or become dot products of few rows.
// CHECK-LABEL: func.func @main
// CHECK: right = per-panel, panel = 64, vectors = 4}, turned = false, few = along,
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg1.0"} : () -> ()
func.func @main(%x: tensor<?x256xf32, [@S0, 256]>, %y: tensor<?x256xf32, [@S1, 256]>) -> tensor<?x?xf32, [@S0, @S1]> {
  %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [1] : (tensor<?x256xf32, [@S0, 256]>, tensor<?x256xf32, [@S1, 256]>) -> tensor<?x?xf32, [@S0, @S1]>
  return %0 : tensor<?x?xf32, [@S0, @S1]>
}
