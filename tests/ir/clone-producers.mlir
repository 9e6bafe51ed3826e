// RUN: %disc_opt %s --passes=clone-producers --stage=named | %filecheck %s

// Every layer computes the causal mask; the padding mask, which is smaller and needs a gather, is made once and read by both.
// CHECK-LABEL: func.func @main
// CHECK: %[[P:.*]] = "disc.gather"
// CHECK-NOT: stablehlo.compare
// CHECK: stablehlo.dot_general
// CHECK: stablehlo.compare LE
// CHECK: "disc.broadcast_in_dim"(%[[P]])
// CHECK: %[[M1:.*]] = stablehlo.and
// CHECK: stablehlo.select %[[M1]]
// CHECK: stablehlo.dot_general
// CHECK: stablehlo.compare LE
// CHECK: "disc.broadcast_in_dim"(%[[P]])
// CHECK: %[[M2:.*]] = stablehlo.and
// CHECK: stablehlo.select %[[M2]]
// CHECK-NOT: stablehlo.compare
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x?xf32, [@S0, @S0]>, %table: tensor<2xi1, [2]>, %ids: tensor<?x1xi64, [@S0, 1]>) -> (tensor<?x?xf32, [@S0, @S0]>) {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %lows = "disc.broadcast_in_dim"(%low) {dims = array<i64>, maybe = array<i64>} : (tensor<f32>) -> tensor<?x?xf32, [@S0, @S0]>
  %i = "disc.iota"() {dim = 0 : i64} : () -> tensor<?xi64, [@S0]>
  %column = "disc.broadcast_in_dim"(%i) {dims = array<i64: 1>, maybe = array<i64>} : (tensor<?xi64, [@S0]>) -> tensor<?x?xi64, [@S0, @S0]>
  %row = "disc.broadcast_in_dim"(%i) {dims = array<i64: 0>, maybe = array<i64>} : (tensor<?xi64, [@S0]>) -> tensor<?x?xi64, [@S0, @S0]>
  %causal = stablehlo.compare LE, %column, %row : (tensor<?x?xi64, [@S0, @S0]>, tensor<?x?xi64, [@S0, @S0]>) -> tensor<?x?xi1, [@S0, @S0]>
  %p = "disc.gather"(%table, %ids) {dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, sizes = ["1"]} : (tensor<2xi1, [2]>, tensor<?x1xi64, [@S0, 1]>) -> tensor<?xi1, [@S0]>
  %padding = "disc.broadcast_in_dim"(%p) {dims = array<i64: 1>, maybe = array<i64>} : (tensor<?xi1, [@S0]>) -> tensor<?x?xi1, [@S0, @S0]>
  %mask = stablehlo.and %causal, %padding : tensor<?x?xi1, [@S0, @S0]>
  %s1 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<?x?xf32, [@S0, @S0]>, tensor<?x?xf32, [@S0, @S0]>) -> tensor<?x?xf32, [@S0, @S0]>
  %y1 = stablehlo.select %mask, %s1, %lows : tensor<?x?xi1, [@S0, @S0]>, tensor<?x?xf32, [@S0, @S0]>
  %s2 = stablehlo.dot_general %y1, %x, contracting_dims = [1] x [0] : (tensor<?x?xf32, [@S0, @S0]>, tensor<?x?xf32, [@S0, @S0]>) -> tensor<?x?xf32, [@S0, @S0]>
  %y2 = stablehlo.select %mask, %s2, %lows : tensor<?x?xi1, [@S0, @S0]>, tensor<?x?xf32, [@S0, @S0]>
  return %y2 : tensor<?x?xf32, [@S0, @S0]>
}

