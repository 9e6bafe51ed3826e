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

  // The weight is quantized here: its bytes, a step per column and block of k, and the sums of their products.
  // CHECK: %[[W:.*]] = "disc.weight"() {name = "bytes.w"} : () -> tensor<32x64xi8, [32, 64]>
  // CHECK: %[[WSTEPS:.*]] = "disc.weight"() {name = "steps.w"} : () -> tensor<32x1xf32, [32, 1]>
  // CHECK: %[[DOT:.*]] = "disc.scaled_dot"(%[[BYTES]], %[[W]], %[[WSTEPS]]) {{.*}} -> tensor<?x32xf32, [@S0, 32]>
  // CHECK: %[[S0:.*]] = "disc.broadcast_in_dim"(%[[STEP]]) {dims = array<i64: 0>
  // CHECK: %[[SCALED:.*]] = stablehlo.multiply %[[DOT]], %[[S0]]
  // CHECK: %[[WSUM:.*]] = "disc.weight"() {name = "totals.w"} : () -> tensor<32xf32, [32]>
  // CHECK: %[[L0:.*]] = "disc.broadcast_in_dim"(%[[R]]#0) {dims = array<i64: 0>
  // CHECK: %[[L1:.*]] = "disc.broadcast_in_dim"(%[[WSUM]]) {dims = array<i64: 1>
  // CHECK: %[[OFFSET:.*]] = stablehlo.multiply %[[L0]], %[[L1]]
  // CHECK: %[[D:.*]] = stablehlo.add %[[SCALED]], %[[OFFSET]] : tensor<?x32xf32, [@S0, 32]>
  %d = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : (tensor<?x64xf32, [@S0, 64]>, tensor<32x64xf32, [32, 64]>) -> tensor<?x32xf32, [@S0, 32]>

  // A second weight reads the same bytes: the rows are quantized once.
  // CHECK-NOT: stablehlo.reduce
  // CHECK: "disc.scaled_dot"(%[[BYTES]], {{.*}} : (tensor<?x64xui8, [@S0, 64]>, tensor<48x64xi8, [48, 64]>, tensor<48x1xf32, [48, 1]>) -> tensor<?x48xf32, [@S0, 48]>
  %g = stablehlo.dot_general %x, %u, contracting_dims = [1] x [1] : (tensor<?x64xf32, [@S0, 64]>, tensor<48x64xf32, [48, 64]>) -> tensor<?x48xf32, [@S0, 48]>

  // Two activations, and too few columns: as they were, and why.
  // CHECK: %[[E:.*]] = stablehlo.dot_general %[[X]], %[[P]], contracting_dims = [1] x [0] {disc.note = "not in 8 bits: not f32 rows times a weight"} : (tensor<?x64xf32, [@S0, 64]>, tensor<64x?xf32, [64, @S0]>) -> tensor<?x?xf32, [@S0, @S0]>
  // CHECK: %[[F:.*]] = stablehlo.dot_general %[[X]], %[[V]], contracting_dims = [1] x [1] {disc.note = "not in 8 bits: contracts or makes fewer than 32 elements"} : (tensor<?x64xf32, [@S0, 64]>, tensor<2x64xf32, [2, 64]>) -> tensor<?x2xf32, [@S0, 2]>
  // CHECK: return %[[D]], {{.*}}, %[[E]], %[[F]]
  %e = stablehlo.dot_general %x, %p, contracting_dims = [1] x [0] : (tensor<?x64xf32, [@S0, 64]>, tensor<64x?xf32, [64, @S0]>) -> tensor<?x?xf32, [@S0, @S0]>
  %f = stablehlo.dot_general %x, %v, contracting_dims = [1] x [1] : (tensor<?x64xf32, [@S0, 64]>, tensor<2x64xf32, [2, 64]>) -> tensor<?x2xf32, [@S0, 2]>
  return %d, %g, %e, %f : tensor<?x32xf32, [@S0, 32]>, tensor<?x48xf32, [@S0, 48]>, tensor<?x?xf32, [@S0, @S0]>, tensor<?x2xf32, [@S0, 2]>
}

// -----
// What the kernel of a dot makes is rounded to bf16 before it crosses memory; behind a reduction, a row kernel makes it, and quantizes it.
// CHECK-LABEL: func.func @main
// CHECK: %[[H:.*]] = stablehlo.tanh
// CHECK: %[[N:.*]] = stablehlo.convert %[[H]] : (tensor<?x64xf32, [@S0, 64]>) -> tensor<?x64xbf16, [@S0, 64]>
// CHECK: stablehlo.reduce(%[[N]] init: %{{.*}}), (%[[N]] init: %{{.*}}) across dimensions = [1]
// CHECK: %[[F:.*]] = stablehlo.convert %[[N]] : (tensor<?x64xbf16, [@S0, 64]>) -> tensor<?x64xf32, [@S0, 64]>
// CHECK: stablehlo.subtract %[[F]]
// CHECK: %[[M:.*]] = stablehlo.multiply
// CHECK-NOT: bf16
// CHECK: return
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x64xf32, [@S0, 64]>) -> (tensor<?x64xf32, [@S0, 64]>) {
  %w = "disc.weight"() {name = "w"} : () -> tensor<64x64xf32, [64, 64]>
  %u = "disc.weight"() {name = "u"} : () -> tensor<64x64xf32, [64, 64]>
  %v = "disc.weight"() {name = "v"} : () -> tensor<64x64xf32, [64, 64]>
  %d = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : (tensor<?x64xf32, [@S0, 64]>, tensor<64x64xf32, [64, 64]>) -> tensor<?x64xf32, [@S0, 64]>
  %h = stablehlo.tanh %d : tensor<?x64xf32, [@S0, 64]>
  %e = stablehlo.dot_general %h, %u, contracting_dims = [1] x [1] : (tensor<?x64xf32, [@S0, 64]>, tensor<64x64xf32, [64, 64]>) -> tensor<?x64xf32, [@S0, 64]>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %sum = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<?x64xf32, [@S0, 64]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  %wide = "disc.broadcast_in_dim"(%sum) {dims = array<i64: 0>, maybe = array<i64>} : (tensor<?xf32, [@S0]>) -> tensor<?x64xf32, [@S0, 64]>
  %m = stablehlo.multiply %e, %wide : tensor<?x64xf32, [@S0, 64]>
  %r = stablehlo.dot_general %m, %v, contracting_dims = [1] x [1] : (tensor<?x64xf32, [@S0, 64]>, tensor<64x64xf32, [64, 64]>) -> tensor<?x64xf32, [@S0, 64]>
  return %r : tensor<?x64xf32, [@S0, 64]>
}
