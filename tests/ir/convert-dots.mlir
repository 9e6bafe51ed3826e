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
