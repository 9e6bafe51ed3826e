// RUN: %disc_opt %s --passes=merge-dots --stage=named | %filecheck %s

"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()

// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[X:.*]]: tensor<?x4xf32, [@S0, 4]>, %[[Y:.*]]: tensor<?x4xf32, [@S0, 4]>
func.func @main(%x: tensor<?x4xf32, [@S0, 4]>, %y: tensor<?x4xf32, [@S0, 4]>)
    -> (tensor<?x6xf32, [@S0, 6]>, tensor<?x5xf32, [@S0, 5]>, tensor<?x4xf32, [@S0, 4]>, tensor<?x6xf32, [@S0, 6]>, tensor<?x?xf32, [@S0, @S0]>,
        tensor<?x?xf32, [@S0, @S0]>) {
  // Q, K and V of one input, the weights defined where they are used, a bias in between.
  // CHECK-DAG: %[[WQ:.*]] = "disc.weight"() {name = "q"}
  // CHECK-DAG: %[[WK:.*]] = "disc.weight"() {name = "k"}
  // CHECK-DAG: %[[WV:.*]] = "disc.weight"() {name = "v"}
  // CHECK: %[[W:.*]] = stablehlo.concatenate %[[WQ]], %[[WK]], %[[WV]], dim = 0 : {{.*}} -> tensor<15x4xf32, [15, 4]>
  // CHECK: %[[QKV:.*]] = stablehlo.dot_general %[[X]], %[[W]], contracting_dims = [1] x [1] : {{.*}} -> tensor<?x15xf32, [@S0, 15]>
  // CHECK: %[[Q:.*]] = "disc.slice"(%[[QKV]]) {starts = ["0", "0"], strides = array<i64: 1, 1>} : {{.*}} -> tensor<?x6xf32, [@S0, 6]>
  // CHECK: %[[K:.*]] = "disc.slice"(%[[QKV]]) {starts = ["0", "6"], strides = array<i64: 1, 1>} : {{.*}} -> tensor<?x5xf32, [@S0, 5]>
  // CHECK: %[[V:.*]] = "disc.slice"(%[[QKV]]) {starts = ["0", "11"], strides = array<i64: 1, 1>} : {{.*}} -> tensor<?x4xf32, [@S0, 4]>
  // CHECK: %[[BIASED:.*]] = stablehlo.add %[[Q]], %[[Q]]
  %wq = "disc.weight"() {name = "q"} : () -> tensor<6x4xf32, [6, 4]>
  %q = stablehlo.dot_general %x, %wq, contracting_dims = [1] x [1] : (tensor<?x4xf32, [@S0, 4]>, tensor<6x4xf32, [6, 4]>) -> tensor<?x6xf32, [@S0, 6]>
  %r0 = stablehlo.add %q, %q : tensor<?x6xf32, [@S0, 6]>
  %wk = "disc.weight"() {name = "k"} : () -> tensor<5x4xf32, [5, 4]>
  %k = stablehlo.dot_general %x, %wk, contracting_dims = [1] x [1] : (tensor<?x4xf32, [@S0, 4]>, tensor<5x4xf32, [5, 4]>) -> tensor<?x5xf32, [@S0, 5]>
  %wv = "disc.weight"() {name = "v"} : () -> tensor<4x4xf32, [4, 4]>
  %v = stablehlo.dot_general %x, %wv, contracting_dims = [1] x [1] : (tensor<?x4xf32, [@S0, 4]>, tensor<4x4xf32, [4, 4]>) -> tensor<?x4xf32, [@S0, 4]>

  // Alone with its input: it stays.
  // CHECK: stablehlo.dot_general %[[Y]]
  %wo = "disc.weight"() {name = "o"} : () -> tensor<6x4xf32, [6, 4]>
  %r3 = stablehlo.dot_general %y, %wo, contracting_dims = [1] x [1] : (tensor<?x4xf32, [@S0, 4]>, tensor<6x4xf32, [6, 4]>) -> tensor<?x6xf32, [@S0, 6]>

  // No weights: a concatenation at run time would cost more than it saves.
  // CHECK: stablehlo.dot_general %[[X]], %[[X]]
  // CHECK: stablehlo.dot_general %[[X]], %[[Y]]
  %r4 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [1] : (tensor<?x4xf32, [@S0, 4]>, tensor<?x4xf32, [@S0, 4]>) -> tensor<?x?xf32, [@S0, @S0]>
  %r5 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [1] : (tensor<?x4xf32, [@S0, 4]>, tensor<?x4xf32, [@S0, 4]>) -> tensor<?x?xf32, [@S0, @S0]>

  // CHECK: return %[[BIASED]], %[[K]], %[[V]],
  return %r0, %k, %v, %r3, %r4, %r5 : tensor<?x6xf32, [@S0, 6]>, tensor<?x5xf32, [@S0, 5]>, tensor<?x4xf32, [@S0, 4]>, tensor<?x6xf32, [@S0, 6]>,
    tensor<?x?xf32, [@S0, @S0]>, tensor<?x?xf32, [@S0, @S0]>
}
