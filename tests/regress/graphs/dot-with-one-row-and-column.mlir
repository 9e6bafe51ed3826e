// The same with one row as well: nothing of the index was left.
func.func @main(%arg1: tensor<4x1x4xf32, [4, 1, 4]>) -> tensor<4x1x1xf32, [4, 1, 1]> {
    %0 = stablehlo.dot_general %arg1, %arg1, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<4x1x4xf32, [4, 1, 4]>, tensor<4x1x4xf32, [4, 1, 4]>) -> tensor<4x1x1xf32, [4, 1, 1]>
    return %0 : tensor<4x1x1xf32, [4, 1, 1]>
}
