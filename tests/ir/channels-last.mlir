// RUN: %disc_opt %s --passes=channels-last,fold-constants,simplify --stage=named | %filecheck %s

"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 1 : i64, divisor = 1 : i64, source = "arg0.2"} : () -> ()

// A chain: the image stays channels first and gets its padding, a 1x1 convolution is a dot, one transpose is left, at the end.
// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[X:.*]]: tensor<?x3x?xf32, [@S0, 3, @S1]>, %[[Y:.*]]: tensor<?x8x?xf32, [@S0, 8, @S1]>
func.func @main(%x: tensor<?x3x?xf32, [@S0, 3, @S1]>, %y: tensor<?x8x?xf32, [@S0, 8, @S1]>) -> (tensor<?x16x?xf32, [@S0, 16, @S1]>,
    tensor<?x8x?xf32, [@S0, 8, @S1]>) {
  %w = "disc.weight"() {name = "w"} : () -> tensor<8x3x3xf32, [8, 3, 3]>
  %v = "disc.weight"() {name = "v"} : () -> tensor<16x8x1xf32, [16, 8, 1]>
  %u = "disc.weight"() {name = "u"} : () -> tensor<8x8x3xf32, [8, 8, 3]>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = "disc.broadcast_in_dim"(%zero) {dims = array<i64>, maybe = array<i64>} : (tensor<f32>) -> tensor<?x8x?xf32, [@S0, 8, @S1]>

  // CHECK: %[[P:.*]] = "disc.pad"(%[[X]], {{.*}}) {interior = array<i64: 0, 0, 0>, low = ["0", "0", "1"]}
  // CHECK: %[[W:.*]] = "disc.weight"() {{.*}} : () -> tensor<3x3x8xf32, [3, 3, 8]>
  // CHECK: %[[A:.*]] = stablehlo.convolution(%[[P]], %[[W]]) dim_numbers = [b, f, 0]x[i, 0, o]->[b, 0, f]
  // CHECK-SAME: -> tensor<?x?x8xf32, [@S0, @S1, 8]>
  // CHECK: %[[M:.*]] = stablehlo.maximum %[[A]]
  // CHECK: %[[V:.*]] = "disc.weight"() {{.*}} : () -> tensor<16x8xf32, [16, 8]>
  // CHECK: %[[D:.*]] = stablehlo.dot_general %[[M]], %[[V]], contracting_dims = [2] x [1]
  // CHECK: %[[R:.*]] = stablehlo.transpose %[[D]], dims = [0, 2, 1]
  %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, f, 0]x[o, i, 0]->[b, f, 0], window = {pad = [[1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<?x3x?xf32, [@S0, 3, @S1]>, tensor<8x3x3xf32, [8, 3, 3]>) -> tensor<?x8x?xf32, [@S0, 8, @S1]>
  %1 = stablehlo.maximum %0, %zeros : tensor<?x8x?xf32, [@S0, 8, @S1]>
  %2 = stablehlo.convolution(%1, %v) dim_numbers = [b, f, 0]x[o, i, 0]->[b, f, 0], window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<?x8x?xf32, [@S0, 8, @S1]>, tensor<16x8x1xf32, [16, 8, 1]>) -> tensor<?x16x?xf32, [@S0, 16, @S1]>

  // One convolution alone would need as many transposes as it is worth: it stays.
  // CHECK: %[[B:.*]] = stablehlo.convolution(%[[Y]], {{.*}}) dim_numbers = [b, f, 0]x[o, i, 0]->[b, f, 0]
  // CHECK: return %[[R]], %[[B]]
  %3 = stablehlo.convolution(%y, %u) dim_numbers = [b, f, 0]x[o, i, 0]->[b, f, 0], window = {pad = [[1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<?x8x?xf32, [@S0, 8, @S1]>, tensor<8x8x3xf32, [8, 8, 3]>) -> tensor<?x8x?xf32, [@S0, 8, @S1]>
  return %2, %3 : tensor<?x16x?xf32, [@S0, 16, @S1]>, tensor<?x8x?xf32, [@S0, 8, @S1]>
}

// -----
// With many channels one convolution alone pays for its two transposes.
// CHECK-LABEL: func.func @main
// CHECK: %[[T:.*]] = stablehlo.transpose %{{.*}}, dims = [0, 2, 1]
// CHECK: %[[A:.*]] = stablehlo.convolution(%[[T]], %{{.*}}) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f]
// CHECK: stablehlo.transpose %[[A]], dims = [0, 2, 1]
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 1 : i64, divisor = 1 : i64, source = "arg0.2"} : () -> ()
func.func @main(%x: tensor<?x640x?xf32, [@S0, 640, @S1]>) -> (tensor<?x640x?xf32, [@S0, 640, @S1]>) {
  %w = "disc.weight"() {name = "w"} : () -> tensor<640x640x3xf32, [640, 640, 3]>
  %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, f, 0]x[o, i, 0]->[b, f, 0], window = {pad = [[1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<?x640x?xf32, [@S0, 640, @S1]>, tensor<640x640x3xf32, [640, 640, 3]>) -> tensor<?x640x?xf32, [@S0, 640, @S1]>
  return %0 : tensor<?x640x?xf32, [@S0, 640, @S1]>
}

// -----
// Windows that tile the source: a dot of the patches as rows.
// CHECK-LABEL: func.func @main
// CHECK: %[[S:.*]] = "disc.reshape"(%{{.*}}) : {{.*}} -> tensor<?x3x2x4x5x4xf32, [@S0, 3, 2, 4, 5, 4]>
// CHECK: %[[T:.*]] = stablehlo.transpose %[[S]], dims = [0, 2, 4, 1, 3, 5]
// CHECK: %[[D:.*]] = stablehlo.dot_general %[[T]], %{{.*}}, contracting_dims = [3, 4, 5] x [1, 2, 3] {{.*}} -> tensor<?x2x5x24xf32, [@S0, 2, 5, 24]>
// CHECK: stablehlo.transpose %[[D]], dims = [0, 3, 1, 2]
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x3x8x20xf32, [@S0, 3, 8, 20]>) -> (tensor<?x24x2x5xf32, [@S0, 24, 2, 5]>) {
  %w = "disc.weight"() {name = "w"} : () -> tensor<24x3x4x4xf32, [24, 3, 4, 4]>
  %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], window = {stride = [4, 4]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<?x3x8x20xf32, [@S0, 3, 8, 20]>, tensor<24x3x4x4xf32, [24, 3, 4, 4]>) -> tensor<?x24x2x5xf32, [@S0, 24, 2, 5]>
  return %0 : tensor<?x24x2x5xf32, [@S0, 24, 2, 5]>
}
