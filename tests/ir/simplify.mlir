// RUN: %disc_opt %s --passes=simplify --stage=named | %filecheck %s

"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 4 : i64, expr = "S0 * 4"} : () -> ()

// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[X:.*]]: tensor<?x4xf32, [@S0, 4]>, %[[P:.*]]: tensor<?x4xi1, [@S0, 4]>, %[[B:.*]]: tensor<2x?x4xf32, [2, @S0, 4]>, %[[W:.*]]: tensor<4x3xf32, [4, 3]>
func.func @main(%x: tensor<?x4xf32, [@S0, 4]>, %p: tensor<?x4xi1, [@S0, 4]>, %b: tensor<2x?x4xf32, [2, @S0, 4]>, %w: tensor<4x3xf32, [4, 3]>)
    -> (tensor<?x4xf32, [@S0, 4]>, tensor<?x4xf32, [@S0, 4]>, tensor<?x4xf32, [@S0, 4]>, tensor<?x2x2xf32, [@S0, 2, 2]>,
        tensor<?x4xf32, [@S0, 4]>, tensor<2x?x4xf32, [2, @S0, 4]>, tensor<?x4xf32, [@S0, 4]>, tensor<2x?x3xf32, [2, @S0, 3]>,
        tensor<?x4xf32, [@S0, 4]>, tensor<?x4xf32, [@S0, 4]>, tensor<?x4xi1, [@S0, 4]>) {
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %minus_zero = stablehlo.constant dense<-0.0> : tensor<f32>
  %eight = stablehlo.constant dense<8.0> : tensor<f32>
  %two = stablehlo.constant dense<2.0> : tensor<f32>
  %ones = "disc.broadcast_in_dim"(%one) {dims = array<i64>, maybe = array<i64>} : (tensor<f32>) -> tensor<?x4xf32, [@S0, 4]>
  %zeros = "disc.broadcast_in_dim"(%zero) {dims = array<i64>, maybe = array<i64>} : (tensor<f32>) -> tensor<?x4xf32, [@S0, 4]>
  %minus_zeros = "disc.broadcast_in_dim"(%minus_zero) {dims = array<i64>, maybe = array<i64>} : (tensor<f32>) -> tensor<?x4xf32, [@S0, 4]>
  %eights = "disc.broadcast_in_dim"(%eight) {dims = array<i64>, maybe = array<i64>} : (tensor<f32>) -> tensor<?x4xf32, [@S0, 4]>
  %twos = "disc.broadcast_in_dim"(%two) {dims = array<i64>, maybe = array<i64>} : (tensor<f32>) -> tensor<?x4xf32, [@S0, 4]>

  // x * 1 - 0 + -0 is x; x + 0 is not.
  // CHECK: %[[ADD:.*]] = stablehlo.add %[[X]], %{{.*}}
  %0 = stablehlo.multiply %x, %ones : tensor<?x4xf32, [@S0, 4]>
  %1 = stablehlo.subtract %0, %zeros : tensor<?x4xf32, [@S0, 4]>
  %2 = stablehlo.add %minus_zeros, %1 : tensor<?x4xf32, [@S0, 4]>
  %r0 = stablehlo.add %2, %zeros : tensor<?x4xf32, [@S0, 4]>

  // x / 8 is x * 0.125, x ^ 2 is x * x.
  // CHECK: %[[DIV:.*]] = stablehlo.multiply %[[X]], %{{.*}}
  // CHECK: %[[POW:.*]] = stablehlo.multiply %[[X]], %[[X]]
  %r1 = stablehlo.divide %x, %eights : tensor<?x4xf32, [@S0, 4]>
  %r2 = stablehlo.power %x, %twos : tensor<?x4xf32, [@S0, 4]>

  // Two reshapes are one; an equal one is computed once.
  // CHECK: %[[RESHAPE:.*]] = "disc.reshape"(%[[X]])
  %3 = "disc.reshape"(%x) : (tensor<?x4xf32, [@S0, 4]>) -> tensor<?xf32, [@S1]>
  %r3 = "disc.reshape"(%3) : (tensor<?xf32, [@S1]>) -> tensor<?x2x2xf32, [@S0, 2, 2]>

  // reshape(negate(reshape)) meets itself.
  // CHECK: %[[NEG:.*]] = stablehlo.negate %[[X]]
  %4 = stablehlo.negate %3 : tensor<?xf32, [@S1]>
  %r4 = "disc.reshape"(%4) : (tensor<?xf32, [@S1]>) -> tensor<?x4xf32, [@S0, 4]>

  %5 = stablehlo.transpose %b, dims = [1, 2, 0] : (tensor<2x?x4xf32, [2, @S0, 4]>) -> tensor<?x4x2xf32, [@S0, 4, 2]>
  %r5 = stablehlo.transpose %5, dims = [2, 0, 1] : (tensor<?x4x2xf32, [@S0, 4, 2]>) -> tensor<2x?x4xf32, [2, @S0, 4]>

  // CHECK: %[[SELECT:.*]] = stablehlo.select %[[P]], %[[POW]], %[[X]]
  %6 = stablehlo.not %p : tensor<?x4xi1, [@S0, 4]>
  %r6 = stablehlo.select %6, %x, %r2 : tensor<?x4xi1, [@S0, 4]>, tensor<?x4xf32, [@S0, 4]>

  // A weight repeated over the batch makes no batched product.
  // CHECK: %[[DOT:.*]] = stablehlo.dot_general %[[B]], %[[W]], contracting_dims = [2] x [0]
  %7 = "disc.broadcast_in_dim"(%w) {dims = array<i64: 1, 2>, maybe = array<i64>} : (tensor<4x3xf32, [4, 3]>) -> tensor<2x4x3xf32, [2, 4, 3]>
  %r7 = stablehlo.dot_general %b, %7, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<2x?x4xf32, [2, @S0, 4]>, tensor<2x4x3xf32, [2, 4, 3]>) -> tensor<2x?x3xf32, [2, @S0, 3]>

  // The dim of size 1 that a reduction keeps is part of the broadcast.
  // CHECK: %[[SUM:.*]] = stablehlo.reduce
  // CHECK: %[[SPREAD:.*]] = "disc.broadcast_in_dim"(%[[SUM]]) {dims = array<i64: 0>, maybe = array<i64>}
  %8 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<?x4xf32, [@S0, 4]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  %9 = "disc.reshape"(%8) : (tensor<?xf32, [@S0]>) -> tensor<?x1xf32, [@S0, 1]>
  %r8 = "disc.broadcast_in_dim"(%9) {dims = array<i64: 0, 1>, maybe = array<i64: 0>} : (tensor<?x1xf32, [@S0, 1]>) -> tensor<?x4xf32, [@S0, 4]>

  // f32 → f64 → f32 loses nothing; 1 + 2 is 3.
  // CHECK: stablehlo.constant dense<3.000000e+00>
  %10 = stablehlo.convert %x : (tensor<?x4xf32, [@S0, 4]>) -> tensor<?x4xf64, [@S0, 4]>
  %11 = stablehlo.convert %10 : (tensor<?x4xf64, [@S0, 4]>) -> tensor<?x4xf32, [@S0, 4]>
  %12 = stablehlo.add %ones, %twos : tensor<?x4xf32, [@S0, 4]>
  %r9 = stablehlo.maximum %11, %12 : tensor<?x4xf32, [@S0, 4]>

  // iota >= 0 masks nothing.
  %none = stablehlo.constant dense<0> : tensor<i64>
  %nones = "disc.broadcast_in_dim"(%none) {dims = array<i64>, maybe = array<i64>} : (tensor<i64>) -> tensor<?x4xi64, [@S0, 4]>
  %13 = "disc.iota"() {dim = 0 : i64} : () -> tensor<?x4xi64, [@S0, 4]>
  %14 = stablehlo.compare GE, %13, %nones : (tensor<?x4xi64, [@S0, 4]>, tensor<?x4xi64, [@S0, 4]>) -> tensor<?x4xi1, [@S0, 4]>
  %r10 = stablehlo.and %14, %p : tensor<?x4xi1, [@S0, 4]>

  // CHECK: return %[[ADD]], %[[DIV]], %[[POW]], %[[RESHAPE]], %[[NEG]], %[[B]], %[[SELECT]], %[[DOT]], %[[SPREAD]], %{{.*}}, %[[P]] :
  return %r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8, %r9, %r10 : tensor<?x4xf32, [@S0, 4]>, tensor<?x4xf32, [@S0, 4]>, tensor<?x4xf32, [@S0, 4]>,
    tensor<?x2x2xf32, [@S0, 2, 2]>, tensor<?x4xf32, [@S0, 4]>, tensor<2x?x4xf32, [2, @S0, 4]>, tensor<?x4xf32, [@S0, 4]>,
    tensor<2x?x3xf32, [2, @S0, 3]>, tensor<?x4xf32, [@S0, 4]>, tensor<?x4xf32, [@S0, 4]>, tensor<?x4xi1, [@S0, 4]>
}

