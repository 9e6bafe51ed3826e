// Only one value per row is stored, so the plan took a row to have one element: the scratch for the kept row was too small.
func.func @main(%arg2: tensor<2x24xf32, [2, 24]>) -> tensor<2xf32, [2]> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.exponential %arg2 : tensor<2x24xf32, [2, 24]>
    %1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.add across dimensions = [1] : (tensor<2x24xf32, [2, 24]>, tensor<f32>) -> tensor<2xf32, [2]>
    %2 = "disc.broadcast_in_dim"(%1) {dims = array<i64: 0>, maybe = array<i64>} : (tensor<2xf32, [2]>) -> tensor<2x24xf32, [2, 24]>
    %3 = stablehlo.divide %0, %2 : tensor<2x24xf32, [2, 24]>
    %4 = stablehlo.reduce(%3 init: %cst) applies stablehlo.add across dimensions = [1] : (tensor<2x24xf32, [2, 24]>, tensor<f32>) -> tensor<2xf32, [2]>
    return %4 : tensor<2xf32, [2]>
}
