// RUN: %disc_opt %s --passes=fuse-elementwise,fuse-compute,stitch,fuse-attention,form-fusions,speculate-versions,choose-kernels --target=x86-64-v4 --stage=fused | %filecheck %s

// Lanes along the channels.
// CHECK-LABEL: func.func @main
// CHECK: disc.plan = {"x86-64-v4" = "window-last{band = 14, strip = 28, rows = 2, columns = 7}"}
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()

func.func @main(%x: tensor<?x13x11x16xf32, [@S0, 13, 11, 16]>) -> tensor<?x13x11x16xf32, [@S0, 13, 11, 16]> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %0 = "stablehlo.reduce_window"(%x, %low) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %1 = stablehlo.maximum %a, %b : tensor<f32>
      stablehlo.return %1 : tensor<f32>
  }) {window_dimensions = array<i64: 1, 3, 3, 1>, window_strides = array<i64: 1, 1, 1, 1>, padding = dense<[[0, 0], [1, 1], [1, 1], [0, 0]]> : tensor<4x2xi64>} : (tensor<?x13x11x16xf32, [@S0, 13, 11, 16]>, tensor<f32>) -> tensor<?x13x11x16xf32, [@S0, 13, 11, 16]>
  return %0 : tensor<?x13x11x16xf32, [@S0, 13, 11, 16]>
}
