// RUN: %disc_opt %s --passes=fuse-elementwise,fuse-compute,stitch,fuse-attention,form-fusions,speculate-versions,choose-kernels --target=x86-64-v4 --stage=fused | %filecheck %s

// Lanes along the width; small bands stay in L1.
// CHECK-LABEL: func.func @main
// CHECK: disc.plan = {"x86-64-v4" = "depthwise-window{band = 16, rows = 8}"}
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x32x30x30xf32, [@S0, 32, 30, 30]>) -> tensor<?x32x28x28xf32, [@S0, 32, 28, 28]> {
  %w = "disc.weight"() {name = "w"} : () -> tensor<32x1x3x3xf32, [32, 1, 3, 3]>
  %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], window = {} {batch_group_count = 1 : i64, feature_group_count = 32 : i64} : (tensor<?x32x30x30xf32, [@S0, 32, 30, 30]>, tensor<32x1x3x3xf32, [32, 1, 3, 3]>) -> tensor<?x32x28x28xf32, [@S0, 32, 28, 28]>
  return %0 : tensor<?x32x28x28xf32, [@S0, 32, 28, 28]>
}
