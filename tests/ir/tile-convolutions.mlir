// RUN: %disc_opt %s --passes=tile-convolutions --stage=named | %filecheck %s

// A window of 5x5 by strides of 1 over 16 channels, and one of 3x3; not by strides of 2, and not by a constant kernel. bf16
// stays, as the function widens it.
// CHECK-LABEL: func.func @main
// CHECK: "disc.tiled_convolution"(%arg0, %arg1) {{.*}}left = 2 : i64, top = 1 : i64
// CHECK: "disc.tiled_convolution"({{.*}}, %arg2) {{.*}}left = 1 : i64, top = 1 : i64
// CHECK: stablehlo.convolution
// CHECK: stablehlo.convolution
// CHECK-NOT: stablehlo.convert
// CHECK: "disc.tiled_convolution"(%arg3, %arg4) {{.*}} -> tensor<2x16x9x9xbf16
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x16x10x9xf32, [@S0, 16, 10, 9]>, %w: tensor<16x16x5x5xf32, [16, 16, 5, 5]>, %v: tensor<16x16x3x3xf32, [16, 16, 3, 3]>, %n: tensor<2x16x9x9xbf16, [2, 16, 9, 9]>, %u: tensor<16x16x3x3xbf16, [16, 16, 3, 3]>) -> (tensor<?x16x4x5xf32, [@S0, 16, 4, 5]>, tensor<2x16x9x9xbf16, [2, 16, 9, 9]>) {
  %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], window = {stride = [1, 1], pad = [[1, 1], [2, 2]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<?x16x10x9xf32, [@S0, 16, 10, 9]>, tensor<16x16x5x5xf32, [16, 16, 5, 5]>) -> tensor<?x16x8x9xf32, [@S0, 16, 8, 9]>
  %1 = stablehlo.convolution(%0, %v) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], window = {stride = [1, 1], pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<?x16x8x9xf32, [@S0, 16, 8, 9]>, tensor<16x16x3x3xf32, [16, 16, 3, 3]>) -> tensor<?x16x8x9xf32, [@S0, 16, 8, 9]>
  %2 = stablehlo.convolution(%1, %v) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], window = {stride = [2, 2], pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<?x16x8x9xf32, [@S0, 16, 8, 9]>, tensor<16x16x3x3xf32, [16, 16, 3, 3]>) -> tensor<?x16x4x5xf32, [@S0, 16, 4, 5]>
  %c = stablehlo.constant {disc.named} dense<0.5> : tensor<16x16x3x3xf32, [16, 16, 3, 3]>
  %3 = stablehlo.convolution(%2, %c) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], window = {stride = [1, 1], pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<?x16x4x5xf32, [@S0, 16, 4, 5]>, tensor<16x16x3x3xf32, [16, 16, 3, 3]>) -> tensor<?x16x4x5xf32, [@S0, 16, 4, 5]>
  %4 = stablehlo.convolution(%n, %u) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], window = {stride = [1, 1], pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x16x9x9xbf16, [2, 16, 9, 9]>, tensor<16x16x3x3xbf16, [16, 16, 3, 3]>) -> tensor<2x16x9x9xbf16, [2, 16, 9, 9]>
  return %3, %4 : tensor<?x16x4x5xf32, [@S0, 16, 4, 5]>, tensor<2x16x9x9xbf16, [2, 16, 9, 9]>
}
