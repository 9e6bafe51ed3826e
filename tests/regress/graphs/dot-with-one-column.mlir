// The index of the dot's values named no column, so they were emitted before the micro-kernel ran.
func.func @main(%arg0: tensor<4x4xf32, [4, 4]>) -> tensor<4x1xf32, [4, 1]> {
  %0 = "disc.weight"() {name = "w55"} : () -> tensor<1x4xf32, [1, 4]>
  %1 = stablehlo.dot_general %arg0, %0, contracting_dims = [0] x [1] : (tensor<4x4xf32, [4, 4]>, tensor<1x4xf32, [1, 4]>) -> tensor<4x1xf32, [4, 1]>
  return %1 : tensor<4x1xf32, [4, 1]>
}
