// RUN: %disc_opt %s --passes=turn-shared --stage=named | %filecheck %s

// Three products read it along its rows; the other two read theirs as they lie.
// CHECK-LABEL: func.func @main
// CHECK: %[[T:.*]] = stablehlo.transpose %arg1, dims = [1, 0] {disc.store} : (tensor<4x8xf32, [4, 8]>) -> tensor<8x4xf32, [8, 4]>
// CHECK-COUNT-3: stablehlo.dot_general %{{.*}}, %[[T]], contracting_dims = [1] x [0]
// CHECK-NOT: stablehlo.transpose
// CHECK: stablehlo.dot_general %{{.*}}, %arg2, contracting_dims = [1] x [1]
// CHECK: stablehlo.dot_general %{{.*}}, %arg2, contracting_dims = [1] x [1]
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x8xf32, [@S0, 8]>, %w: tensor<4x8xf32, [4, 8]>, %v: tensor<8x4xf32, [8, 4]>) -> (tensor<?x4xf32, [@S0, 4]>, tensor<?x8xf32, [@S0, 8]>, tensor<?x8xf32, [@S0, 8]>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : (tensor<?x8xf32, [@S0, 8]>, tensor<4x8xf32, [4, 8]>) -> tensor<?x4xf32, [@S0, 4]>
  %1 = stablehlo.tanh %x : tensor<?x8xf32, [@S0, 8]>
  %2 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [1] : (tensor<?x8xf32, [@S0, 8]>, tensor<4x8xf32, [4, 8]>) -> tensor<?x4xf32, [@S0, 4]>
  %3 = stablehlo.negate %x : tensor<?x8xf32, [@S0, 8]>
  %4 = stablehlo.dot_general %3, %w, contracting_dims = [1] x [1] : (tensor<?x8xf32, [@S0, 8]>, tensor<4x8xf32, [4, 8]>) -> tensor<?x4xf32, [@S0, 4]>
  %5 = stablehlo.add %0, %2 : tensor<?x4xf32, [@S0, 4]>
  %6 = stablehlo.add %5, %4 : tensor<?x4xf32, [@S0, 4]>
  %7 = stablehlo.dot_general %6, %v, contracting_dims = [1] x [1] : (tensor<?x4xf32, [@S0, 4]>, tensor<8x4xf32, [8, 4]>) -> tensor<?x8xf32, [@S0, 8]>
  %8 = stablehlo.tanh %6 : tensor<?x4xf32, [@S0, 4]>
  %9 = stablehlo.dot_general %8, %v, contracting_dims = [1] x [1] : (tensor<?x4xf32, [@S0, 4]>, tensor<8x4xf32, [8, 4]>) -> tensor<?x8xf32, [@S0, 8]>
  return %6, %7, %9 : tensor<?x4xf32, [@S0, 4]>, tensor<?x8xf32, [@S0, 8]>, tensor<?x8xf32, [@S0, 8]>
}
