// RUN: %disc_opt %s --passes=resolve-broadcasts --stage=named | %filecheck %s

// Broadcasts of broadcasts become one; what stays the same goes.
// CHECK-LABEL: func.func @main
// CHECK-SAME: (%[[X:.*]]: tensor<?xf32, [@S1]>, %[[Y:.*]]: tensor<?x?xf32, [@S0, @S1]>)
// CHECK-NEXT: %[[B:.*]] = "disc.broadcast_in_dim"(%[[X]]) {dims = array<i64: 1>, maybe = array<i64>} : (tensor<?xf32, [@S1]>) -> tensor<?x?xf32, [@S0, @S1]>
// CHECK-NEXT: stablehlo.add %[[B]], %[[Y]]
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg1.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?xf32, [@S1]>, %y: tensor<?x?xf32, [@S0, @S1]>) -> tensor<?x?xf32, [@S0, @S1]> {
  %0 = "disc.broadcast_in_dim"(%x) {dims = array<i64: 1>, maybe = array<i64>} : (tensor<?xf32, [@S1]>) -> tensor<1x?xf32, [1, @S1]>
  %1 = "disc.broadcast_in_dim"(%0) {dims = array<i64: 0, 1>, maybe = array<i64>} : (tensor<1x?xf32, [1, @S1]>) -> tensor<?x?xf32, [@S0, @S1]>
  %2 = "disc.broadcast_in_dim"(%y) {dims = array<i64: 0, 1>, maybe = array<i64: 0, 1>} : (tensor<?x?xf32, [@S0, @S1]>) -> tensor<?x?xf32, [@S0, @S1]>
  %3 = stablehlo.add %1, %2 : tensor<?x?xf32, [@S0, @S1]>
  return %3 : tensor<?x?xf32, [@S0, @S1]>
}

// -----
// A relation decides one dim; the other stays undecided.
// CHECK-LABEL: func.func @main
// CHECK: "disc.broadcast_in_dim"(%{{.*}}) {dims = array<i64: 0, 1>, maybe = array<i64: 1>}
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg0.1"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S2", min = 0 : i64, divisor = 1 : i64, source = "arg1.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S3", min = 0 : i64, divisor = 1 : i64, source = "arg1.1"} : () -> ()
"disc.relation"() {lhs = "S2", rhs = "S0"} : () -> ()
func.func @main(%x: tensor<?x?xf32, [@S0, @S1]>, %y: tensor<?x?xf32, [@S2, @S3]>) -> tensor<?x?xf32, [@S2, @S3]> {
  %0 = "disc.broadcast_in_dim"(%x) {dims = array<i64: 0, 1>, maybe = array<i64: 0, 1>} : (tensor<?x?xf32, [@S0, @S1]>) -> tensor<?x?xf32, [@S2, @S3]>
  %1 = stablehlo.add %0, %y : tensor<?x?xf32, [@S2, @S3]>
  return %1 : tensor<?x?xf32, [@S2, @S3]>
}