// -----
// An element of the table for every place: all coordinates but one are the place itself, and become batching dims. The dim of the index
// vector, now of size 1, goes. A coordinate along a dim of another size stays an index.
// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[X:.*]]: tensor<?x3x5xf32, [@S0, 3, 5]>, %[[I:.*]]: tensor<?x3x4xi64, [@S0, 3, 4]>, %[[J:.*]]: tensor<?x2x5xi64, [@S0, 2, 5]>
// CHECK: %[[ONE:.*]] = "disc.gather"(%[[X]], %[[I]])
// CHECK-SAME: collapsed_slice_dims = [2], operand_batching_dims = [0, 1], start_indices_batching_dims = [0, 1], start_index_map = [2], index_vector_dim = 3>
// CHECK: %[[C:.*]] = stablehlo.concatenate %{{.*}}, %{{.*}}, dim = 3 : {{.*}} -> tensor<?x2x5x2xi64, [@S0, 2, 5, 2]>
// CHECK: %[[TWO:.*]] = "disc.gather"(%[[X]], %[[C]])
// CHECK-SAME: collapsed_slice_dims = [1, 2], operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1, 2], index_vector_dim = 3>
// CHECK: return %[[ONE]], %[[TWO]]
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x3x5xf32, [@S0, 3, 5]>, %i: tensor<?x3x4xi64, [@S0, 3, 4]>, %j: tensor<?x2x5xi64, [@S0, 2, 5]>)
    -> (tensor<?x3x4xf32, [@S0, 3, 4]>, tensor<?x2x5xf32, [@S0, 2, 5]>) {
  %0 = "disc.iota"() {dim = 0 : i64} : () -> tensor<?x3x4xi64, [@S0, 3, 4]>
  %1 = "disc.reshape"(%0) : (tensor<?x3x4xi64, [@S0, 3, 4]>) -> tensor<?x3x4x1xi64, [@S0, 3, 4, 1]>
  %2 = "disc.iota"() {dim = 1 : i64} : () -> tensor<?x3x4x1xi64, [@S0, 3, 4, 1]>
  %3 = "disc.reshape"(%i) : (tensor<?x3x4xi64, [@S0, 3, 4]>) -> tensor<?x3x4x1xi64, [@S0, 3, 4, 1]>
  %4 = stablehlo.concatenate %1, %2, %3, dim = 3 : (tensor<?x3x4x1xi64, [@S0, 3, 4, 1]>, tensor<?x3x4x1xi64, [@S0, 3, 4, 1]>, tensor<?x3x4x1xi64, [@S0, 3, 4, 1]>) -> tensor<?x3x4x3xi64, [@S0, 3, 4, 3]>
  %r0 = "disc.gather"(%x, %4) {dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1, 2], start_index_map = [0, 1, 2], index_vector_dim = 3>, sizes = ["1", "1", "1"]} : (tensor<?x3x5xf32, [@S0, 3, 5]>, tensor<?x3x4x3xi64, [@S0, 3, 4, 3]>) -> tensor<?x3x4xf32, [@S0, 3, 4]>
  %5 = "disc.iota"() {dim = 0 : i64} : () -> tensor<?x2x5x1xi64, [@S0, 2, 5, 1]>
  %6 = "disc.iota"() {dim = 1 : i64} : () -> tensor<?x2x5x1xi64, [@S0, 2, 5, 1]>
  %7 = "disc.reshape"(%j) : (tensor<?x2x5xi64, [@S0, 2, 5]>) -> tensor<?x2x5x1xi64, [@S0, 2, 5, 1]>
  %8 = stablehlo.concatenate %5, %6, %7, dim = 3 : (tensor<?x2x5x1xi64, [@S0, 2, 5, 1]>, tensor<?x2x5x1xi64, [@S0, 2, 5, 1]>, tensor<?x2x5x1xi64, [@S0, 2, 5, 1]>) -> tensor<?x2x5x3xi64, [@S0, 2, 5, 3]>
  %r1 = "disc.gather"(%x, %8) {dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1, 2], start_index_map = [0, 1, 2], index_vector_dim = 3>, sizes = ["1", "1", "1"]} : (tensor<?x3x5xf32, [@S0, 3, 5]>, tensor<?x2x5x3xi64, [@S0, 2, 5, 3]>) -> tensor<?x2x5xf32, [@S0, 2, 5]>
  return %r0, %r1 : tensor<?x3x4xf32, [@S0, 3, 4]>, tensor<?x2x5xf32, [@S0, 2, 5]>
}

// -----

// What is reversed twice along the same dims, in whichever order they stand; along others it is reversed.
// CHECK-LABEL: func.func @main
// CHECK: %[[R:.*]] = stablehlo.reverse %arg0, dims = [0]
// CHECK: %[[S:.*]] = stablehlo.reverse %[[R]], dims = [1]
// CHECK: return %arg0, %[[S]]
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x3xf32, [@S0, 3]>) -> (tensor<?x3xf32, [@S0, 3]>, tensor<?x3xf32, [@S0, 3]>) {
  %0 = stablehlo.reverse %x, dims = [0, 1] : tensor<?x3xf32, [@S0, 3]>
  %1 = stablehlo.reverse %0, dims = [1, 0] : tensor<?x3xf32, [@S0, 3]>
  %2 = stablehlo.reverse %x, dims = [0] : tensor<?x3xf32, [@S0, 3]>
  %3 = stablehlo.reverse %2, dims = [1] : tensor<?x3xf32, [@S0, 3]>
  return %1, %3 : tensor<?x3xf32, [@S0, 3]>, tensor<?x3xf32, [@S0, 3]>
}
