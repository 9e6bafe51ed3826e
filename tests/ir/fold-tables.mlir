// RUN: %disc_opt %s --passes=fold-tables --stage=named | %filecheck %s

// Products and biases of a row are rows of one table; what else reads the row finds it where it was. Of a slice there is no table.
// CHECK: disc.folded_tables = ["emb: 10 rows, 120 bytes"]
// CHECK: func.func @main(%[[H:.*]]: tensor<?x3xf32, [@B, 3]>, %[[WORD:.*]]: tensor<?xi64, [@B]>)
// CHECK: %[[EMB:.*]] = "disc.weight"() {name = "emb"} : () -> tensor<10x4xf32, [10, 4]>
// CHECK: %[[ROW:.*]] = "disc.gather"(%[[EMB]], %[[WORD]])
// CHECK-NOT: dot_general
// CHECK: %[[TABLE:.*]] = "disc.weight"() {name = "folded.emb"} : () -> tensor<10x3xf32, [10, 3]>
// CHECK: %[[X:.*]] = "disc.gather"(%[[TABLE]], %[[WORD]])
// CHECK-SAME: offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, sizes = ["1", "3"]
// CHECK: %[[SUM:.*]] = stablehlo.add %[[H]], %[[X]]
// CHECK: %[[PART:.*]] = "disc.slice"(%[[ROW]])
// CHECK: return %[[SUM]], %[[PART]]
"disc.symbolic_dim"() {sym_name = "B", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%h: tensor<?x3xf32, [@B, 3]>, %word: tensor<?xi64, [@B]>) -> (tensor<?x3xf32, [@B, 3]>, tensor<?x2xf32, [@B, 2]>) {
  %emb = "disc.weight"() {name = "emb"} : () -> tensor<10x4xf32, [10, 4]>
  %w = "disc.weight"() {name = "w"} : () -> tensor<4x3xf32, [4, 3]>
  %b = "disc.weight"() {name = "b"} : () -> tensor<3xf32, [3]>
  %row = "disc.gather"(%emb, %word) {dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, sizes = ["1", "4"]} : (tensor<10x4xf32, [10, 4]>, tensor<?xi64, [@B]>) -> tensor<?x4xf32, [@B, 4]>
  %0 = stablehlo.dot_general %row, %w, contracting_dims = [1] x [0] : (tensor<?x4xf32, [@B, 4]>, tensor<4x3xf32, [4, 3]>) -> tensor<?x3xf32, [@B, 3]>
  %1 = "disc.broadcast_in_dim"(%b) {dims = array<i64: 1>, maybe = array<i64>} : (tensor<3xf32, [3]>) -> tensor<?x3xf32, [@B, 3]>
  %2 = stablehlo.add %0, %1 : tensor<?x3xf32, [@B, 3]>
  %3 = stablehlo.add %h, %2 : tensor<?x3xf32, [@B, 3]>
  %4 = "disc.slice"(%row) {starts = ["0", "1"], strides = array<i64: 1, 1>} : (tensor<?x4xf32, [@B, 4]>) -> tensor<?x2xf32, [@B, 2]>
  return %3, %4 : tensor<?x3xf32, [@B, 3]>, tensor<?x2xf32, [@B, 2]>
}

// -----
// Rows that two vectors of numbers choose are no function of one of them: of each there is a table.
// CHECK: disc.folded_tables = ["emb: 10 rows, 160 bytes", "emb: 10 rows, 160 bytes"]
// CHECK: name = "folded.emb"
// CHECK: name = "folded.emb.1"
// CHECK: stablehlo.multiply
"disc.symbolic_dim"() {sym_name = "B", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%one: tensor<?xi64, [@B]>, %other: tensor<?xi64, [@B]>) -> tensor<?x4xf32, [@B, 4]> {
  %emb = "disc.weight"() {name = "emb"} : () -> tensor<10x4xf32, [10, 4]>
  %0 = "disc.gather"(%emb, %one) {dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, sizes = ["1", "4"]} : (tensor<10x4xf32, [10, 4]>, tensor<?xi64, [@B]>) -> tensor<?x4xf32, [@B, 4]>
  %1 = "disc.gather"(%emb, %other) {dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, sizes = ["1", "4"]} : (tensor<10x4xf32, [10, 4]>, tensor<?xi64, [@B]>) -> tensor<?x4xf32, [@B, 4]>
  %2 = stablehlo.tanh %0 : tensor<?x4xf32, [@B, 4]>
  %3 = stablehlo.exponential %1 : tensor<?x4xf32, [@B, 4]>
  %4 = stablehlo.multiply %2, %3 : tensor<?x4xf32, [@B, 4]>
  return %4 : tensor<?x4xf32, [@B, 4]>
}

// -----
// Rows that influence each other are left as they are.
// CHECK-NOT: folded
// CHECK: stablehlo.tanh
"disc.symbolic_dim"() {sym_name = "B", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%word: tensor<?xi64, [@B]>) -> tensor<?x4xf32, [@B, 4]> {
  %emb = "disc.weight"() {name = "emb"} : () -> tensor<10x4xf32, [10, 4]>
  %0 = "disc.gather"(%emb, %word) {dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, sizes = ["1", "4"]} : (tensor<10x4xf32, [10, 4]>, tensor<?xi64, [@B]>) -> tensor<?x4xf32, [@B, 4]>
  %1 = stablehlo.tanh %0 : tensor<?x4xf32, [@B, 4]>
  %2 = "disc.cumulative"(%1) {dim = 0 : i64, kind = "sum"} : (tensor<?x4xf32, [@B, 4]>) -> tensor<?x4xf32, [@B, 4]>
  return %2 : tensor<?x4xf32, [@B, 4]>
}
