// RUN: %disc_opt %s --passes=fuse-elementwise,fuse-compute,stitch,fuse-attention,form-fusions,speculate-versions,choose-kernels --target=x86-64-v4 --stage=fused | %filecheck %s

// Fewer rows than a tile, always, times a B that comes with the call.
// CHECK-LABEL: func.func @main
// CHECK: disc.plan = {"x86-64-v4" = "few-rows{product = product{form = f32, left = in-place, right = in-place, panel = 64, vectors = 4}, turned = false, few = across, tree = tree{
func.func @main(%x: tensor<1x40xf32, [1, 40]>, %y: tensor<40x70xf32, [40, 70]>) -> tensor<1x70xf32, [1, 70]> {
  %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : (tensor<1x40xf32, [1, 40]>, tensor<40x70xf32, [40, 70]>) -> tensor<1x70xf32, [1, 70]>
  return %0 : tensor<1x70xf32, [1, 70]>
}
