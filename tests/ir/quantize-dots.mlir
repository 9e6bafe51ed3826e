// RUN: %disc_opt %s --passes=quantize-dots,fold-constants --stage=named | %filecheck %s

"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()

// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[X:.*]]: tensor<?x64xf32, [@S0, 64]>, %[[P:.*]]: tensor<64x?xf32, [64, @S0]>
func.func @main(%x: tensor<?x64xf32, [@S0, 64]>, %p: tensor<64x?xf32, [64, @S0]>) -> (tensor<?x32xf32, [@S0, 32]>, tensor<?x48xf32, [@S0, 48]>, tensor<?x?xf32, [@S0, @S0]>, tensor<?x2xf32, [@S0, 2]>) {
  %w = "disc.weight"() {name = "w"} : () -> tensor<32x64xf32, [32, 64]>
  %u = "disc.weight"() {name = "u"} : () -> tensor<48x64xf32, [48, 64]>
  // The columns too few to gain keep their weight.
  // CHECK: %[[V:.*]] = "disc.weight"() {name = "v"} : () -> tensor<2x64xf32, [2, 64]>
  %v = "disc.weight"() {name = "v"} : () -> tensor<2x64xf32, [2, 64]>

  // Least and greatest element of every row, in one pass.
  // CHECK: %[[INF:.*]] = stablehlo.constant dense<0x7F800000> : tensor<f32>
  // CHECK: %[[NEG:.*]] = stablehlo.constant dense<0xFF800000> : tensor<f32>
  // CHECK: %[[R:.*]]:2 = stablehlo.reduce(%[[X]] init: %[[INF]]), (%[[X]] init: %[[NEG]]) across dimensions = [1]
  // CHECK: %[[A:.*]] = stablehlo.minimum
  // CHECK-NEXT: %[[B:.*]] = stablehlo.maximum
  // CHECK-NEXT: stablehlo.return %[[A]], %[[B]]

  // (x - low) * (255 / (high - low)), to bytes; the range is kept from zero.
  // CHECK: %[[RANGE:.*]] = stablehlo.subtract %[[R]]#1, %[[R]]#0 : tensor<?xf32, [@S0]>
  // CHECK: %[[WIDTH:.*]] = stablehlo.maximum %[[RANGE]]
  // CHECK: stablehlo.constant dense<2.550000e+02> : tensor<f32>
  // CHECK: %[[FACTOR:.*]] = stablehlo.divide {{.*}}, %[[WIDTH]] : tensor<?xf32, [@S0]>
  // CHECK: %[[LOW:.*]] = "disc.broadcast_in_dim"(%[[R]]#0) {dims = array<i64: 0>
  // CHECK: %[[ABOVE:.*]] = stablehlo.subtract %[[X]], %[[LOW]]
  // CHECK: %[[WIDE:.*]] = "disc.broadcast_in_dim"(%[[FACTOR]]) {dims = array<i64: 0>
  // CHECK: %[[STEPS:.*]] = stablehlo.multiply %[[ABOVE]], %[[WIDE]]
  // CHECK: %[[STEP:.*]] = stablehlo.multiply %[[WIDTH]]
  // CHECK: %[[ROUND:.*]] = stablehlo.round_nearest_even %[[STEPS]]
  // CHECK: %[[BYTES:.*]] = stablehlo.convert %[[ROUND]] : (tensor<?x64xf32, [@S0, 64]>) -> tensor<?x64xui8, [@S0, 64]>

  // The weight is folded: its bytes, one step per column, and the sums times that.
  // CHECK: %[[WSTEP:.*]] = stablehlo.constant dense<{{.*}}> : tensor<32xf32, [32]>
  // CHECK: %[[W:.*]] = "disc.weight"() {name = "folded.convert.w"} : () -> tensor<32x64xi8, [32, 64]>
  // CHECK: %[[WSUM:.*]] = "disc.weight"() {name = "folded.multiply.w"} : () -> tensor<32xf32, [32]>

  // CHECK: %[[DOT:.*]] = stablehlo.dot_general %[[BYTES]], %[[W]], contracting_dims = [1] x [1] : (tensor<?x64xui8, [@S0, 64]>, tensor<32x64xi8, [32, 64]>) -> tensor<?x32xi32, [@S0, 32]>
  // CHECK: %[[FLOATS:.*]] = stablehlo.convert %[[DOT]]
  // CHECK: %[[S0:.*]] = "disc.broadcast_in_dim"(%[[STEP]]) {dims = array<i64: 0>
  // CHECK: %[[S1:.*]] = "disc.broadcast_in_dim"(%[[WSTEP]]) {dims = array<i64: 1>
  // CHECK: %[[SS:.*]] = stablehlo.multiply %[[S0]], %[[S1]]
  // CHECK: %[[SCALED:.*]] = stablehlo.multiply %[[FLOATS]], %[[SS]]
  // CHECK: %[[L0:.*]] = "disc.broadcast_in_dim"(%[[R]]#0) {dims = array<i64: 0>
  // CHECK: %[[L1:.*]] = "disc.broadcast_in_dim"(%[[WSUM]]) {dims = array<i64: 1>
  // CHECK: %[[OFFSET:.*]] = stablehlo.multiply %[[L0]], %[[L1]]
  // CHECK: %[[D:.*]] = stablehlo.add %[[SCALED]], %[[OFFSET]] : tensor<?x32xf32, [@S0, 32]>
  %d = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : (tensor<?x64xf32, [@S0, 64]>, tensor<32x64xf32, [32, 64]>) -> tensor<?x32xf32, [@S0, 32]>

  // A second weight reads the same bytes: the rows are quantized once.
  // CHECK-NOT: stablehlo.reduce
  // CHECK: stablehlo.dot_general %[[BYTES]], {{.*}} : (tensor<?x64xui8, [@S0, 64]>, tensor<48x64xi8, [48, 64]>) -> tensor<?x48xi32, [@S0, 48]>
  %g = stablehlo.dot_general %x, %u, contracting_dims = [1] x [1] : (tensor<?x64xf32, [@S0, 64]>, tensor<48x64xf32, [48, 64]>) -> tensor<?x48xf32, [@S0, 48]>

  // Two activations, and too few columns: as they were.
  // CHECK: %[[E:.*]] = stablehlo.dot_general %[[X]], %[[P]], contracting_dims = [1] x [0] : (tensor<?x64xf32, [@S0, 64]>, tensor<64x?xf32, [64, @S0]>) -> tensor<?x?xf32, [@S0, @S0]>
  // CHECK: %[[F:.*]] = stablehlo.dot_general %[[X]], %[[V]], contracting_dims = [1] x [1] : (tensor<?x64xf32, [@S0, 64]>, tensor<2x64xf32, [2, 64]>) -> tensor<?x2xf32, [@S0, 2]>
  // CHECK: return %[[D]], {{.*}}, %[[E]], %[[F]]
  %e = stablehlo.dot_general %x, %p, contracting_dims = [1] x [0] : (tensor<?x64xf32, [@S0, 64]>, tensor<64x?xf32, [64, @S0]>) -> tensor<?x?xf32, [@S0, @S0]>
  %f = stablehlo.dot_general %x, %v, contracting_dims = [1] x [1] : (tensor<?x64xf32, [@S0, 64]>, tensor<2x64xf32, [2, 64]>) -> tensor<?x2xf32, [@S0, 2]>
  return %d, %g, %e, %f : tensor<?x32xf32, [@S0, 32]>, tensor<?x48xf32, [@S0, 48]>, tensor<?x?xf32, [@S0, @S0]>, tensor<?x2xf32, [@S0, 2]>
}
