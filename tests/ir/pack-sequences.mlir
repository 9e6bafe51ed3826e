// RUN: %disc_opt %s --passes=pack-sequences --stage=named | %filecheck %s

// Attention with positions, a mask, a causal comparison, and the first token of each sequence. What works on tokens alone stays.
// CHECK: disc.packed = {least = 1 : i64, length = "S1", outputs = ["tokens", "sequences"], rows = "S0"}
// CHECK: "disc.symbolic_dim"() {divisor = 1 : i64, min = 0 : i64, source = "arg4.0", sym_name = "[[N:S[0-9]+]]"}
// CHECK: "disc.symbolic_dim"() {divisor = 1 : i64, min = 0 : i64, source = "arg0.1", sym_name = "S1"}
// CHECK: "disc.relation"() {lhs = "S0", rhs = "1"}
// CHECK: "disc.relation"() {lhs = "S2", rhs = "1"}
// CHECK: func.func @main(%[[X:[^:]+]]: {{.*}} %[[FIRST:[^:]+]]: {{[^:]*}}{disc.name = "sequence_first"}, %[[PAST:[^:]+]]: {{[^:]*}}{disc.name = "sequence_past"}, %[[STARTS:[^:]+]]:
// The table of positions is read at each token's place in its sequence.
// CHECK: %[[PLACES:.*]] = "disc.iota"() {dim = 0 : i64}
// CHECK: %[[POSITIONS:.*]] = stablehlo.subtract %[[PLACES]], %[[FIRST]]
// CHECK: "disc.gather"(%{{.*}}, %[[POSITIONS]]) {{.*}}sizes = ["1", "8"]
// Places of a pair are compared as they are.
// CHECK: %[[IOTA:.*]] = "disc.iota"() {dim = 0 : i64} : () -> tensor<?xi64, [@S1]>
// CHECK: stablehlo.compare LE, %{{.*}}, %{{.*}} : (tensor<?x?x?xi64, [@S0, @S1, @S1]>
// Scores of two sequences are -inf.
// CHECK: %[[LOW:.*]] = stablehlo.compare LE
// CHECK: %[[HIGH:.*]] = stablehlo.compare LT
// CHECK: %[[INSIDE:.*]] = stablehlo.and %[[LOW]], %[[HIGH]]
// CHECK: %[[HIDDEN:.*]] = stablehlo.select %[[INSIDE]]
// CHECK: stablehlo.reduce(%[[HIDDEN]] init: %{{.*}}) applies stablehlo.maximum
// CHECK: stablehlo.dot_general
// CHECK: "disc.gather"(%{{.*}}, %[[STARTS]]) {{.*}} -> tensor<?x8xf32, [@[[N]], 8]>
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, max = 16 : i64, divisor = 1 : i64, source = "arg0.1"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S2", min = 0 : i64, divisor = 1 : i64, source = "arg1.0"} : () -> ()
func.func @main(%x: tensor<?x?x8xf32, [@S0, @S1, 8]>, %mask: tensor<?x?xi1, [@S2, @S1]>) -> (tensor<?x?x8xf32, [@S0, @S1, 8]>, tensor<?x8xf32, [@S0, 8]>) {
  %table = "disc.weight"() {name = "table"} : () -> tensor<16x8xf32, [16, 8]>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %0 = "disc.slice"(%table) {starts = ["0", "0"], strides = array<i64: 1, 1>} : (tensor<16x8xf32, [16, 8]>) -> tensor<?x8xf32, [@S1, 8]>
  %1 = "disc.broadcast_in_dim"(%0) {dims = array<i64: 1, 2>, maybe = array<i64>} : (tensor<?x8xf32, [@S1, 8]>) -> tensor<?x?x8xf32, [@S0, @S1, 8]>
  %2 = stablehlo.add %x, %1 : tensor<?x?x8xf32, [@S0, @S1, 8]>
  %i = "disc.iota"() {dim = 0 : i64} : () -> tensor<?xi64, [@S1]>
  %q = "disc.broadcast_in_dim"(%i) {dims = array<i64: 1>, maybe = array<i64>} : (tensor<?xi64, [@S1]>) -> tensor<?x?x?xi64, [@S0, @S1, @S1]>
  %k = "disc.broadcast_in_dim"(%i) {dims = array<i64: 2>, maybe = array<i64>} : (tensor<?xi64, [@S1]>) -> tensor<?x?x?xi64, [@S0, @S1, @S1]>
  %c = stablehlo.compare LE, %k, %q : (tensor<?x?x?xi64, [@S0, @S1, @S1]>, tensor<?x?x?xi64, [@S0, @S1, @S1]>) -> tensor<?x?x?xi1, [@S0, @S1, @S1]>
  %m = "disc.broadcast_in_dim"(%mask) {dims = array<i64: 0, 2>, maybe = array<i64: 0>} : (tensor<?x?xi1, [@S2, @S1]>) -> tensor<?x?x?xi1, [@S0, @S1, @S1]>
  %a = stablehlo.and %c, %m : tensor<?x?x?xi1, [@S0, @S1, @S1]>
  %3 = stablehlo.dot_general %2, %2, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<?x?x8xf32, [@S0, @S1, 8]>, tensor<?x?x8xf32, [@S0, @S1, 8]>) -> tensor<?x?x?xf32, [@S0, @S1, @S1]>
  %l = "disc.broadcast_in_dim"(%low) {dims = array<i64>, maybe = array<i64>} : (tensor<f32>) -> tensor<?x?x?xf32, [@S0, @S1, @S1]>
  %4 = stablehlo.select %a, %3, %l : tensor<?x?x?xi1, [@S0, @S1, @S1]>, tensor<?x?x?xf32, [@S0, @S1, @S1]>
  %5 = stablehlo.reduce(%4 init: %low) applies stablehlo.maximum across dimensions = [2] : (tensor<?x?x?xf32, [@S0, @S1, @S1]>, tensor<f32>) -> tensor<?x?xf32, [@S0, @S1]>
  %6 = "disc.broadcast_in_dim"(%5) {dims = array<i64: 0, 1>, maybe = array<i64>} : (tensor<?x?xf32, [@S0, @S1]>) -> tensor<?x?x?xf32, [@S0, @S1, @S1]>
  %7 = stablehlo.subtract %4, %6 : tensor<?x?x?xf32, [@S0, @S1, @S1]>
  %8 = stablehlo.exponential %7 : tensor<?x?x?xf32, [@S0, @S1, @S1]>
  %9 = stablehlo.reduce(%8 init: %zero) applies stablehlo.add across dimensions = [2] : (tensor<?x?x?xf32, [@S0, @S1, @S1]>, tensor<f32>) -> tensor<?x?xf32, [@S0, @S1]>
  %10 = "disc.broadcast_in_dim"(%9) {dims = array<i64: 0, 1>, maybe = array<i64>} : (tensor<?x?xf32, [@S0, @S1]>) -> tensor<?x?x?xf32, [@S0, @S1, @S1]>
  %11 = stablehlo.divide %8, %10 : tensor<?x?x?xf32, [@S0, @S1, @S1]>
  %12 = stablehlo.dot_general %11, %2, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<?x?x?xf32, [@S0, @S1, @S1]>, tensor<?x?x8xf32, [@S0, @S1, 8]>) -> tensor<?x?x8xf32, [@S0, @S1, 8]>
  %13 = "disc.slice"(%12) {starts = ["0", "0", "0"], strides = array<i64: 1, 1, 1>} : (tensor<?x?x8xf32, [@S0, @S1, 8]>) -> tensor<?x1x8xf32, [@S0, 1, 8]>
  %14 = "disc.reshape"(%13) : (tensor<?x1x8xf32, [@S0, 1, 8]>) -> tensor<?x8xf32, [@S0, 8]>
  return %12, %14 : tensor<?x?x8xf32, [@S0, @S1, 8]>, tensor<?x8xf32, [@S0, 8]>
}

