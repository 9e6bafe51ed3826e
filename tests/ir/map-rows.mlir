// RUN: %disc_opt %s --passes=map-rows --stage=named | %filecheck %s

// Two rows of one table, and an argument that comes as it is.
// CHECK-DAG: source = "arg0.0", sym_name = "N0"
// CHECK-DAG: source = "arg1.0", sym_name = "B"
// CHECK: func.func @main(%[[TABLE:.*]]: tensor<?x4xf32, [@N0, 4]> {disc.name = "table0"}, %[[L:.*]]: tensor<?xi64, [@B]> {disc.name = "l_row"}, %[[R:.*]]: tensor<?xi64, [@B]> {disc.name = "r_row"}, %[[X:.*]]: tensor<?xf32, [@B]> {disc.name = "x"})
// CHECK: "disc.gather"(%[[TABLE]], %[[L]]) {{.*}}disc.in_range{{.*}}sizes = ["1", "4"]
// CHECK: "disc.gather"(%[[TABLE]], %[[R]])
"disc.symbolic_dim"() {sym_name = "B", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%l: tensor<?x4xf32, [@B, 4]> {disc.name = "l", disc.table = 0 : i64}, %x: tensor<?xf32, [@B]> {disc.name = "x", disc.table = -1 : i64}, %r: tensor<?x4xf32, [@B, 4]> {disc.name = "r", disc.table = 0 : i64}) -> tensor<?x4xf32, [@B, 4]> {
  %0 = stablehlo.add %l, %r : tensor<?x4xf32, [@B, 4]>
  return %0 : tensor<?x4xf32, [@B, 4]>
}

// -----
// Rows that are stacked for a product are copied there once: the other product reads them from the stack.
// CHECK: %[[L:.*]] = "disc.gather"
// CHECK: %[[R:.*]] = "disc.gather"
// CHECK: %[[S:.*]] = stablehlo.concatenate %[[L]], %[[R]], dim = 1
// CHECK: %[[PART:.*]] = "disc.slice"(%[[S]]) {starts = ["0", "4", "0"], strides = array<i64: 1, 1, 1>} : (tensor<?x8x4xf32, [@B, 8, 4]>) -> tensor<?x4x4xf32, [@B, 4, 4]>
// CHECK: stablehlo.dot_general %[[PART]], %{{.*}}, batching_dims = [0] x [0]
// CHECK: stablehlo.dot_general %[[S]], %{{.*}}, batching_dims = [0] x [0]
"disc.symbolic_dim"() {sym_name = "B", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%l: tensor<?x4x4xf32, [@B, 4, 4]> {disc.name = "l", disc.table = 0 : i64}, %r: tensor<?x4x4xf32, [@B, 4, 4]> {disc.name = "r", disc.table = 0 : i64}, %x: tensor<?x4xf32, [@B, 4]> {disc.name = "x", disc.table = -1 : i64}) -> (tensor<?x4xf32, [@B, 4]>, tensor<?x8xf32, [@B, 8]>) {
  %0 = stablehlo.dot_general %r, %x, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<?x4x4xf32, [@B, 4, 4]>, tensor<?x4xf32, [@B, 4]>) -> tensor<?x4xf32, [@B, 4]>
  %1 = stablehlo.concatenate %l, %r, dim = 1 : (tensor<?x4x4xf32, [@B, 4, 4]>, tensor<?x4x4xf32, [@B, 4, 4]>) -> tensor<?x8x4xf32, [@B, 8, 4]>
  %2 = stablehlo.dot_general %1, %x, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<?x8x4xf32, [@B, 8, 4]>, tensor<?x4xf32, [@B, 4]>) -> tensor<?x8xf32, [@B, 8]>
  return %0, %2 : tensor<?x4xf32, [@B, 4]>, tensor<?x8xf32, [@B, 8]>
}
