// RUN: %disc_opt %s --passes=fold-constants --stage=named | %filecheck %s

"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()

// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[X:.*]]: tensor<?x32xf32, [@S0, 32]>
func.func @main(%x: tensor<?x32xf32, [@S0, 32]>)
    -> (tensor<?x64xf32, [@S0, 64]>, tensor<64x32xf32, [64, 32]>, tensor<?x32xf32, [@S0, 32]>, tensor<3xi64, [3]>, tensor<64xi64, [64]>,
        tensor<64x32xf32, [64, 32]>) {
  // Concatenated and transposed weights are one new weight; the old ones are no longer read.
  // CHECK-NOT: name = "a"
  // CHECK: %[[W:.*]] = "disc.weight"() {name = "folded.concatenate.a"} : () -> tensor<64x32xf32, [64, 32]>
  %a = "disc.weight"() {name = "a"} : () -> tensor<32x32xf32, [32, 32]>
  %at = stablehlo.transpose %a, dims = [1, 0] : (tensor<32x32xf32, [32, 32]>) -> tensor<32x32xf32, [32, 32]>
  %w = stablehlo.concatenate %at, %a, dim = 0 : (tensor<32x32xf32, [32, 32]>, tensor<32x32xf32, [32, 32]>) -> tensor<64x32xf32, [64, 32]>
  // CHECK: %[[DOT:.*]] = stablehlo.dot_general %[[X]], %[[W]]
  %r0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : (tensor<?x32xf32, [@S0, 32]>, tensor<64x32xf32, [64, 32]>) -> tensor<?x64xf32, [@S0, 64]>

  // A broadcast would only make the artifact larger.
  // CHECK: %[[B:.*]] = "disc.weight"() {name = "b"}
  // CHECK: %[[SPREAD:.*]] = "disc.broadcast_in_dim"(%[[B]])
  %b = "disc.weight"() {name = "b"} : () -> tensor<32xf32, [32]>
  %r1 = "disc.broadcast_in_dim"(%b) {dims = array<i64: 1>, maybe = array<i64>} : (tensor<32xf32, [32]>) -> tensor<64x32xf32, [64, 32]>

  // The bias plus one is a weight; its broadcast to a dynamic size stays.
  // CHECK: %[[PLUS:.*]] = "disc.weight"() {name = "folded.add.b"} : () -> tensor<32xf32, [32]>
  // CHECK: %[[ROWS:.*]] = "disc.broadcast_in_dim"(%[[PLUS]])
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %ones = "disc.broadcast_in_dim"(%one) {dims = array<i64>, maybe = array<i64>} : (tensor<f32>) -> tensor<32xf32, [32]>
  %b1 = stablehlo.add %b, %ones : tensor<32xf32, [32]>
  %r2 = "disc.broadcast_in_dim"(%b1) {dims = array<i64: 1>, maybe = array<i64>} : (tensor<32xf32, [32]>) -> tensor<?x32xf32, [@S0, 32]>

  // A small iota is a constant, a large one is not.
  // CHECK-DAG: %[[SMALL:.*]] = stablehlo.constant dense<[0, 1, 2]>
  // CHECK-DAG: %[[LARGE:.*]] = "disc.iota"() {dim = 0 : i64} : () -> tensor<64xi64, [64]>
  %r3 = "disc.iota"() {dim = 0 : i64} : () -> tensor<3xi64, [3]>
  %r4 = "disc.iota"() {dim = 0 : i64} : () -> tensor<64xi64, [64]>

  // A product of equal elements is a splat.
  // CHECK: %[[ZERO:.*]] = stablehlo.constant dense<0.000000e+00> : tensor<64x32xf32, [64, 32]>
  %r5 = stablehlo.subtract %w, %w : tensor<64x32xf32, [64, 32]>

  // CHECK: return %[[DOT]], %[[SPREAD]], %[[ROWS]], %[[SMALL]], %[[LARGE]], %[[ZERO]] :
  return %r0, %r1, %r2, %r3, %r4, %r5 : tensor<?x64xf32, [@S0, 64]>, tensor<64x32xf32, [64, 32]>, tensor<?x32xf32, [@S0, 32]>, tensor<3xi64, [3]>,
    tensor<64xi64, [64]>, tensor<64x32xf32, [64, 32]>
}
