// RUN: %disc_opt %s --passes=split-batch --stage=named | %filecheck %s

"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg0.2"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S2", min = 0 : i64, divisor = 4 : i64, expr = "S0 * 4"} : () -> ()

// Products over batch and heads as one dim, a gathered bias, a softmax over the dims apart, another product: nothing is merged any more.
// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[Q:.*]]: tensor<?x4x?x16xf32, [@S0, 4, @S1, 16]>, %[[T:.*]]: tensor<4x16x8xf32, [4, 16, 8]>, %[[I:.*]]: tensor<?x?xi64, [@S1, @S1]>
func.func @main(%q: tensor<?x4x?x16xf32, [@S0, 4, @S1, 16]>, %t: tensor<4x16x8xf32, [4, 16, 8]>, %i: tensor<?x?xi64, [@S1, @S1]>)
    -> (tensor<?x4x?x?xf32, [@S0, 4, @S1, @S1]>, tensor<?x?x?xf32, [@S2, @S1, @S1]>) {
  // CHECK: %[[K:.*]] = stablehlo.transpose %[[Q]], dims = [0, 1, 3, 2]
  // CHECK: %[[S:.*]] = stablehlo.dot_general %[[Q]], %[[K]], batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2] : {{.*}} -> tensor<?x4x?x?xf32, [@S0, 4, @S1, @S1]>
  %a = "disc.reshape"(%q) : (tensor<?x4x?x16xf32, [@S0, 4, @S1, 16]>) -> tensor<?x?x16xf32, [@S2, @S1, 16]>
  %k = stablehlo.transpose %a, dims = [0, 2, 1] : (tensor<?x?x16xf32, [@S2, @S1, 16]>) -> tensor<?x16x?xf32, [@S2, 16, @S1]>
  %s = stablehlo.dot_general %a, %k, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<?x?x16xf32, [@S2, @S1, 16]>, tensor<?x16x?xf32, [@S2, 16, @S1]>) -> tensor<?x?x?xf32, [@S2, @S1, @S1]>

  // CHECK: %[[TB:.*]] = "disc.broadcast_in_dim"(%[[T]])
  // CHECK: %[[TR:.*]] = "disc.reshape"(%[[TB]]) : {{.*}} -> tensor<?x4x16x8xf32, [@S0, 4, 16, 8]>
  // CHECK: %[[D:.*]] = stablehlo.dot_general %[[Q]], %[[TR]], batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2]
  // CHECK: %[[IB:.*]] = "disc.broadcast_in_dim"(%[[I]]) {dims = array<i64: 2, 3>, maybe = array<i64>}
  // CHECK: %[[B:.*]] = "disc.gather"(%[[D]], %[[IB]])
  // CHECK-SAME: collapsed_slice_dims = [3], operand_batching_dims = [0, 1, 2], start_indices_batching_dims = [0, 1, 2], start_index_map = [3], index_vector_dim = 4>, sizes = ["1", "1", "1", "1"]
  %tb = "disc.broadcast_in_dim"(%t) {dims = array<i64: 1, 3, 5>, maybe = array<i64>} : (tensor<4x16x8xf32, [4, 16, 8]>) -> tensor<?x4x1x16x1x8xf32, [@S0, 4, 1, 16, 1, 8]>
  %tr = "disc.reshape"(%tb) : (tensor<?x4x1x16x1x8xf32, [@S0, 4, 1, 16, 1, 8]>) -> tensor<?x16x8xf32, [@S2, 16, 8]>
  %d = stablehlo.dot_general %a, %tr, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<?x?x16xf32, [@S2, @S1, 16]>, tensor<?x16x8xf32, [@S2, 16, 8]>) -> tensor<?x?x8xf32, [@S2, @S1, 8]>
  %ib = "disc.broadcast_in_dim"(%i) {dims = array<i64: 1, 2>, maybe = array<i64>} : (tensor<?x?xi64, [@S1, @S1]>) -> tensor<?x?x?xi64, [@S2, @S1, @S1]>
  %b = "disc.gather"(%d, %ib) {dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [2], operand_batching_dims = [0, 1], start_indices_batching_dims = [0, 1], start_index_map = [2], index_vector_dim = 3>, sizes = ["1", "1", "1"]} : (tensor<?x?x8xf32, [@S2, @S1, 8]>, tensor<?x?x?xi64, [@S2, @S1, @S1]>) -> tensor<?x?x?xf32, [@S2, @S1, @S1]>

  // CHECK: %[[SUM:.*]] = stablehlo.add %[[S]], %[[B]] : tensor<?x4x?x?xf32, [@S0, 4, @S1, @S1]>
  // CHECK: %[[M:.*]] = stablehlo.reduce(%[[SUM]] init: {{.*}}) applies stablehlo.maximum across dimensions = [3]
  // CHECK: %[[MB:.*]] = "disc.broadcast_in_dim"(%[[M]]) {dims = array<i64: 0, 1, 2>, maybe = array<i64>} : {{.*}} -> tensor<?x4x?x?xf32, [@S0, 4, @S1, @S1]>
  // CHECK: %[[E:.*]] = stablehlo.subtract %[[SUM]], %[[MB]]
  // CHECK: %[[R:.*]] = stablehlo.multiply %[[E]], %[[E]]
  %sum = stablehlo.add %s, %b : tensor<?x?x?xf32, [@S2, @S1, @S1]>
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %m = stablehlo.reduce(%sum init: %low) applies stablehlo.maximum across dimensions = [2] : (tensor<?x?x?xf32, [@S2, @S1, @S1]>, tensor<f32>) -> tensor<?x?xf32, [@S2, @S1]>
  %mb = "disc.broadcast_in_dim"(%m) {dims = array<i64: 0, 1>, maybe = array<i64>} : (tensor<?x?xf32, [@S2, @S1]>) -> tensor<?x?x?xf32, [@S2, @S1, @S1]>
  %e = stablehlo.subtract %sum, %mb : tensor<?x?x?xf32, [@S2, @S1, @S1]>
  %r = "disc.reshape"(%e) : (tensor<?x?x?xf32, [@S2, @S1, @S1]>) -> tensor<?x4x?x?xf32, [@S0, 4, @S1, @S1]>
  %y = stablehlo.multiply %r, %r : tensor<?x4x?x?xf32, [@S0, 4, @S1, @S1]>

  // Never split again: it stays merged.
  // CHECK: %[[A:.*]] = "disc.reshape"(%[[Q]]) : {{.*}} -> tensor<?x?x16xf32, [@S2, @S1, 16]>
  // CHECK: %[[P:.*]] = stablehlo.dot_general %[[A]], %[[A]], batching_dims = [0] x [0], contracting_dims = [2] x [2]
  // CHECK: return %[[R]], %[[P]]
  %o = "disc.reshape"(%q) : (tensor<?x4x?x16xf32, [@S0, 4, @S1, 16]>) -> tensor<?x?x16xf32, [@S2, @S1, 16]>
  %p = stablehlo.dot_general %o, %o, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<?x?x16xf32, [@S2, @S1, 16]>, tensor<?x?x16xf32, [@S2, @S1, 16]>) -> tensor<?x?x?xf32, [@S2, @S1, @S1]>
  return %y, %p : tensor<?x4x?x?xf32, [@S0, 4, @S1, @S1]>, tensor<?x?x?xf32, [@S2, @S1, @S1]>
}

