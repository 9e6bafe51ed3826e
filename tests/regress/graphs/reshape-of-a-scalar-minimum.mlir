// simplify moved the reshape through an op on scalars and left the scalars as they were.
func.func @main() -> tensor<1xi64, [1]> {
    %c = stablehlo.constant dense<0> : tensor<i64>
    %0 = "disc.reshape"(%c) : (tensor<i64>) -> tensor<1xi64, [1]>
    %most = stablehlo.constant dense<9223372036854775807> : tensor<i64>
    %1 = stablehlo.reduce(%0 init: %most) applies stablehlo.minimum across dimensions = [0] : (tensor<1xi64, [1]>, tensor<i64>) -> tensor<i64>
    %2 = "disc.reshape"(%1) : (tensor<i64>) -> tensor<1xi64, [1]>
    return %2 : tensor<1xi64, [1]>
}
