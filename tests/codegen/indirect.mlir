// RUN: %disc_opt %s --passes=fuse-elementwise,fuse-compute,stitch,fuse-attention,form-fusions,speculate-versions,choose-kernels --target=x86-64-v4 --stage=fused | %filecheck %s

// Strides of 2: every tap reads rows of the source through a table of addresses.
// CHECK-LABEL: func.func @main
// CHECK: disc.plan = {"x86-64-v4" = "indirect{form = f32, panel = 48, lanes = 16, taps = 9, rows = 120, order = panels}"}
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()

func.func @main(%x: tensor<?x11x9x32xf32, [@S0, 11, 9, 32]>) -> tensor<?x6x5x48xf32, [@S0, 6, 5, 48]> {
  %w = "disc.weight"() {name = "w"} : () -> tensor<3x3x32x48xf32, [3, 3, 32, 48]>
  %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [2, 2], pad = [[1, 1], [1, 1]]}
    {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<?x11x9x32xf32, [@S0, 11, 9, 32]>, tensor<3x3x32x48xf32, [3, 3, 32, 48]>) -> tensor<?x6x5x48xf32, [@S0, 6, 5, 48]>
  %1 = stablehlo.negate %0 : tensor<?x6x5x48xf32, [@S0, 6, 5, 48]>
  return %1 : tensor<?x6x5x48xf32, [@S0, 6, 5, 48]>
}
