// RUN: %disc_opt %s --passes=fuse-elementwise --stage=named | %filecheck %s

// What is reversed before a product is written, to be read in runs of memory; the sum beside it reads backward as it is.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.reverse %arg0, dims = [0] {{.*}}disc.store
// CHECK: stablehlo.dot_general
// CHECK: stablehlo.reverse %arg1, dims = [0]
// CHECK-NOT: disc.store
// CHECK: stablehlo.add
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x8xf32, [@S0, 8]>, %y: tensor<?x4xf32, [@S0, 4]>) -> (tensor<8x4xf32, [8, 4]>, tensor<?x4xf32, [@S0, 4]>) {
  %0 = stablehlo.reverse %x, dims = [0] : tensor<?x8xf32, [@S0, 8]>
  %1 = stablehlo.dot_general %0, %y, contracting_dims = [0] x [0] : (tensor<?x8xf32, [@S0, 8]>, tensor<?x4xf32, [@S0, 4]>) -> tensor<8x4xf32, [8, 4]>
  %2 = stablehlo.reverse %y, dims = [0] : tensor<?x4xf32, [@S0, 4]>
  %3 = stablehlo.add %2, %y : tensor<?x4xf32, [@S0, 4]>
  return %1, %3 : tensor<8x4xf32, [8, 4]>, tensor<?x4xf32, [@S0, 4]>
}
