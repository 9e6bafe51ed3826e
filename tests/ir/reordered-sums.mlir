// RUN: %disc_opt %s --passes=fuse-elementwise --stage=named | %filecheck %s

// Where a product sums over rows in another order than they lie in, they are written in that order first; where rows stay, it reads them
// as they lie.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.transpose %arg0, dims = [1, 0, 2] {{.*}}disc.store
// CHECK: stablehlo.dot_general
// CHECK: stablehlo.transpose %arg2, dims = [1, 0, 2]
// CHECK-NOT: disc.store
// CHECK: stablehlo.dot_general
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg0.1"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S2", min = 0 : i64, divisor = 1 : i64, expr = "S0 * S1"} : () -> ()
func.func @main(%g: tensor<?x?x8xf32, [@S0, @S1, 8]>, %x: tensor<?x4xf32, [@S2, 4]>, %y: tensor<?x?x8xf32, [@S0, @S1, 8]>, %w: tensor<8x4xf32, [8, 4]>) -> (tensor<8x4xf32, [8, 4]>, tensor<?x4xf32, [@S2, 4]>) {
  %0 = stablehlo.transpose %g, dims = [1, 0, 2] : (tensor<?x?x8xf32, [@S0, @S1, 8]>) -> tensor<?x?x8xf32, [@S1, @S0, 8]>
  %1 = "disc.reshape"(%0) : (tensor<?x?x8xf32, [@S1, @S0, 8]>) -> tensor<?x8xf32, [@S2, 8]>
  %2 = stablehlo.dot_general %1, %x, contracting_dims = [0] x [0] : (tensor<?x8xf32, [@S2, 8]>, tensor<?x4xf32, [@S2, 4]>) -> tensor<8x4xf32, [8, 4]>
  %3 = stablehlo.transpose %y, dims = [1, 0, 2] : (tensor<?x?x8xf32, [@S0, @S1, 8]>) -> tensor<?x?x8xf32, [@S1, @S0, 8]>
  %4 = "disc.reshape"(%3) : (tensor<?x?x8xf32, [@S1, @S0, 8]>) -> tensor<?x8xf32, [@S2, 8]>
  %5 = stablehlo.dot_general %4, %w, contracting_dims = [1] x [0] : (tensor<?x8xf32, [@S2, 8]>, tensor<8x4xf32, [8, 4]>) -> tensor<?x4xf32, [@S2, 4]>
  return %2, %5 : tensor<8x4xf32, [8, 4]>, tensor<?x4xf32, [@S2, 4]>
}
