// RUN: %disc_opt %s --passes=hoist-invariants --stage=named | %filecheck %s

"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()

// The product of what the loop does not change is computed once, with the tanh behind it; of the sum, which is broadcast, the sum alone.
// What is element-wise alone stays, a gather, whose index may be wrong, and the product of what changes. What an inner loop computes alike
// leaves both.
// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[A:.*]]: tensor<?x4xf32, [@S0, 4]>, %[[W:.*]]: tensor<4x4xf32, [4, 4]>, %[[I:.*]]: tensor<2x1xi64, [2, 1]>
// CHECK-DAG: %[[DOT:.*]] = stablehlo.dot_general %[[W]], %[[W]]
// CHECK-DAG: %[[TANH:.*]] = stablehlo.tanh %[[DOT]]
// CHECK-DAG: %[[SUM:.*]] = stablehlo.reduce(%[[W]]
// CHECK-DAG: %[[INNER:.*]] = stablehlo.dot_general %{{.*}}, %[[W]]
// CHECK: "control.while"(%{{.*}}, %[[A]], %[[W]], %[[I]], %{{.*}}, %{{.*}}, %{{.*}})
// CHECK-NOT: stablehlo.dot_general
// CHECK-LABEL: func.func private @inner_body
// CHECK-NOT: stablehlo.dot_general
// CHECK-LABEL: func.func private @body
// CHECK-DAG: "disc.broadcast_in_dim"
// CHECK-DAG: "disc.gather"
// CHECK-DAG: stablehlo.exponential
// CHECK: stablehlo.dot_general
// CHECK-NOT: stablehlo.dot_general
func.func @main(%a: tensor<?x4xf32, [@S0, 4]>, %w: tensor<4x4xf32, [4, 4]>, %i: tensor<2x1xi64, [2, 1]>) -> tensor<?x4xf32, [@S0, 4]> {
  %zero = stablehlo.constant dense<0> : tensor<i64>
  %0:2 = "control.while"(%zero, %a, %w, %i) {carried = 2 : i64, trips = "S0", body = @body} : (tensor<i64>, tensor<?x4xf32, [@S0, 4]>, tensor<4x4xf32, [4, 4]>, tensor<2x1xi64, [2, 1]>) -> (tensor<i64>, tensor<?x4xf32, [@S0, 4]>)
  return %0#1 : tensor<?x4xf32, [@S0, 4]>
}
func.func private @inner_body(%a: tensor<4x4xf32, [4, 4]>, %w: tensor<4x4xf32, [4, 4]>) -> tensor<4x4xf32, [4, 4]> {
  %0 = stablehlo.negate %w : tensor<4x4xf32, [4, 4]>
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32, [4, 4]>, tensor<4x4xf32, [4, 4]>) -> tensor<4x4xf32, [4, 4]>
  %2 = stablehlo.add %a, %1 : tensor<4x4xf32, [4, 4]>
  return %2 : tensor<4x4xf32, [4, 4]>
}
func.func private @body(%n: tensor<i64>, %a: tensor<?x4xf32, [@S0, 4]>, %w: tensor<4x4xf32, [4, 4]>, %i: tensor<2x1xi64, [2, 1]>) -> (tensor<i64>, tensor<?x4xf32, [@S0, 4]>) {
  %init = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.dot_general %w, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32, [4, 4]>, tensor<4x4xf32, [4, 4]>) -> tensor<4x4xf32, [4, 4]>
  %1 = stablehlo.tanh %0 : tensor<4x4xf32, [4, 4]>
  %2 = stablehlo.exponential %w : tensor<4x4xf32, [4, 4]>
  %4 = "disc.gather"(%w, %i) {dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, sizes = ["1", "4"]} : (tensor<4x4xf32, [4, 4]>, tensor<2x1xi64, [2, 1]>) -> tensor<2x4xf32, [2, 4]>
  %5 = stablehlo.reduce(%4 init: %init) applies stablehlo.add across dimensions = [0] : (tensor<2x4xf32, [2, 4]>, tensor<f32>) -> tensor<4xf32, [4]>
  %6 = stablehlo.reduce(%w init: %init) applies stablehlo.add across dimensions = [0] : (tensor<4x4xf32, [4, 4]>, tensor<f32>) -> tensor<4xf32, [4]>
  %7 = "disc.broadcast_in_dim"(%6) {dims = array<i64: 1>, maybe = array<i64>} : (tensor<4xf32, [4]>) -> tensor<?x4xf32, [@S0, 4]>
  %8 = "disc.broadcast_in_dim"(%5) {dims = array<i64: 1>, maybe = array<i64>} : (tensor<4xf32, [4]>) -> tensor<?x4xf32, [@S0, 4]>
  %9 = "control.while"(%1, %w) {carried = 1 : i64, trips = "3", body = @inner_body} : (tensor<4x4xf32, [4, 4]>, tensor<4x4xf32, [4, 4]>) -> tensor<4x4xf32, [4, 4]>
  %3 = stablehlo.multiply %9, %2 : tensor<4x4xf32, [4, 4]>
  %10 = stablehlo.dot_general %a, %3, contracting_dims = [1] x [0] : (tensor<?x4xf32, [@S0, 4]>, tensor<4x4xf32, [4, 4]>) -> tensor<?x4xf32, [@S0, 4]>
  %11 = stablehlo.add %10, %7 : tensor<?x4xf32, [@S0, 4]>
  %12 = stablehlo.add %11, %8 : tensor<?x4xf32, [@S0, 4]>
  %13 = stablehlo.add %n, %n : tensor<i64>
  return %13, %12 : tensor<i64>, tensor<?x4xf32, [@S0, 4]>
}
