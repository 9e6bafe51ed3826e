// The row that is kept for all groups was computed before the loop over groups, its scratch address inside.
func.func @main(%arg0: tensor<6xf32, [6]>) -> tensor<6xf32, [6]> {
    %cst = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = stablehlo.exponential %arg0 : tensor<6xf32, [6]>
    %1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.add across dimensions = [0] : (tensor<6xf32, [6]>, tensor<f32>) -> tensor<f32>
    %2 = "disc.broadcast_in_dim"(%1) {dims = array<i64>, maybe = array<i64>} : (tensor<f32>) -> tensor<6xf32, [6]>
    %3 = stablehlo.divide %0, %2 : tensor<6xf32, [6]>
    return %3 : tensor<6xf32, [6]>
}
