// RUN: %disc_opt %s --passes=normalize-reductions --stage=imported | %filecheck %s

// An initial value that is not the identity of the op is combined with the result.
// CHECK-LABEL: func.func @main
// CHECK: %[[THREE:.*]] = stablehlo.constant dense<3.000000e+00>
// CHECK: %[[ZERO:.*]] = stablehlo.constant dense<0.000000e+00>
// CHECK: %[[SUM:.*]] = stablehlo.reduce(%{{.*}} init: %[[ZERO]]) applies stablehlo.add
// CHECK: chlo.broadcast_add %[[SUM]], %[[THREE]]
func.func @main(%x: tensor<4x?xf32>) -> tensor<4xf32> {
  %c = stablehlo.constant dense<3.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %c) applies stablehlo.add across dimensions = [1] : (tensor<4x?xf32>, tensor<f32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----
// The identity stays, of zeros either.
// CHECK-LABEL: func.func @main
// CHECK-NEXT: stablehlo.constant
// CHECK-NEXT: stablehlo.reduce
// CHECK-NEXT: return
func.func @main(%x: tensor<4x?xf32>) -> tensor<4xf32> {
  %c = stablehlo.constant dense<-0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %c) applies stablehlo.add across dimensions = [1] : (tensor<4x?xf32>, tensor<f32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----
// A body that is no plain op keeps its order and its initial value.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.reduce
// CHECK: disc.in_order
func.func @main(%x: tensor<4x?xf32>, %c: tensor<f32>) -> tensor<4xf32> {
  %0 = stablehlo.reduce(%x init: %c) across dimensions = [1] : (tensor<4x?xf32>, tensor<f32>) -> tensor<4xf32>
    reducer(%a: tensor<f32>, %b: tensor<f32>) {
      %s = stablehlo.subtract %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }
  return %0 : tensor<4xf32>
}

// -----
// The holes of a dilation, and padding with a value that is not the identity, become a pad.
// CHECK-LABEL: func.func @main
// CHECK: %[[WIDE:.*]] = stablehlo.pad %{{.*}}, %{{.*}}, low = [0, 1], high = [0, 2], interior = [0, 1]
// CHECK: "stablehlo.reduce_window"(%[[WIDE]],
// CHECK: base_dilations = array<i64: 1, 1>
// CHECK-SAME: padding = dense<0>
func.func @main(%x: tensor<4x?xf32>, %c: tensor<f32>) -> tensor<4x?xf32> {
  %0 = "stablehlo.reduce_window"(%x, %c) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
  }) {window_dimensions = array<i64: 1, 3>, base_dilations = array<i64: 1, 2>, padding = dense<[[0, 0], [1, 2]]> : tensor<2x2xi64>} : (tensor<4x?xf32>, tensor<f32>) -> tensor<4x?xf32>
  return %0 : tensor<4x?xf32>
}
