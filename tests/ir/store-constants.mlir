// RUN: %disc_opt %s --passes=store-constants --stage=named | %filecheck %s

"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()

// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<?xf32, [@S0]>) -> (tensor<2xf32, [2]>, tensor<3xbf16, [3]>, tensor<2xi1, [2]>, tensor<4xf32, [4]>, tensor<1xi64, [1]>, tensor<f32>) {
  // CHECK: %[[A:.*]] = "disc.weight"() {name = "constant"} : () -> tensor<2xf32, [2]>
  %a = stablehlo.constant dense<[1.0, 2.0]> : tensor<2xf32, [2]>
  // CHECK: %[[B:.*]] = "disc.weight"() {name = "constant.1"} : () -> tensor<3xbf16, [3]>
  %b = stablehlo.constant dense<[1.0, 2.0, 3.0]> : tensor<3xbf16, [3]>
  // CHECK: %[[C:.*]] = "disc.weight"() {name = "constant.2"} : () -> tensor<2xi1, [2]>
  %c = stablehlo.constant dense<[true, false]> : tensor<2xi1, [2]>
  // Splats and single values stay.
  // CHECK: stablehlo.constant dense<1.000000e+00> : tensor<4xf32
  %d = stablehlo.constant dense<1.0> : tensor<4xf32, [4]>
  // CHECK: stablehlo.constant dense<7> : tensor<1xi64
  %e = stablehlo.constant dense<[7]> : tensor<1xi64, [1]>
  // CHECK: stablehlo.constant dense<0.000000e+00> : tensor<f32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  return %a, %b, %c, %d, %e, %f : tensor<2xf32, [2]>, tensor<3xbf16, [3]>, tensor<2xi1, [2]>, tensor<4xf32, [4]>, tensor<1xi64, [1]>, tensor<f32>
}
