// RUN: %disc_opt %s --passes=convert-dots,fold-constants --stage=named | %filecheck %s

"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()

// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[X:.*]]: tensor<?x32xf32, [@S0, 32]>, %[[P:.*]]: tensor<?x1xf32, [@S0, 1]>
func.func @main(%x: tensor<?x32xf32, [@S0, 32]>, %p: tensor<?x1xf32, [@S0, 1]>)
    -> (tensor<?x?xf32, [@S0, @S0]>, tensor<?x?xf32, [@S0, @S0]>, tensor<?x32xf32, [@S0, 32]>) {
  // An input is converted once.
  // CHECK: %[[XC:.*]] = stablehlo.convert %[[X]] : (tensor<?x32xf32, [@S0, 32]>) -> tensor<?x32xbf16, [@S0, 32]>

  // A weight is converted in the weight table.
  // CHECK: %[[W:.*]] = "disc.weight"() {name = "folded.convert.w"} : () -> tensor<64x32xbf16, [64, 32]>
  // CHECK: %[[D:.*]] = stablehlo.dot_general %[[XC]], %[[W]], contracting_dims = [1] x [1] : (tensor<?x32xbf16, [@S0, 32]>, tensor<64x32xbf16, [64, 32]>) -> tensor<?x64xf32, [@S0, 64]>
  %w = "disc.weight"() {name = "w"} : () -> tensor<64x32xf32, [64, 32]>
  %d = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : (tensor<?x32xf32, [@S0, 32]>, tensor<64x32xf32, [64, 32]>) -> tensor<?x64xf32, [@S0, 64]>

  // The conversion goes before the views, and serves both.
  // CHECK: %[[T:.*]] = stablehlo.tanh %[[D]] : tensor<?x64xf32, [@S0, 64]>
  // CHECK-NEXT: %[[TC:.*]] = stablehlo.convert %[[T]]
  // CHECK: %[[Q:.*]] = "disc.slice"(%[[TC]])
  // CHECK: %[[K:.*]] = "disc.slice"(%[[TC]])
  // CHECK: %[[SCORES:.*]] = stablehlo.dot_general %[[Q]], %[[K]]
  %t = stablehlo.tanh %d : tensor<?x64xf32, [@S0, 64]>
  %q = "disc.slice"(%t) {starts = ["0", "0"], strides = array<i64: 1, 1>} : (tensor<?x64xf32, [@S0, 64]>) -> tensor<?x32xf32, [@S0, 32]>
  %k = "disc.slice"(%t) {starts = ["0", "32"], strides = array<i64: 1, 1>} : (tensor<?x64xf32, [@S0, 64]>) -> tensor<?x32xf32, [@S0, 32]>
  %s = stablehlo.dot_general %q, %k, contracting_dims = [1] x [1] : (tensor<?x32xf32, [@S0, 32]>, tensor<?x32xf32, [@S0, 32]>) -> tensor<?x?xf32, [@S0, @S0]>

  // An outer product stays f32.
  // CHECK: %[[OUTER:.*]] = stablehlo.dot_general %[[P]], %[[P]], {{.*}} -> tensor<?x?xf32, [@S0, @S0]>
  %o = stablehlo.dot_general %p, %p, contracting_dims = [1] x [1] : (tensor<?x1xf32, [@S0, 1]>, tensor<?x1xf32, [@S0, 1]>) -> tensor<?x?xf32, [@S0, @S0]>

  // What was bf16 before it was widened is read as it was: the dot of a product with itself.
  // CHECK: %[[SC:.*]] = stablehlo.convert %[[SCORES]]
  // CHECK: stablehlo.dot_general %[[SC]], %[[XC]]
  %b = stablehlo.convert %s : (tensor<?x?xf32, [@S0, @S0]>) -> tensor<?x?xbf16, [@S0, @S0]>
  %f = stablehlo.convert %b : (tensor<?x?xbf16, [@S0, @S0]>) -> tensor<?x?xf32, [@S0, @S0]>
  %r = stablehlo.dot_general %f, %x, contracting_dims = [1] x [0] : (tensor<?x?xf32, [@S0, @S0]>, tensor<?x32xf32, [@S0, 32]>) -> tensor<?x32xf32, [@S0, 32]>

  return %s, %o, %r : tensor<?x?xf32, [@S0, @S0]>, tensor<?x?xf32, [@S0, @S0]>, tensor<?x32xf32, [@S0, 32]>
}

// -----

"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 3 : i64, divisor = 1 : i64, source = "arg0.1"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S2", min = 1 : i64, divisor = 1 : i64, expr = "S1 - 2"} : () -> ()

// Convolutions over channels-last values read pairs of channels; channels first, or an odd number of them, stay f32.
// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[X:.*]]: tensor<?x?x8xf32, [@S0, @S1, 8]>, %[[Y:.*]]: tensor<?x8x?xf32, [@S0, 8, @S1]>, %[[Z:.*]]: tensor<?x?x5xf32, [@S0, @S1, 5]>
func.func @main(%x: tensor<?x?x8xf32, [@S0, @S1, 8]>, %y: tensor<?x8x?xf32, [@S0, 8, @S1]>, %z: tensor<?x?x5xf32, [@S0, @S1, 5]>)
    -> (tensor<?x?x16xf32, [@S0, @S2, 16]>, tensor<?x16x?xf32, [@S0, 16, @S2]>, tensor<?x?x16xf32, [@S0, @S2, 16]>) {
  %w = "disc.weight"() {name = "w"} : () -> tensor<3x8x16xf32, [3, 8, 16]>
  %v = "disc.weight"() {name = "v"} : () -> tensor<16x8x3xf32, [16, 8, 3]>
  %u = "disc.weight"() {name = "u"} : () -> tensor<3x5x16xf32, [3, 5, 16]>

  // CHECK-DAG: %[[XC:.*]] = stablehlo.convert %[[X]] : (tensor<?x?x8xf32, [@S0, @S1, 8]>) -> tensor<?x?x8xbf16, [@S0, @S1, 8]>
  // CHECK-DAG: %[[W:.*]] = "disc.weight"() {name = "folded.convert.w"} : () -> tensor<3x8x16xbf16, [3, 8, 16]>
  // CHECK: stablehlo.convolution(%[[XC]], %[[W]])
  // CHECK-SAME: -> tensor<?x?x16xf32, [@S0, @S2, 16]>
  %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<?x?x8xf32, [@S0, @S1, 8]>, tensor<3x8x16xf32, [3, 8, 16]>) -> tensor<?x?x16xf32, [@S0, @S2, 16]>
  // CHECK: stablehlo.convolution(%[[Y]],
  %1 = stablehlo.convolution(%y, %v) dim_numbers = [b, f, 0]x[o, i, 0]->[b, f, 0], window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<?x8x?xf32, [@S0, 8, @S1]>, tensor<16x8x3xf32, [16, 8, 3]>) -> tensor<?x16x?xf32, [@S0, 16, @S2]>
  // CHECK: stablehlo.convolution(%[[Z]],
  %2 = stablehlo.convolution(%z, %u) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<?x?x5xf32, [@S0, @S1, 5]>, tensor<3x5x16xf32, [3, 5, 16]>) -> tensor<?x?x16xf32, [@S0, @S2, 16]>

  return %0, %1, %2 : tensor<?x?x16xf32, [@S0, @S2, 16]>, tensor<?x16x?xf32, [@S0, 16, @S2]>, tensor<?x?x16xf32, [@S0, @S2, 16]>
}
