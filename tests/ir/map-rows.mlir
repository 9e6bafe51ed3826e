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