// -----
// A mean over tokens is one over those of each sequence, divided by its length; heads stay apart; a maximum is one as well.
// CHECK: disc.packed = {least = 0 : i64, length = "S1", outputs = ["sequences", "sequences", "sequences"], rows = "S0"}
// CHECK: func.func @main(%[[X:[^:]+]]: {{.*}}%[[STARTS:[^:]+]]: {{[^:]*}}{disc.name = "sequence_starts"}, %[[ENDS:[^:]+]]: {{[^:]*}}{disc.name = "sequence_ends"}
// CHECK: %[[FLAT:.*]] = "disc.reshape"(%[[X]]) : {{.*}} -> tensor<?x8xf32, [@S1, 8]>
// CHECK: %[[SUM:.*]] = "disc.reduce_segments"(%[[FLAT]], %[[STARTS]], %[[ENDS]]) {maximum = false} : {{.*}} -> tensor<?x8xf32, [@[[N:S[0-9]+]], 8]>
// CHECK: %[[COUNT:.*]] = stablehlo.subtract %[[ENDS]], %[[STARTS]]
// CHECK: %[[LENGTH:.*]] = stablehlo.convert %[[COUNT]] : {{.*}} -> tensor<?xf32, [@[[N]]]>
// CHECK: %[[TWO:.*]] = "disc.broadcast_in_dim"(%{{.*}}) {{.*}} -> tensor<?xf32, [@[[N]]]>
// CHECK: %[[HALF:.*]] = stablehlo.divide %[[LENGTH]], %[[TWO]] : tensor<?xf32, [@[[N]]]>
// CHECK: %[[WIDE:.*]] = "disc.broadcast_in_dim"(%[[HALF]]) {dims = array<i64: 0>, maybe = array<i64>} : {{.*}} -> tensor<?x8xf32, [@[[N]], 8]>
// CHECK: stablehlo.divide %[[SUM]], %[[WIDE]]
// CHECK: %[[HEADS:.*]] = stablehlo.transpose %{{.*}}, dims = [1, 0, 2] : {{.*}} -> tensor<?x2x4xf32, [@S1, 2, 4]>
// CHECK: "disc.reduce_segments"(%[[HEADS]], {{.*}} -> tensor<?x2x4xf32, [@[[N]], 2, 4]>
// CHECK: "disc.reduce_segments"{{.*}}{maximum = true}
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg0.1"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S2", min = 0 : i64, divisor = 1 : i64, expr = "S0 * 2"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S3", min = 0 : i64, divisor = 1 : i64, source = "arg1.0"} : () -> ()
func.func @main(%x: tensor<?x?x8xf32, [@S0, @S1, 8]>, %y: tensor<?x?x2x4xf32, [@S0, @S1, 2, 4]>) -> (tensor<?x8xf32, [@S0, 8]>, tensor<?x2x4xf32, [@S0, 2, 4]>, tensor<?x8xf32, [@S0, 8]>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %two = stablehlo.constant dense<2.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<?x?x8xf32, [@S0, @S1, 8]>, tensor<f32>) -> tensor<?x8xf32, [@S0, 8]>
  %1 = "disc.dim_value"() {expr = "S1"} : () -> tensor<i64>
  %2 = stablehlo.convert %1 : (tensor<i64>) -> tensor<f32>
  %3 = stablehlo.divide %2, %two : tensor<f32>
  %4 = "disc.broadcast_in_dim"(%3) {dims = array<i64>, maybe = array<i64>} : (tensor<f32>) -> tensor<?x8xf32, [@S0, 8]>
  %5 = stablehlo.divide %0, %4 : tensor<?x8xf32, [@S0, 8]>
  %6 = stablehlo.transpose %y, dims = [0, 2, 1, 3] : (tensor<?x?x2x4xf32, [@S0, @S1, 2, 4]>) -> tensor<?x2x?x4xf32, [@S0, 2, @S1, 4]>
  %7 = "disc.reshape"(%6) : (tensor<?x2x?x4xf32, [@S0, 2, @S1, 4]>) -> tensor<?x?x4xf32, [@S2, @S1, 4]>
  %8 = stablehlo.reduce(%7 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<?x?x4xf32, [@S2, @S1, 4]>, tensor<f32>) -> tensor<?x4xf32, [@S2, 4]>
  %10 = "disc.reshape"(%8) : (tensor<?x4xf32, [@S2, 4]>) -> tensor<?x2x4xf32, [@S0, 2, 4]>
  %9 = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [1] : (tensor<?x?x8xf32, [@S0, @S1, 8]>, tensor<f32>) -> tensor<?x8xf32, [@S0, 8]>
  return %5, %10, %9 : tensor<?x8xf32, [@S0, 8]>, tensor<?x2x4xf32, [@S0, 2, 4]>, tensor<?x8xf32, [@S0, 8]>
}

