// RUN: %disc_opt %s --passes=simplify --stage=named | %filecheck %s

"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()

// A sum over classes of which one at most counts; what else is asked does not depend on the class.
// CHECK-LABEL: func.func @main
// CHECK-SAME: (%[[L:.*]]: tensor<?xi64, [@S0]>, %[[OK:.*]]: tensor<?x1xi1, [@S0, 1]>, %[[V:.*]]: tensor<f32>
func.func @main(%label: tensor<?xi64, [@S0]>, %valid: tensor<?x1xi1, [@S0, 1]>, %value: tensor<f32>, %each: tensor<?x7xf32, [@S0, 7]>)
    -> (tensor<?xf32, [@S0]>, tensor<?xf32, [@S0]>, tensor<?xf32, [@S0]>, tensor<?xf32, [@S0]>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %lowest = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %numbers = "disc.iota"() {dim = 0 : i64} : () -> tensor<7xi64, [7]>
  %classes = "disc.broadcast_in_dim"(%numbers) {dims = array<i64: 1>, maybe = array<i64>} : (tensor<7xi64, [7]>) -> tensor<?x7xi64, [@S0, 7]>
  %labels = "disc.broadcast_in_dim"(%label) {dims = array<i64: 0>, maybe = array<i64>} : (tensor<?xi64, [@S0]>) -> tensor<?x7xi64, [@S0, 7]>
  %hot = stablehlo.compare EQ, %classes, %labels : (tensor<?x7xi64, [@S0, 7]>, tensor<?x7xi64, [@S0, 7]>) -> tensor<?x7xi1, [@S0, 7]>
  %rows = "disc.broadcast_in_dim"(%valid) {dims = array<i64: 0, 1>, maybe = array<i64>} : (tensor<?x1xi1, [@S0, 1]>) -> tensor<?x7xi1, [@S0, 7]>
  %both = stablehlo.and %hot, %rows : tensor<?x7xi1, [@S0, 7]>
  %values = "disc.broadcast_in_dim"(%value) {dims = array<i64>, maybe = array<i64>} : (tensor<f32>) -> tensor<?x7xf32, [@S0, 7]>
  %zeros = "disc.broadcast_in_dim"(%zero) {dims = array<i64>, maybe = array<i64>} : (tensor<f32>) -> tensor<?x7xf32, [@S0, 7]>
  %ones = "disc.broadcast_in_dim"(%one) {dims = array<i64>, maybe = array<i64>} : (tensor<f32>) -> tensor<?x7xf32, [@S0, 7]>

  // CHECK-DAG: %[[LOW:.*]] = stablehlo.compare GE, %[[L]]
  // CHECK-DAG: %[[HIGH:.*]] = stablehlo.compare LE, %[[L]]
  // CHECK: %[[IN:.*]] = stablehlo.and %[[LOW]], %[[HIGH]]
  // CHECK: %[[ROW:.*]] = "disc.reshape"(%[[OK]])
  // CHECK: %[[BOTH:.*]] = stablehlo.and %[[IN]], %[[ROW]]
  // CHECK: %[[VALUE:.*]] = "disc.broadcast_in_dim"(%[[V]])
  // CHECK: %[[CHOSEN:.*]] = stablehlo.select %[[BOTH]], %[[VALUE]]
  // CHECK: %[[R0:.*]] = stablehlo.add %[[CHOSEN]]
  %0 = stablehlo.select %both, %values, %zeros : tensor<?x7xi1, [@S0, 7]>, tensor<?x7xf32, [@S0, 7]>
  %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<?x7xf32, [@S0, 7]>, tensor<f32>) -> tensor<?xf32, [@S0]>

  // Values of each class; what is 1 elsewhere; the largest instead of the sum: all classes count.
  // CHECK: %[[R1:.*]] = stablehlo.reduce({{.*}}) applies stablehlo.add
  // CHECK: %[[R2:.*]] = stablehlo.reduce({{.*}}) applies stablehlo.add
  // CHECK: %[[R3:.*]] = stablehlo.reduce({{.*}}) applies stablehlo.maximum
  // CHECK: return %[[R0]], %[[R1]], %[[R2]], %[[R3]]
  %2 = stablehlo.select %both, %each, %zeros : tensor<?x7xi1, [@S0, 7]>, tensor<?x7xf32, [@S0, 7]>
  %3 = stablehlo.reduce(%2 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<?x7xf32, [@S0, 7]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  %4 = stablehlo.select %both, %values, %ones : tensor<?x7xi1, [@S0, 7]>, tensor<?x7xf32, [@S0, 7]>
  %5 = stablehlo.reduce(%4 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<?x7xf32, [@S0, 7]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  %6 = stablehlo.reduce(%0 init: %lowest) applies stablehlo.maximum across dimensions = [1] : (tensor<?x7xf32, [@S0, 7]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  return %1, %3, %5, %6 : tensor<?xf32, [@S0]>, tensor<?xf32, [@S0]>, tensor<?xf32, [@S0]>, tensor<?xf32, [@S0]>
}
