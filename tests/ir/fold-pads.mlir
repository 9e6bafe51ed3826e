// RUN: %disc_opt %s --passes=fold-pads --stage=named | %filecheck %s

"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg0.2"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S2", min = 0 : i64, divisor = 1 : i64, expr = "S1 + 3"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S3", min = 0 : i64, divisor = 1 : i64, expr = "S1 + 1"} : () -> ()

// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[X:.*]]: tensor<?x3x?xf32, [@S0, 3, @S1]>
func.func @main(%x: tensor<?x3x?xf32, [@S0, 3, @S1]>) -> (tensor<?x5x?xf32, [@S0, 5, @S2]>, tensor<?x5x?xf32, [@S0, 5, @S2]>,
    tensor<?x5x?xf32, [@S0, 5, @S3]>) {
  %w = "disc.weight"() {name = "w"} : () -> tensor<5x3x1xf32, [5, 3, 1]>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %one = stablehlo.constant dense<1.0> : tensor<f32>

  // Two pads, and padding of its own.
  // CHECK: %[[R0:.*]] = stablehlo.convolution(%[[X]], %{{.*}}) {{.*}}pad = {{\[\[}}1, 2]]
  %p0 = "disc.pad"(%x, %zero) {low = ["0", "0", "0"], interior = array<i64: 0, 0, 0>} : (tensor<?x3x?xf32, [@S0, 3, @S1]>, tensor<f32>) -> tensor<?x3x?xf32, [@S0, 3, @S3]>
  %c0 = stablehlo.convolution(%p0, %w) dim_numbers = [b, f, 0]x[o, i, 0]->[b, f, 0], window = {pad = [[1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<?x3x?xf32, [@S0, 3, @S3]>, tensor<5x3x1xf32, [5, 3, 1]>) -> tensor<?x5x?xf32, [@S0, 5, @S2]>

  // Ones stay, and so does a dim that grows for channels.
  // CHECK: %[[ONES:.*]] = "disc.pad"(%[[X]]
  // CHECK: %[[R1:.*]] = stablehlo.convolution(%[[ONES]], %{{.*}}) {{.*}}pad = {{\[\[}}1, 1]]
  %p1 = "disc.pad"(%x, %one) {low = ["0", "0", "1"], interior = array<i64: 0, 0, 0>} : (tensor<?x3x?xf32, [@S0, 3, @S1]>, tensor<f32>) -> tensor<?x3x?xf32, [@S0, 3, @S3]>
  %c1 = stablehlo.convolution(%p1, %w) dim_numbers = [b, f, 0]x[o, i, 0]->[b, f, 0], window = {pad = [[1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<?x3x?xf32, [@S0, 3, @S3]>, tensor<5x3x1xf32, [5, 3, 1]>) -> tensor<?x5x?xf32, [@S0, 5, @S2]>

  // CHECK: %[[WIDER:.*]] = "disc.pad"(%[[X]]
  // CHECK: %[[R2:.*]] = stablehlo.convolution(%[[WIDER]]
  %v = "disc.weight"() {name = "v"} : () -> tensor<5x4x1xf32, [5, 4, 1]>
  %p2 = "disc.pad"(%x, %zero) {low = ["0", "1", "1"], interior = array<i64: 0, 0, 0>} : (tensor<?x3x?xf32, [@S0, 3, @S1]>, tensor<f32>) -> tensor<?x4x?xf32, [@S0, 4, @S3]>
  %c2 = stablehlo.convolution(%p2, %v) dim_numbers = [b, f, 0]x[o, i, 0]->[b, f, 0], window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<?x4x?xf32, [@S0, 4, @S3]>, tensor<5x4x1xf32, [5, 4, 1]>) -> tensor<?x5x?xf32, [@S0, 5, @S3]>

  // CHECK: return %[[R0]], %[[R1]], %[[R2]]
  return %c0, %c1, %c2 : tensor<?x5x?xf32, [@S0, 5, @S2]>, tensor<?x5x?xf32, [@S0, 5, @S2]>, tensor<?x5x?xf32, [@S0, 5, @S3]>
}