// -----
// Split into other dims than those that were merged, or on the way to no product: nothing to do.
// CHECK-LABEL: func.func @main
// CHECK: "disc.reshape"(%{{.*}}) : {{.*}} -> tensor<?x?x16xf32, [@S2, @S1, 16]>
// CHECK: stablehlo.dot_general {{.*}}, batching_dims = [0] x [0]
// CHECK: stablehlo.negate %{{.*}} : tensor<?x?x16xf32, [@S2, @S1, 16]>
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg0.2"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S2", min = 0 : i64, divisor = 4 : i64, expr = "S0 * 4"} : () -> ()
func.func @main(%q: tensor<?x4x?x16xf32, [@S0, 4, @S1, 16]>)
    -> (tensor<4x?x?x?xf32, [4, @S0, @S1, @S1]>, tensor<?x4x?x16xf32, [@S0, 4, @S1, 16]>) {
  %a = "disc.reshape"(%q) : (tensor<?x4x?x16xf32, [@S0, 4, @S1, 16]>) -> tensor<?x?x16xf32, [@S2, @S1, 16]>
  %s = stablehlo.dot_general %a, %a, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<?x?x16xf32, [@S2, @S1, 16]>, tensor<?x?x16xf32, [@S2, @S1, 16]>) -> tensor<?x?x?xf32, [@S2, @S1, @S1]>
  %r = "disc.reshape"(%s) : (tensor<?x?x?xf32, [@S2, @S1, @S1]>) -> tensor<4x?x?x?xf32, [4, @S0, @S1, @S1]>
  %n = stablehlo.negate %a : tensor<?x?x16xf32, [@S2, @S1, 16]>
  %t = "disc.reshape"(%n) : (tensor<?x?x16xf32, [@S2, @S1, 16]>) -> tensor<?x4x?x16xf32, [@S0, 4, @S1, 16]>
  return %r, %t : tensor<4x?x?x?xf32, [4, @S0, @S1, @S1]>, tensor<?x4x?x16xf32, [@S0, 4, @S1, 16]>
}
