// RUN: %disc_opt %s --passes=find-batch-dim --stage=named | %filecheck %s

// A mask of its own batch is taken to have as many rows; rows merged with another dim stay apart in a product with a weight.
// CHECK: module attributes {disc.batch = {inputs = array<i64: 0, 0>, outputs = array<i64: 0>, symbol = "S0"}}
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg0.1"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S2", min = 0 : i64, divisor = 1 : i64, source = "arg1.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S3", min = 0 : i64, divisor = 1 : i64, expr = "S0 * S1"} : () -> ()
func.func @main(%x: tensor<?x?x8xf32, [@S0, @S1, 8]>, %mask: tensor<?x?xf32, [@S2, @S1]>) -> tensor<?x?x4xf32, [@S0, @S1, 4]> {
  %w = "disc.weight"() {name = "w"} : () -> tensor<8x4xf32, [8, 4]>
  %0 = "disc.reshape"(%x) : (tensor<?x?x8xf32, [@S0, @S1, 8]>) -> tensor<?x8xf32, [@S3, 8]>
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] : (tensor<?x8xf32, [@S3, 8]>, tensor<8x4xf32, [8, 4]>) -> tensor<?x4xf32, [@S3, 4]>
  %2 = "disc.reshape"(%1) : (tensor<?x4xf32, [@S3, 4]>) -> tensor<?x?x4xf32, [@S0, @S1, 4]>
  %3 = "disc.broadcast_in_dim"(%mask) {dims = array<i64: 0, 1>, maybe = array<i64: 0>} : (tensor<?x?xf32, [@S2, @S1]>) -> tensor<?x?x4xf32, [@S0, @S1, 4]>
  %4 = stablehlo.multiply %2, %3 : tensor<?x?x4xf32, [@S0, @S1, 4]>
  return %4 : tensor<?x?x4xf32, [@S0, @S1, 4]>
}

// -----
// Indices with the numbers of the rows in the right place: each row from itself.
// CHECK: disc.batch = {{.*}}symbol = "S0"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg0.1"} : () -> ()
func.func @main(%x: tensor<?x?xf32, [@S0, @S1]>, %i: tensor<?x1xi64, [@S0, 1]>) -> tensor<?xf32, [@S0]> {
  %rows = "disc.iota"() {dim = 0 : i64} : () -> tensor<?x1xi64, [@S0, 1]>
  %0 = stablehlo.concatenate %rows, %i, dim = 1 : (tensor<?x1xi64, [@S0, 1]>, tensor<?x1xi64, [@S0, 1]>) -> tensor<?x2xi64, [@S0, 2]>
  %1 = "disc.gather"(%x, %0) {dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 1>, sizes = ["1", "1"]} : (tensor<?x?xf32, [@S0, @S1]>, tensor<?x2xi64, [@S0, 2]>) -> tensor<?xf32, [@S0]>
  return %1 : tensor<?xf32, [@S0]>
}

// -----
// In the wrong place.
// CHECK: disc.batch_refusal = "disc.gather at {{.*}}: it uses the place of a row as data"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg0.1"} : () -> ()
func.func @main(%x: tensor<?x?xf32, [@S0, @S1]>, %i: tensor<?x1xi64, [@S0, 1]>) -> tensor<?xf32, [@S0]> {
  %rows = "disc.iota"() {dim = 0 : i64} : () -> tensor<?x1xi64, [@S0, 1]>
  %0 = stablehlo.concatenate %i, %rows, dim = 1 : (tensor<?x1xi64, [@S0, 1]>, tensor<?x1xi64, [@S0, 1]>) -> tensor<?x2xi64, [@S0, 2]>
  %1 = "disc.gather"(%x, %0) {dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 1>, sizes = ["1", "1"]} : (tensor<?x?xf32, [@S0, @S1]>, tensor<?x2xi64, [@S0, 2]>) -> tensor<?xf32, [@S0]>
  return %1 : tensor<?xf32, [@S0]>
}

// -----
// A relation between sizes would not survive joining; neither would a divisor.
// CHECK: disc.batch_refusal = "it must be a multiple of another number"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 8 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?xf32, [@S0]>) -> tensor<?xf32, [@S0]> {
  return %x : tensor<?xf32, [@S0]>
}

// -----
// CHECK: disc.batch_refusal = "input 0 does not have it as the size of its first dim, and of no other"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x?xf32, [@S0, @S0]>) -> tensor<?x?xf32, [@S0, @S0]> {
  return %x : tensor<?x?xf32, [@S0, @S0]>
}

// -----
// Whether a broadcast takes place must not depend on the number of rows.
// CHECK: disc.batch_refusal = "disc.broadcast_in_dim at {{.*}}: whether the rows are broadcast is decided by their number"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg0.1"} : () -> ()
func.func @main(%x: tensor<?x?xf32, [@S0, @S1]>, %y: tensor<?xf32, [@S0]>) -> tensor<?x?xf32, [@S0, @S1]> {
  %0 = "disc.broadcast_in_dim"(%y) {dims = array<i64: 1>, maybe = array<i64: 0>} : (tensor<?xf32, [@S0]>) -> tensor<?x?xf32, [@S0, @S1]>
  %1 = stablehlo.add %x, %0 : tensor<?x?xf32, [@S0, @S1]>
  return %1 : tensor<?x?xf32, [@S0, @S1]>
}

// -----
// A vector without rows: requests that are joined have an equal one. Conditions that more rows satisfy, too, are none on joining.
// CHECK: disc.batch = {inputs = array<i64: 0, -1>, outputs = array<i64: 0>, symbol = "S0"}
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg0.1"} : () -> ()
"disc.condition"() {expr = "S1 == 0 or S0 * S1 != 0", why = "decided at cache.py:1"} : () -> ()
"disc.condition"() {expr = "S0 * S1 >= 4", why = "decided at cache.py:2"} : () -> ()
func.func @main(%x: tensor<?x?xf32, [@S0, @S1]>, %i: tensor<2xi64, [2]>) -> tensor<?x?xf32, [@S0, @S1]> {
  return %x : tensor<?x?xf32, [@S0, @S1]>
}

// -----
// More rows may break these: one row of the wrong number, or too many.
// CHECK: disc.batch_refusal = "every call is checked for a condition on it: S1 == 0 or S0 * S1 != 6{{.*}}"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg0.1"} : () -> ()
"disc.condition"() {expr = "S1 == 0 or S0 * S1 != 6", why = "decided at cache.py:1"} : () -> ()
func.func @main(%x: tensor<?x?xf32, [@S0, @S1]>) -> tensor<?x?xf32, [@S0, @S1]> {
  return %x : tensor<?x?xf32, [@S0, @S1]>
}
