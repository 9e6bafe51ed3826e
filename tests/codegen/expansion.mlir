// RUN: %disc_opt %s --passes=fuse-elementwise,fuse-compute,stitch,fuse-attention,form-fusions,speculate-versions,choose-kernels --target=x86-64-v4 --stage=fused | %filecheck %s

// The product keeps a plan, of which no kernel is made; the convolution's kernel computes it too.
// CHECK-LABEL: func.func @main
// CHECK: disc.plan = {"x86-64-v4" = "gemm{product = product{form = f32, left = in-place, right = packed-ahead, panel = 64, vectors = 4}, turned = false, few = no, tree = tree{
// CHECK: disc.plan = {"x86-64-v4" = "expansion{link = 0, product = product{form = f32, left = in-place, right = packed-ahead, panel = 64, vectors = 4}, window = window-last{band = 14, strip = 28, rows = 2, columns = 7}, tile_bytes = 524288}"}
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x14x14x32xf32, [@S0, 14, 14, 32]>) -> tensor<?x14x14x128xf32, [@S0, 14, 14, 128]> {
  %w = "disc.weight"() {name = "w"} : () -> tensor<32x128xf32, [32, 128]>
  %k = "disc.weight"() {name = "k"} : () -> tensor<3x3x1x128xf32, [3, 3, 1, 128]>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [3] x [0] : (tensor<?x14x14x32xf32, [@S0, 14, 14, 32]>, tensor<32x128xf32, [32, 128]>) -> tensor<?x14x14x128xf32, [@S0, 14, 14, 128]>
  %1 = stablehlo.convolution(%0, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 128 : i64} : (tensor<?x14x14x128xf32, [@S0, 14, 14, 128]>, tensor<3x3x1x128xf32, [3, 3, 1, 128]>) -> tensor<?x14x14x128xf32, [@S0, 14, 14, 128]>
  return %1 : tensor<?x14x14x128xf32, [@S0, 14, 14, 128]>
}
