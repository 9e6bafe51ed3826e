// RUN: %disc_opt %s --passes=tabulate-distances --stage=named | %filecheck %s

// A bias that is looked up by distance: everything is done once per distance, and the table is written in the order in which rows read it.
// CHECK-LABEL: func.func @main
// CHECK: %[[N:.*]] = "disc.iota"() {dim = 0 : i64} : () -> tensor<?xi64, [@S1]>
// CHECK: "disc.dim_value"() {expr = "S0"}
// CHECK: stablehlo.subtract %[[N]]
// CHECK: "disc.dim_value"() {expr = "-S0 + 1"}
// CHECK: %[[D:.*]] = stablehlo.maximum
// CHECK: %[[R:.*]] = stablehlo.subtract %[[D]]
// CHECK: %[[B:.*]] = stablehlo.abs %[[R]]
// CHECK: %[[G:.*]] = "disc.gather"(%arg1, %[[B]]) {dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, sizes = ["1", "8"]} : {{.*}} -> tensor<?x8xf32, [@S1, 8]>
// CHECK: %[[T:.*]] = stablehlo.transpose %[[G]], dims = [1, 0] {disc.store} : {{.*}} -> tensor<8x?xf32, [8, @S1]>
// CHECK: "disc.diagonals"(%[[T]]) {column = 2 : i64, row = 1 : i64} : (tensor<8x?xf32, [8, @S1]>) -> tensor<8x?x?xf32, [8, @S0, @S0]>
// CHECK-NEXT: stablehlo.add
// CHECK-NEXT: return
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.1"} : () -> ()
func.func @main(%x: tensor<8x?x?xf32, [8, @S0, @S0]>, %table: tensor<32x8xf32, [32, 8]>) -> (tensor<8x?x?xf32, [8, @S0, @S0]>) {
  %i = "disc.iota"() {dim = 0 : i64} : () -> tensor<?xi64, [@S0]>
  %column = "disc.broadcast_in_dim"(%i) {dims = array<i64: 1>, maybe = array<i64>} : (tensor<?xi64, [@S0]>) -> tensor<?x?xi64, [@S0, @S0]>
  %row = "disc.broadcast_in_dim"(%i) {dims = array<i64: 0>, maybe = array<i64>} : (tensor<?xi64, [@S0]>) -> tensor<?x?xi64, [@S0, @S0]>
  %d = stablehlo.subtract %column, %row : tensor<?x?xi64, [@S0, @S0]>
  %b = stablehlo.abs %d : tensor<?x?xi64, [@S0, @S0]>
  %g = "disc.gather"(%table, %b) {dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, sizes = ["1", "8"]} : (tensor<32x8xf32, [32, 8]>, tensor<?x?xi64, [@S0, @S0]>) -> tensor<?x?x8xf32, [@S0, @S0, 8]>
  %t = stablehlo.transpose %g, dims = [2, 0, 1] : (tensor<?x?x8xf32, [@S0, @S0, 8]>) -> tensor<8x?x?xf32, [8, @S0, @S0]>
  %y = stablehlo.add %x, %t : tensor<8x?x?xf32, [8, @S0, @S0]>
  return %y : tensor<8x?x?xf32, [8, @S0, @S0]>
}

// -----
// A cheap index of a gather along a dim of distances is a table too, made before it is repeated for every head.
// CHECK-LABEL: func.func @main
// CHECK: %[[D:.*]] = stablehlo.maximum
// CHECK: %[[R:.*]] = stablehlo.subtract %[[D]]
// CHECK: stablehlo.negate %[[R]] : tensor<?xi64, [@S2]>
// CHECK: %[[T:.*]] = stablehlo.clamp
// CHECK: %[[V:.*]] = "disc.diagonals"(%[[T]]) {column = 1 : i64, row = 0 : i64} : (tensor<?xi64, [@S2]>) -> tensor<?x?xi64, [@S0, @S0]>
// CHECK: %[[I:.*]] = "disc.broadcast_in_dim"(%[[V]])
// CHECK: "disc.gather"(%arg0, %[[I]])
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.1"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg0.2"} : () -> ()
func.func @main(%x: tensor<4x?x?xf32, [4, @S0, @S1]>) -> (tensor<4x?x?xf32, [4, @S0, @S0]>) {
  %column = "disc.iota"() {dim = 1 : i64} : () -> tensor<?x?xi64, [@S0, @S0]>
  %row = "disc.iota"() {dim = 0 : i64} : () -> tensor<?x?xi64, [@S0, @S0]>
  %d = stablehlo.subtract %column, %row : tensor<?x?xi64, [@S0, @S0]>
  %n = stablehlo.negate %d : tensor<?x?xi64, [@S0, @S0]>
  %low = stablehlo.constant dense<0> : tensor<i64>
  %high = stablehlo.constant dense<7> : tensor<i64>
  %c = stablehlo.clamp %low, %n, %high : (tensor<i64>, tensor<?x?xi64, [@S0, @S0]>, tensor<i64>) -> tensor<?x?xi64, [@S0, @S0]>
  %i = "disc.broadcast_in_dim"(%c) {dims = array<i64: 1, 2>, maybe = array<i64>} : (tensor<?x?xi64, [@S0, @S0]>) -> tensor<4x?x?xi64, [4, @S0, @S0]>
  %y = "disc.gather"(%x, %i) {dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [2], operand_batching_dims = [0, 1], start_indices_batching_dims = [0, 1], start_index_map = [2], index_vector_dim = 3>, sizes = ["1", "1", "1"]} : (tensor<4x?x?xf32, [4, @S0, @S1]>, tensor<4x?x?xi64, [4, @S0, @S0]>) -> tensor<4x?x?xf32, [4, @S0, @S0]>
  return %y : tensor<4x?x?xf32, [4, @S0, @S0]>
}

// -----
// A mask stays a comparison of positions, by which an attention kernel skips what it hides; sums of positions are no distances.
// CHECK-LABEL: func.func @main
// CHECK-NOT: disc.diagonals
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x?xf32, [@S0, @S0]>, %table: tensor<64xf32, [64]>) -> (tensor<?x?xf32, [@S0, @S0]>) {
  %column = "disc.iota"() {dim = 1 : i64} : () -> tensor<?x?xi64, [@S0, @S0]>
  %row = "disc.iota"() {dim = 0 : i64} : () -> tensor<?x?xi64, [@S0, @S0]>
  %d = stablehlo.subtract %column, %row : tensor<?x?xi64, [@S0, @S0]>
  %zero = stablehlo.constant dense<0> : tensor<i64>
  %zeros = "disc.broadcast_in_dim"(%zero) {dims = array<i64>, maybe = array<i64>} : (tensor<i64>) -> tensor<?x?xi64, [@S0, @S0]>
  %m = stablehlo.compare LE, %d, %zeros : (tensor<?x?xi64, [@S0, @S0]>, tensor<?x?xi64, [@S0, @S0]>) -> tensor<?x?xi1, [@S0, @S0]>
  %s = stablehlo.add %column, %row : tensor<?x?xi64, [@S0, @S0]>
  %g = "disc.gather"(%table, %s) {dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, sizes = ["1"]} : (tensor<64xf32, [64]>, tensor<?x?xi64, [@S0, @S0]>) -> tensor<?x?xf32, [@S0, @S0]>
  %y = stablehlo.select %m, %x, %g : tensor<?x?xi1, [@S0, @S0]>, tensor<?x?xf32, [@S0, @S0]>
  return %y : tensor<?x?xf32, [@S0, @S0]>
}
