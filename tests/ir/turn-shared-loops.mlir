// RUN: %disc_opt %s --passes=turn-shared --stage=named | %filecheck %s

// What a loop reads along its rows, and does not change, is transposed before it, out of both loops where the inner one reads it. What it
// carries is not, and neither is a constant.
// CHECK-LABEL: func.func @main
// CHECK: %[[T:.*]] = stablehlo.transpose %arg1, dims = [1, 0] {disc.store} : (tensor<2x4xf32, [2, 4]>) -> tensor<4x2xf32, [4, 2]>
// CHECK: "control.while"(%arg0, %arg2, %arg1, %[[T]])
// CHECK-LABEL: func.func private @inner_body
// CHECK-NOT: stablehlo.transpose
// CHECK: stablehlo.dot_general %arg0, %arg2, contracting_dims = [1] x [0] : (tensor<?x4xf32, [@S0, 4]>, tensor<4x2xf32, [4, 2]>)
// CHECK-LABEL: func.func private @body
// CHECK-NOT: stablehlo.transpose
// CHECK: "control.while"(%arg0, %arg2, %arg3)
// CHECK: %[[C:.*]] = stablehlo.constant
// CHECK: stablehlo.dot_general %{{.*}}, %[[C]], contracting_dims = [1] x [1]
// CHECK: stablehlo.dot_general %{{.*}}, %arg1, contracting_dims = [1] x [1]
// CHECK-NOT: stablehlo.transpose
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x4xf32, [@S0, 4]>, %w: tensor<2x4xf32, [2, 4]>, %m: tensor<4x4xf32, [4, 4]>) -> tensor<?x4xf32, [@S0, 4]> {
  %0:2 = "control.while"(%x, %m, %w) {carried = 2 : i64, trips = "S0", body = @body} : (tensor<?x4xf32, [@S0, 4]>, tensor<4x4xf32, [4, 4]>, tensor<2x4xf32, [2, 4]>) -> (tensor<?x4xf32, [@S0, 4]>, tensor<4x4xf32, [4, 4]>)
  return %0#0 : tensor<?x4xf32, [@S0, 4]>
}
func.func private @inner_body(%a: tensor<?x4xf32, [@S0, 4]>, %w: tensor<2x4xf32, [2, 4]>) -> tensor<?x4xf32, [@S0, 4]> {
  %0 = stablehlo.dot_general %a, %w, contracting_dims = [1] x [1] : (tensor<?x4xf32, [@S0, 4]>, tensor<2x4xf32, [2, 4]>) -> tensor<?x2xf32, [@S0, 2]>
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] : (tensor<?x2xf32, [@S0, 2]>, tensor<2x4xf32, [2, 4]>) -> tensor<?x4xf32, [@S0, 4]>
  return %1 : tensor<?x4xf32, [@S0, 4]>
}
func.func private @body(%a: tensor<?x4xf32, [@S0, 4]>, %m: tensor<4x4xf32, [4, 4]>, %w: tensor<2x4xf32, [2, 4]>) -> (tensor<?x4xf32, [@S0, 4]>, tensor<4x4xf32, [4, 4]>) {
  %0 = "control.while"(%a, %w) {carried = 1 : i64, trips = "3", body = @inner_body} : (tensor<?x4xf32, [@S0, 4]>, tensor<2x4xf32, [2, 4]>) -> tensor<?x4xf32, [@S0, 4]>
  %c = stablehlo.constant dense<0.5> : tensor<4x4xf32, [4, 4]>
  %1 = stablehlo.dot_general %0, %c, contracting_dims = [1] x [1] : (tensor<?x4xf32, [@S0, 4]>, tensor<4x4xf32, [4, 4]>) -> tensor<?x4xf32, [@S0, 4]>
  %2 = stablehlo.dot_general %1, %m, contracting_dims = [1] x [1] : (tensor<?x4xf32, [@S0, 4]>, tensor<4x4xf32, [4, 4]>) -> tensor<?x4xf32, [@S0, 4]>
  %3 = stablehlo.tanh %m : tensor<4x4xf32, [4, 4]>
  return %2, %3 : tensor<?x4xf32, [@S0, 4]>, tensor<4x4xf32, [4, 4]>
}