// -----
// A sum over rows is one over other requests.
// CHECK: disc.packed_refusal = "stablehlo.reduce at {{.*}}: it reduces over rows or tokens"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg0.1"} : () -> ()
func.func @main(%x: tensor<?x?x8xf32, [@S0, @S1, 8]>) -> tensor<?x8xf32, [@S1, 8]> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<?x?x8xf32, [@S0, @S1, 8]>, tensor<f32>) -> tensor<?x8xf32, [@S1, 8]>
  return %0 : tensor<?x8xf32, [@S1, 8]>
}

// -----
// The length of a sequence has no place yet among its tokens.
// CHECK: disc.packed_refusal = "disc.broadcast_in_dim at {{.*}}: the number of tokens is used as data other than of a sequence"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg0.1"} : () -> ()
func.func @main(%x: tensor<?x?x8xi64, [@S0, @S1, 8]>) -> tensor<?x?x8xi64, [@S0, @S1, 8]> {
  %0 = "disc.dim_value"() {expr = "S1"} : () -> tensor<i64>
  %1 = "disc.broadcast_in_dim"(%0) {dims = array<i64>, maybe = array<i64>} : (tensor<i64>) -> tensor<?x?x8xi64, [@S0, @S1, 8]>
  %2 = stablehlo.multiply %x, %1 : tensor<?x?x8xi64, [@S0, @S1, 8]>
  return %2 : tensor<?x?x8xi64, [@S0, @S1, 8]>
}

// -----
// CHECK: disc.packed_refusal = "disc.cumulative at {{.*}}: it works along rows or tokens"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg0.1"} : () -> ()
func.func @main(%x: tensor<?x?xf32, [@S0, @S1]>) -> tensor<?x?xf32, [@S0, @S1]> {
  %0 = "disc.cumulative"(%x) {dim = 1 : i64, kind = "sum"} : (tensor<?x?xf32, [@S0, @S1]>) -> tensor<?x?xf32, [@S0, @S1]>
  return %0 : tensor<?x?xf32, [@S0, @S1]>
}