// -----
// A mask over a bias: the bias is gathered once, and stored in the order in which rows read it.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.transpose{{.*}}disc.store
// CHECK: stablehlo.dot_general
// CHECK: stablehlo.select
// CHECK: stablehlo.add
// CHECK: stablehlo.dot_general
// CHECK: stablehlo.select
// CHECK: stablehlo.add
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg0.1"} : () -> ()
func.func @main(%x: tensor<?x?x?xf32, [@S0, @S1, @S1]>, %mask: tensor<?x?xi1, [@S0, @S1]>, %table: tensor<32x8xf32, [32, 8]>) -> (tensor<?x?x?xf32, [@S0, @S1, @S1]>) {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %lows = "disc.broadcast_in_dim"(%low) {dims = array<i64>, maybe = array<i64>} : (tensor<f32>) -> tensor<?x?x?xf32, [@S0, @S1, @S1]>
  %i = "disc.iota"() {dim = 0 : i64} : () -> tensor<?x?xi64, [@S1, @S1]>
  %g = "disc.gather"(%table, %i) {dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0], index_vector_dim = 2>, sizes = ["1", "1"]} : (tensor<32x8xf32, [32, 8]>, tensor<?x?xi64, [@S1, @S1]>) -> tensor<?x?xf32, [@S1, @S1]>
  %t = stablehlo.transpose %g, dims = [1, 0] : (tensor<?x?xf32, [@S1, @S1]>) -> tensor<?x?xf32, [@S1, @S1]>
  %bias = "disc.broadcast_in_dim"(%t) {dims = array<i64: 1, 2>, maybe = array<i64>} : (tensor<?x?xf32, [@S1, @S1]>) -> tensor<?x?x?xf32, [@S0, @S1, @S1]>
  %masks = "disc.broadcast_in_dim"(%mask) {dims = array<i64: 0, 2>, maybe = array<i64>} : (tensor<?x?xi1, [@S0, @S1]>) -> tensor<?x?x?xi1, [@S0, @S1, @S1]>
  %b = stablehlo.select %masks, %bias, %lows : tensor<?x?x?xi1, [@S0, @S1, @S1]>, tensor<?x?x?xf32, [@S0, @S1, @S1]>
  %s1 = stablehlo.dot_general %x, %x, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<?x?x?xf32, [@S0, @S1, @S1]>, tensor<?x?x?xf32, [@S0, @S1, @S1]>) -> tensor<?x?x?xf32, [@S0, @S1, @S1]>
  %y1 = stablehlo.add %s1, %b : tensor<?x?x?xf32, [@S0, @S1, @S1]>
  %s2 = stablehlo.dot_general %y1, %x, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<?x?x?xf32, [@S0, @S1, @S1]>, tensor<?x?x?xf32, [@S0, @S1, @S1]>) -> tensor<?x?x?xf32, [@S0, @S1, @S1]>
  %y2 = stablehlo.add %s2, %b : tensor<?x?x?xf32, [@S0, @S1, @S1]>
  return %y2 : tensor<?x?x?xf32, [@S0, @S1, @S1]>
}

// -----
// What is dear to compute, and what is made from a value of as many elements, stays one value.
// CHECK-LABEL: func.func @main
// CHECK-COUNT-1: stablehlo.exponential
// CHECK-COUNT-1: stablehlo.negate
// CHECK: stablehlo.dot_general
// CHECK-NOT: stablehlo.exponential
// CHECK-NOT: stablehlo.negate
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x?xf32, [@S0, @S0]>, %r: tensor<?xf32, [@S0]>) -> (tensor<?x?xf32, [@S0, @S0]>) {
  %rb = "disc.broadcast_in_dim"(%r) {dims = array<i64: 1>, maybe = array<i64>} : (tensor<?xf32, [@S0]>) -> tensor<?x?xf32, [@S0, @S0]>
  %e = stablehlo.exponential %rb : tensor<?x?xf32, [@S0, @S0]>
  %n = stablehlo.negate %x : tensor<?x?xf32, [@S0, @S0]>
  %s1 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<?x?xf32, [@S0, @S0]>, tensor<?x?xf32, [@S0, @S0]>) -> tensor<?x?xf32, [@S0, @S0]>
  %a1 = stablehlo.add %s1, %e : tensor<?x?xf32, [@S0, @S0]>
  %y1 = stablehlo.multiply %a1, %n : tensor<?x?xf32, [@S0, @S0]>
  %s2 = stablehlo.dot_general %y1, %x, contracting_dims = [1] x [0] : (tensor<?x?xf32, [@S0, @S0]>, tensor<?x?xf32, [@S0, @S0]>) -> tensor<?x?xf32, [@S0, @S0]>
  %a2 = stablehlo.add %s2, %e : tensor<?x?xf32, [@S0, @S0]>
  %y2 = stablehlo.multiply %a2, %n : tensor<?x?xf32, [@S0, @S0]>
  return %y2 : tensor<?x?xf32, [@S0, @S0]>
}
