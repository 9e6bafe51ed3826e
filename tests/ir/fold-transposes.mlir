// RUN: %disc_opt %s --passes=fold-transposes --stage=named | %filecheck %s

"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.1"} : () -> ()

// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[X:.*]]: tensor<2x?x3x4xf32, [2, @S0, 3, 4]>, %[[W:.*]]: tensor<5x4xf32, [5, 4]>
func.func @main(%x: tensor<2x?x3x4xf32, [2, @S0, 3, 4]>, %w: tensor<5x4xf32, [5, 4]>)
    -> (tensor<2x?x3x5xf32, [2, @S0, 3, 5]>, tensor<2x3x?x?xf32, [2, 3, @S0, @S0]>, tensor<5x2x?x3xf32, [5, 2, @S0, 3]>,
        tensor<?x2x3x5xf32, [@S0, 2, 3, 5]>) {
  // A linear layer.
  // CHECK: %[[LINEAR:.*]] = stablehlo.dot_general %[[X]], %[[W]], contracting_dims = [3] x [1]
  %wt = stablehlo.transpose %w, dims = [1, 0] : (tensor<5x4xf32, [5, 4]>) -> tensor<4x5xf32, [4, 5]>
  %r0 = stablehlo.dot_general %x, %wt, contracting_dims = [3] x [0] : (tensor<2x?x3x4xf32, [2, @S0, 3, 4]>, tensor<4x5xf32, [4, 5]>) -> tensor<2x?x3x5xf32, [2, @S0, 3, 5]>

  // The heads of an attention: both operands are read where they lie, also the scaled one.
  // CHECK: %[[SCALED:.*]] = stablehlo.multiply %[[X]], %{{.*}} : tensor<2x?x3x4xf32, [2, @S0, 3, 4]>
  // CHECK: %[[SCORES:.*]] = stablehlo.dot_general %[[SCALED]], %[[X]], batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3]
  %q = stablehlo.transpose %x, dims = [0, 2, 1, 3] : (tensor<2x?x3x4xf32, [2, @S0, 3, 4]>) -> tensor<2x3x?x4xf32, [2, 3, @S0, 4]>
  %half = stablehlo.constant dense<0.5> : tensor<f32>
  %halves = "disc.broadcast_in_dim"(%half) {dims = array<i64>, maybe = array<i64>} : (tensor<f32>) -> tensor<2x3x?x4xf32, [2, 3, @S0, 4]>
  %qs = stablehlo.multiply %q, %halves : tensor<2x3x?x4xf32, [2, 3, @S0, 4]>
  %k = stablehlo.transpose %x, dims = [0, 2, 3, 1] : (tensor<2x?x3x4xf32, [2, @S0, 3, 4]>) -> tensor<2x3x4x?xf32, [2, 3, 4, @S0]>
  %r1 = stablehlo.dot_general %qs, %k, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2] : (tensor<2x3x?x4xf32, [2, 3, @S0, 4]>, tensor<2x3x4x?xf32, [2, 3, 4, @S0]>) -> tensor<2x3x?x?xf32, [2, 3, @S0, @S0]>

  // The sides change places.
  // CHECK: %[[SWAPPED:.*]] = stablehlo.dot_general %[[W]], %[[X]], contracting_dims = [1] x [3]
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [3] x [1] : (tensor<2x?x3x4xf32, [2, @S0, 3, 4]>, tensor<5x4xf32, [5, 4]>) -> tensor<2x?x3x5xf32, [2, @S0, 3, 5]>
  %r2 = stablehlo.transpose %0, dims = [3, 0, 1, 2] : (tensor<2x?x3x5xf32, [2, @S0, 3, 5]>) -> tensor<5x2x?x3xf32, [5, 2, @S0, 3]>

  // The free dims would come out in another order: left alone.
  // CHECK: %[[MOVED:.*]] = stablehlo.transpose %[[X]], dims = [1, 0, 2, 3]
  // CHECK: %[[LEFT:.*]] = stablehlo.dot_general %[[MOVED]], %[[W]], contracting_dims = [3] x [1]
  %1 = stablehlo.transpose %x, dims = [1, 0, 2, 3] : (tensor<2x?x3x4xf32, [2, @S0, 3, 4]>) -> tensor<?x2x3x4xf32, [@S0, 2, 3, 4]>
  %r3 = stablehlo.dot_general %1, %w, contracting_dims = [3] x [1] : (tensor<?x2x3x4xf32, [@S0, 2, 3, 4]>, tensor<5x4xf32, [5, 4]>) -> tensor<?x2x3x5xf32, [@S0, 2, 3, 5]>

  // CHECK: return %[[LINEAR]], %[[SCORES]], %[[SWAPPED]], %[[LEFT]] :
  return %r0, %r1, %r2, %r3 : tensor<2x?x3x5xf32, [2, @S0, 3, 5]>, tensor<2x3x?x?xf32, [2, 3, @S0, @S0]>, tensor<5x2x?x3xf32, [5, 2, @S0, 3]>,
    tensor<?x2x3x5xf32, [@S0, 2, 3, 5]>
}
