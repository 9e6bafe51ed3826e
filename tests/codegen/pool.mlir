// RUN: %disc_opt %s --passes=fuse-elementwise,fuse-compute,stitch,fuse-attention,form-fusions,speculate-versions,choose-kernels --target=x86-64-v4 --stage=fused | %filecheck %s

// Lanes along the width; the lines of a window first.
// CHECK-LABEL: func.func @main
// CHECK: disc.plan = {"x86-64-v4" = "pool{band = 32, rows = 4}"}
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x16x30x30xf32, [@S0, 16, 30, 30]>) -> tensor<?x16x28x28xf32, [@S0, 16, 28, 28]> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %0 = "stablehlo.reduce_window"(%x, %low) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %1 = stablehlo.maximum %a, %b : tensor<f32>
      stablehlo.return %1 : tensor<f32>
  }) {window_dimensions = array<i64: 1, 1, 3, 3>, window_strides = array<i64: 1, 1, 1, 1>} : (tensor<?x16x30x30xf32, [@S0, 16, 30, 30]>, tensor<f32>) -> tensor<?x16x28x28xf32, [@S0, 16, 28, 28]>
  return %0 : tensor<?x16x28x28xf32, [@S0, 16, 28, 28]>
}
