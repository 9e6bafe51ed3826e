// RUN: %disc_opt %s --passes=count-loops --stage=named | %filecheck %s

"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()

// The first counts from 0 to a size, the second to a number, which is compared the other way round. Of the others one begins at 1, one
// counts by two, one goes to a value, and one has no counter.
// CHECK-LABEL: func.func @main
// CHECK: "control.while"{{.*}}{body = @b0, carried = 2 : i64, trips = "S0 * 2"}
// CHECK: "control.while"{{.*}}{body = @b1, carried = 2 : i64, trips = "7"}
// CHECK: "control.while"{{.*}}condition = @c2
// CHECK: "control.while"{{.*}}condition = @c3
// CHECK: "control.while"{{.*}}condition = @c4
// CHECK: "control.while"{{.*}}condition = @c5
// CHECK-NOT: func.func private @c0
// CHECK-NOT: func.func private @c1
func.func @main(%x: tensor<?xf32, [@S0]>, %n: tensor<i64>) -> (tensor<?xf32, [@S0]>, tensor<?xf32, [@S0]>, tensor<?xf32, [@S0]>, tensor<?xf32, [@S0]>, tensor<?xf32, [@S0]>, tensor<?xf32, [@S0]>) {
  %zero = stablehlo.constant dense<0> : tensor<i64>
  %one = stablehlo.constant dense<1> : tensor<i64>
  %0:2 = "control.while"(%zero, %x) {carried = 2 : i64, condition = @c0, body = @b0} : (tensor<i64>, tensor<?xf32, [@S0]>) -> (tensor<i64>, tensor<?xf32, [@S0]>)
  %1:2 = "control.while"(%x, %zero) {carried = 2 : i64, condition = @c1, body = @b1} : (tensor<?xf32, [@S0]>, tensor<i64>) -> (tensor<?xf32, [@S0]>, tensor<i64>)
  %2:2 = "control.while"(%one, %x) {carried = 2 : i64, condition = @c2, body = @b2} : (tensor<i64>, tensor<?xf32, [@S0]>) -> (tensor<i64>, tensor<?xf32, [@S0]>)
  %3:2 = "control.while"(%zero, %x) {carried = 2 : i64, condition = @c3, body = @b3} : (tensor<i64>, tensor<?xf32, [@S0]>) -> (tensor<i64>, tensor<?xf32, [@S0]>)
  %4:2 = "control.while"(%zero, %x, %n) {carried = 2 : i64, condition = @c4, body = @b4} : (tensor<i64>, tensor<?xf32, [@S0]>, tensor<i64>) -> (tensor<i64>, tensor<?xf32, [@S0]>)
  %5 = "control.while"(%x, %n) {carried = 1 : i64, condition = @c5, body = @b5} : (tensor<?xf32, [@S0]>, tensor<i64>) -> tensor<?xf32, [@S0]>
  return %0#1, %1#0, %2#1, %3#1, %4#1, %5 : tensor<?xf32, [@S0]>, tensor<?xf32, [@S0]>, tensor<?xf32, [@S0]>, tensor<?xf32, [@S0]>, tensor<?xf32, [@S0]>, tensor<?xf32, [@S0]>
}
func.func private @c0(%i: tensor<i64>, %a: tensor<?xf32, [@S0]>) -> tensor<i64> {
  %n = "disc.dim_value"() {expr = "S0 * 2"} : () -> tensor<i64>
  %p = stablehlo.compare LT, %i, %n : (tensor<i64>, tensor<i64>) -> tensor<i1>
  %0 = stablehlo.convert %p : (tensor<i1>) -> tensor<i64>
  return %0 : tensor<i64>
}
func.func private @b0(%i: tensor<i64>, %a: tensor<?xf32, [@S0]>) -> (tensor<i64>, tensor<?xf32, [@S0]>) {
  %one = stablehlo.constant dense<1> : tensor<i64>
  %0 = stablehlo.add %i, %one : tensor<i64>
  %1 = stablehlo.negate %a : tensor<?xf32, [@S0]>
  return %0, %1 : tensor<i64>, tensor<?xf32, [@S0]>
}
func.func private @c1(%a: tensor<?xf32, [@S0]>, %i: tensor<i64>) -> tensor<i64> {
  %n = stablehlo.constant dense<7> : tensor<i64>
  %p = stablehlo.compare GT, %n, %i : (tensor<i64>, tensor<i64>) -> tensor<i1>
  %0 = stablehlo.convert %p : (tensor<i1>) -> tensor<i64>
  return %0 : tensor<i64>
}
func.func private @b1(%a: tensor<?xf32, [@S0]>, %i: tensor<i64>) -> (tensor<?xf32, [@S0]>, tensor<i64>) {
  %one = stablehlo.constant dense<1> : tensor<i64>
  %0 = stablehlo.add %one, %i : tensor<i64>
  %1 = stablehlo.negate %a : tensor<?xf32, [@S0]>
  return %1, %0 : tensor<?xf32, [@S0]>, tensor<i64>
}
func.func private @c2(%i: tensor<i64>, %a: tensor<?xf32, [@S0]>) -> tensor<i64> {
  %n = "disc.dim_value"() {expr = "S0"} : () -> tensor<i64>
  %p = stablehlo.compare LT, %i, %n : (tensor<i64>, tensor<i64>) -> tensor<i1>
  %0 = stablehlo.convert %p : (tensor<i1>) -> tensor<i64>
  return %0 : tensor<i64>
}
func.func private @b2(%i: tensor<i64>, %a: tensor<?xf32, [@S0]>) -> (tensor<i64>, tensor<?xf32, [@S0]>) {
  %one = stablehlo.constant dense<1> : tensor<i64>
  %0 = stablehlo.add %i, %one : tensor<i64>
  return %0, %a : tensor<i64>, tensor<?xf32, [@S0]>
}
func.func private @c3(%i: tensor<i64>, %a: tensor<?xf32, [@S0]>) -> tensor<i64> {
  %n = "disc.dim_value"() {expr = "S0"} : () -> tensor<i64>
  %p = stablehlo.compare LT, %i, %n : (tensor<i64>, tensor<i64>) -> tensor<i1>
  %0 = stablehlo.convert %p : (tensor<i1>) -> tensor<i64>
  return %0 : tensor<i64>
}
func.func private @b3(%i: tensor<i64>, %a: tensor<?xf32, [@S0]>) -> (tensor<i64>, tensor<?xf32, [@S0]>) {
  %two = stablehlo.constant dense<2> : tensor<i64>
  %0 = stablehlo.add %i, %two : tensor<i64>
  return %0, %a : tensor<i64>, tensor<?xf32, [@S0]>
}
func.func private @c4(%i: tensor<i64>, %a: tensor<?xf32, [@S0]>, %n: tensor<i64>) -> tensor<i64> {
  %p = stablehlo.compare LT, %i, %n : (tensor<i64>, tensor<i64>) -> tensor<i1>
  %0 = stablehlo.convert %p : (tensor<i1>) -> tensor<i64>
  return %0 : tensor<i64>
}
func.func private @b4(%i: tensor<i64>, %a: tensor<?xf32, [@S0]>, %n: tensor<i64>) -> (tensor<i64>, tensor<?xf32, [@S0]>) {
  %one = stablehlo.constant dense<1> : tensor<i64>
  %0 = stablehlo.add %i, %one : tensor<i64>
  return %0, %a : tensor<i64>, tensor<?xf32, [@S0]>
}
func.func private @c5(%a: tensor<?xf32, [@S0]>, %n: tensor<i64>) -> tensor<i64> {
  %0 = stablehlo.negate %n : tensor<i64>
  return %0 : tensor<i64>
}
func.func private @b5(%a: tensor<?xf32, [@S0]>, %n: tensor<i64>) -> tensor<?xf32, [@S0]> {
  %0 = stablehlo.negate %a : tensor<?xf32, [@S0]>
  return %0 : tensor<?xf32, [@S0]>
}
