// RUN: %disc_opt %s --passes=fold-batch-norm --stage=named | %filecheck %s

"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg0.2"} : () -> ()

// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[X:.*]]: tensor<?x3x?xf32, [@S0, 3, @S1]>
func.func @main(%x: tensor<?x3x?xf32, [@S0, 3, @S1]>) -> (tensor<?x5x?xf32, [@S0, 5, @S1]>, tensor<?x5x?xf32, [@S0, 5, @S1]>,
    tensor<?x5x?xf32, [@S0, 5, @S1]>) {
  // CHECK: %[[W:.*]] = "disc.weight"() {name = "w"}
  %w = "disc.weight"() {name = "w"} : () -> tensor<5x3x1xf32, [5, 3, 1]>
  %bias = "disc.weight"() {name = "bias"} : () -> tensor<5xf32, [5]>
  %scale = "disc.weight"() {name = "scale"} : () -> tensor<5xf32, [5]>
  %shift = "disc.weight"() {name = "shift"} : () -> tensor<1x5x1xf32, [1, 5, 1]>
  %b = "disc.broadcast_in_dim"(%bias) {dims = array<i64: 1>, maybe = array<i64>} : (tensor<5xf32, [5]>) -> tensor<?x5x?xf32, [@S0, 5, @S1]>
  %s = "disc.broadcast_in_dim"(%scale) {dims = array<i64: 1>, maybe = array<i64>} : (tensor<5xf32, [5]>) -> tensor<?x5x?xf32, [@S0, 5, @S1]>
  %t = "disc.broadcast_in_dim"(%shift) {dims = array<i64: 0, 1, 2>, maybe = array<i64>} : (tensor<1x5x1xf32, [1, 5, 1]>) -> tensor<?x5x?xf32, [@S0, 5, @S1]>

  // A bias, a scale and a shift: one kernel and one bias.
  // CHECK: %[[V:.*]] = stablehlo.multiply %[[W]],
  // CHECK: %[[BIASED:.*]] = stablehlo.multiply
  // CHECK: %[[SHIFTED:.*]] = stablehlo.add %[[BIASED]]
  // CHECK: %[[ONE:.*]] = stablehlo.convolution(%[[X]], %[[V]])
  // CHECK: %[[ALONG:.*]] = "disc.broadcast_in_dim"(%[[SHIFTED]]) {dims = array<i64: 1>
  // CHECK: %[[R0:.*]] = stablehlo.add %[[ONE]], %[[ALONG]]
  %c0 = stablehlo.convolution(%x, %w) dim_numbers = [b, f, 0]x[o, i, 0]->[b, f, 0], window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<?x3x?xf32, [@S0, 3, @S1]>, tensor<5x3x1xf32, [5, 3, 1]>) -> tensor<?x5x?xf32, [@S0, 5, @S1]>
  %0 = stablehlo.add %c0, %b : tensor<?x5x?xf32, [@S0, 5, @S1]>
  %1 = stablehlo.multiply %0, %s : tensor<?x5x?xf32, [@S0, 5, @S1]>
  %2 = stablehlo.add %1, %t : tensor<?x5x?xf32, [@S0, 5, @S1]>

  // A bias alone stays, and so does a scale of a value that is read elsewhere.
  // CHECK: %[[TWO:.*]] = stablehlo.convolution(%[[X]], %[[W]])
  // CHECK: %[[R1:.*]] = stablehlo.add %[[TWO]]
  // CHECK: %[[R2:.*]] = stablehlo.multiply %[[R1]]
  %c1 = stablehlo.convolution(%x, %w) dim_numbers = [b, f, 0]x[o, i, 0]->[b, f, 0], window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<?x3x?xf32, [@S0, 3, @S1]>, tensor<5x3x1xf32, [5, 3, 1]>) -> tensor<?x5x?xf32, [@S0, 5, @S1]>
  %3 = stablehlo.add %c1, %b : tensor<?x5x?xf32, [@S0, 5, @S1]>
  %4 = stablehlo.multiply %3, %s : tensor<?x5x?xf32, [@S0, 5, @S1]>

  // CHECK: return %[[R0]], %[[R1]], %[[R2]]
  return %2, %3, %4 : tensor<?x5x?xf32, [@S0, 5, @S1]>, tensor<?x5x?xf32, [@S0, 5, @S1]>, tensor<?x5x?xf32, [@S0, 5, @S1]>
}
