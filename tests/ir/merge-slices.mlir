// RUN: %disc_opt %s --passes=merge-slices --stage=named | %filecheck %s

"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()

// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[X:.*]]: tensor<?x4xf32, [@S0, 4]>
func.func @main(%x: tensor<?x4xf32, [@S0, 4]>)
    -> (tensor<2x?x2xf32, [2, @S0, 2]>, tensor<?x4xf32, [@S0, 4]>, tensor<?x2x2xf32, [@S0, 2, 2]>, tensor<?x6xf32, [@S0, 6]>,
        tensor<?x6xf32, [@S0, 6]>, tensor<?x6xf32, [@S0, 6]>, tensor<?x6xf32, [@S0, 6]>, tensor<?x4xf32, [@S0, 4]>,
        tensor<?x4xf32, [@S0, 4]>, tensor<?x6xf32, [@S0, 6]>, tensor<?x6xf32, [@S0, 6]>, tensor<?x12xf32, [@S0, 12]>,
        tensor<?x2xf32, [@S0, 2]>, tensor<?x2xf32, [@S0, 2]>) {
  // Bias and scale of a query, its heads split off; no bias for the key; a bias that the heads share out for the value, between layouts.
  // CHECK: %[[W:.*]] = "disc.weight"() {name = "w"}
  // CHECK: %[[QKV:.*]] = stablehlo.dot_general %[[X]], %[[W]]
  // CHECK: %[[BQ:.*]] = "disc.weight"() {name = "bq"} : () -> tensor<4xf32, [4]>
  // CHECK: %[[BV:.*]] = "disc.weight"() {name = "bv"} : () -> tensor<2x2xf32, [2, 2]>
  // CHECK: %[[NONE:.*]] = "disc.weight"() {name = "merged.scalars"} : () -> tensor<4xf32, [4]>
  // CHECK: %[[FLAT:.*]] = "disc.reshape"(%[[BV]]) : (tensor<2x2xf32, [2, 2]>) -> tensor<4xf32, [4]>
  // CHECK: %[[BIAS:.*]] = stablehlo.concatenate %[[BQ]], %[[NONE]], %[[FLAT]], dim = 0 : {{.*}} -> tensor<12xf32, [12]>
  // CHECK: %[[ADDEND:.*]] = "disc.broadcast_in_dim"(%[[BIAS]]) {dims = array<i64: 1>, maybe = array<i64>} : {{.*}} -> tensor<?x12xf32, [@S0, 12]>
  // CHECK: %[[BIASED:.*]] = stablehlo.add %[[QKV]], %[[ADDEND]]
  // CHECK: %[[SCALE:.*]] = "disc.weight"() {name = "merged.scalars.1"} : () -> tensor<12xf32, [12]>
  // CHECK: %[[FACTOR:.*]] = "disc.broadcast_in_dim"(%[[SCALE]])
  // CHECK: %[[SCALED:.*]] = stablehlo.multiply %[[BIASED]], %[[FACTOR]]
  // CHECK: %[[Q:.*]] = "disc.slice"(%[[SCALED]]) {starts = ["0", "0"]
  // CHECK: %[[K:.*]] = "disc.slice"(%[[SCALED]]) {starts = ["0", "4"]
  // CHECK: %[[V:.*]] = "disc.slice"(%[[SCALED]]) {starts = ["0", "8"]
  // CHECK: %[[HEADS:.*]] = "disc.reshape"(%[[Q]])
  // CHECK: %[[TURNED:.*]] = stablehlo.transpose %[[HEADS]], dims = [1, 0, 2]
  // CHECK: %[[VALUES:.*]] = "disc.reshape"(%[[V]])
  %w = "disc.weight"() {name = "w"} : () -> tensor<12x4xf32, [12, 4]>
  %y0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : (tensor<?x4xf32, [@S0, 4]>, tensor<12x4xf32, [12, 4]>) -> tensor<?x12xf32, [@S0, 12]>
  %q = "disc.slice"(%y0) {starts = ["0", "0"], strides = array<i64: 1, 1>} : (tensor<?x12xf32, [@S0, 12]>) -> tensor<?x4xf32, [@S0, 4]>
  %k = "disc.slice"(%y0) {starts = ["0", "4"], strides = array<i64: 1, 1>} : (tensor<?x12xf32, [@S0, 12]>) -> tensor<?x4xf32, [@S0, 4]>
  %v = "disc.slice"(%y0) {starts = ["0", "8"], strides = array<i64: 1, 1>} : (tensor<?x12xf32, [@S0, 12]>) -> tensor<?x4xf32, [@S0, 4]>
  %bq = "disc.weight"() {name = "bq"} : () -> tensor<4xf32, [4]>
  %q0 = "disc.broadcast_in_dim"(%bq) {dims = array<i64: 1>, maybe = array<i64>} : (tensor<4xf32, [4]>) -> tensor<?x4xf32, [@S0, 4]>
  %q1 = stablehlo.add %q0, %q : tensor<?x4xf32, [@S0, 4]>
  %q2 = "disc.reshape"(%q1) : (tensor<?x4xf32, [@S0, 4]>) -> tensor<?x2x2xf32, [@S0, 2, 2]>
  %q3 = stablehlo.transpose %q2, dims = [1, 0, 2] : (tensor<?x2x2xf32, [@S0, 2, 2]>) -> tensor<2x?x2xf32, [2, @S0, 2]>
  %c = stablehlo.constant dense<1.250000e-01> : tensor<f32>
  %q4 = "disc.broadcast_in_dim"(%c) {dims = array<i64>, maybe = array<i64>} : (tensor<f32>) -> tensor<2x?x2xf32, [2, @S0, 2]>
  %q5 = stablehlo.multiply %q3, %q4 : tensor<2x?x2xf32, [2, @S0, 2]>
  %v0 = "disc.reshape"(%v) : (tensor<?x4xf32, [@S0, 4]>) -> tensor<?x2x2xf32, [@S0, 2, 2]>
  %bv = "disc.weight"() {name = "bv"} : () -> tensor<2x2xf32, [2, 2]>
  %v1 = "disc.broadcast_in_dim"(%bv) {dims = array<i64: 1, 2>, maybe = array<i64>} : (tensor<2x2xf32, [2, 2]>) -> tensor<?x2x2xf32, [@S0, 2, 2]>
  %v2 = stablehlo.add %v0, %v1 : tensor<?x2x2xf32, [@S0, 2, 2]>

  // A step without a neutral element goes where all slices have it; equal scalars are one constant. The last step has no constant row.
  // CHECK: %[[Y:.*]] = stablehlo.dot_general %[[X]], %[[W]]
  // CHECK: %[[SPLAT:.*]] = stablehlo.constant dense<1.250000e-01> : tensor<f32>
  // CHECK: %[[LEFT:.*]] = "disc.broadcast_in_dim"(%[[SPLAT]]) {dims = array<i64>, maybe = array<i64>} : {{.*}} -> tensor<?x12xf32, [@S0, 12]>
  // CHECK: %[[REST:.*]] = stablehlo.subtract %[[LEFT]], %[[Y]]
  // CHECK: %[[R0:.*]] = "disc.slice"(%[[REST]]) {starts = ["0", "0"]
  // CHECK: %[[R1:.*]] = "disc.slice"(%[[REST]]) {starts = ["0", "6"]
  // CHECK: %[[OWN:.*]] = stablehlo.add %[[R1]], %[[R1]]
  %y1 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : (tensor<?x4xf32, [@S0, 4]>, tensor<12x4xf32, [12, 4]>) -> tensor<?x12xf32, [@S0, 12]>
  %a0 = "disc.slice"(%y1) {starts = ["0", "0"], strides = array<i64: 1, 1>} : (tensor<?x12xf32, [@S0, 12]>) -> tensor<?x6xf32, [@S0, 6]>
  %a1 = "disc.slice"(%y1) {starts = ["0", "6"], strides = array<i64: 1, 1>} : (tensor<?x12xf32, [@S0, 12]>) -> tensor<?x6xf32, [@S0, 6]>
  %a2 = "disc.broadcast_in_dim"(%c) {dims = array<i64>, maybe = array<i64>} : (tensor<f32>) -> tensor<?x6xf32, [@S0, 6]>
  %a3 = stablehlo.subtract %a2, %a0 : tensor<?x6xf32, [@S0, 6]>
  %a4 = stablehlo.subtract %a2, %a1 : tensor<?x6xf32, [@S0, 6]>
  %a5 = stablehlo.add %a4, %a4 : tensor<?x6xf32, [@S0, 6]>

  // Not all slices have it: it stays.
  // CHECK: stablehlo.dot_general
  // CHECK-NEXT: "disc.slice"
  // CHECK-NEXT: %[[LAST:.*]] = "disc.slice"
  // CHECK-NEXT: %[[HERE:.*]] = "disc.broadcast_in_dim"
  // CHECK-NEXT: stablehlo.subtract %[[HERE]], %[[LAST]]
  %y2 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : (tensor<?x4xf32, [@S0, 4]>, tensor<12x4xf32, [12, 4]>) -> tensor<?x12xf32, [@S0, 12]>
  %b0 = "disc.slice"(%y2) {starts = ["0", "0"], strides = array<i64: 1, 1>} : (tensor<?x12xf32, [@S0, 12]>) -> tensor<?x6xf32, [@S0, 6]>
  %b1 = "disc.slice"(%y2) {starts = ["0", "6"], strides = array<i64: 1, 1>} : (tensor<?x12xf32, [@S0, 12]>) -> tensor<?x6xf32, [@S0, 6]>
  %b2 = "disc.broadcast_in_dim"(%c) {dims = array<i64>, maybe = array<i64>} : (tensor<f32>) -> tensor<?x6xf32, [@S0, 6]>
  %b3 = stablehlo.subtract %b2, %b1 : tensor<?x6xf32, [@S0, 6]>

  // A gap between the slices, and something else that reads the dot: both stay.
  // CHECK: stablehlo.dot_general
  // CHECK-NEXT: "disc.slice"
  // CHECK-NEXT: "disc.slice"
  // CHECK-NEXT: stablehlo.add
  // CHECK: stablehlo.dot_general
  // CHECK-NEXT: "disc.slice"
  // CHECK-NEXT: "disc.slice"
  // CHECK-NEXT: stablehlo.add
  // CHECK: stablehlo.tanh
  %y3 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : (tensor<?x4xf32, [@S0, 4]>, tensor<12x4xf32, [12, 4]>) -> tensor<?x12xf32, [@S0, 12]>
  %d0 = "disc.slice"(%y3) {starts = ["0", "0"], strides = array<i64: 1, 1>} : (tensor<?x12xf32, [@S0, 12]>) -> tensor<?x4xf32, [@S0, 4]>
  %d1 = "disc.slice"(%y3) {starts = ["0", "8"], strides = array<i64: 1, 1>} : (tensor<?x12xf32, [@S0, 12]>) -> tensor<?x4xf32, [@S0, 4]>
  %d2 = stablehlo.add %d0, %q0 : tensor<?x4xf32, [@S0, 4]>
  %y4 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : (tensor<?x4xf32, [@S0, 4]>, tensor<12x4xf32, [12, 4]>) -> tensor<?x12xf32, [@S0, 12]>
  %e0 = "disc.slice"(%y4) {starts = ["0", "0"], strides = array<i64: 1, 1>} : (tensor<?x12xf32, [@S0, 12]>) -> tensor<?x6xf32, [@S0, 6]>
  %e1 = "disc.slice"(%y4) {starts = ["0", "6"], strides = array<i64: 1, 1>} : (tensor<?x12xf32, [@S0, 12]>) -> tensor<?x6xf32, [@S0, 6]>
  %e2 = stablehlo.add %e0, %a2 : tensor<?x6xf32, [@S0, 6]>
  %e3 = stablehlo.tanh %y4 : tensor<?x12xf32, [@S0, 12]>

  // No dot: nothing is saved.
  // CHECK: %[[TANH:.*]] = stablehlo.tanh %[[X]]
  // CHECK-NEXT: "disc.slice"(%[[TANH]])
  // CHECK-NEXT: "disc.slice"(%[[TANH]])
  %f = stablehlo.tanh %x : tensor<?x4xf32, [@S0, 4]>
  %f0 = "disc.slice"(%f) {starts = ["0", "0"], strides = array<i64: 1, 1>} : (tensor<?x4xf32, [@S0, 4]>) -> tensor<?x2xf32, [@S0, 2]>
  %f1 = "disc.slice"(%f) {starts = ["0", "2"], strides = array<i64: 1, 1>} : (tensor<?x4xf32, [@S0, 4]>) -> tensor<?x2xf32, [@S0, 2]>
  %f2 = "disc.broadcast_in_dim"(%c) {dims = array<i64>, maybe = array<i64>} : (tensor<f32>) -> tensor<?x2xf32, [@S0, 2]>
  %f3 = stablehlo.multiply %f0, %f2 : tensor<?x2xf32, [@S0, 2]>

  // CHECK: return %[[TURNED]], %[[K]], %[[VALUES]], %[[R0]], %[[OWN]],
  return %q5, %k, %v2, %a3, %a5, %b0, %b3, %d1, %d2, %e1, %e2, %e3, %f1, %f3 :
    tensor<2x?x2xf32, [2, @S0, 2]>, tensor<?x4xf32, [@S0, 4]>, tensor<?x2x2xf32, [@S0, 2, 2]>, tensor<?x6xf32, [@S0, 6]>,
    tensor<?x6xf32, [@S0, 6]>, tensor<?x6xf32, [@S0, 6]>, tensor<?x6xf32, [@S0, 6]>, tensor<?x4xf32, [@S0, 4]>,
    tensor<?x4xf32, [@S0, 4]>, tensor<?x6xf32, [@S0, 6]>, tensor<?x6xf32, [@S0, 6]>, tensor<?x12xf32, [@S0, 12]>,
    tensor<?x2xf32, [@S0, 2]>, tensor<?x2xf32, [@S0, 2]>
}
