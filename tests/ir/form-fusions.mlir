// RUN: %disc_opt %s --passes=fuse-elementwise,fuse-compute,stitch,form-fusions --stage=fused | %filecheck %s

// The view and the constant are copied into each group that reads them.
// CHECK-LABEL: func.func @main
// CHECK: %[[SUM:.*]] = "kernel.fusion"(%[[B:.*]], %{{.*}}) ({
// CHECK: stablehlo.constant
// CHECK: "disc.broadcast_in_dim"
// CHECK: stablehlo.tanh
// CHECK: stablehlo.add
// CHECK: stablehlo.reduce
// CHECK: "kernel.yield"(%{{.*}}) : (tensor<8xf32, [8]>) -> ()
// CHECK: }) {kind = "loop", name = "loop_tanh_add_reduce"}
// CHECK: "kernel.fusion"(%[[B]], %[[SUM]]) ({
// CHECK: "disc.broadcast_in_dim"
// CHECK: "disc.broadcast_in_dim"
// CHECK: stablehlo.add
// CHECK: }) {kind = "loop", name = "loop_add"}
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x8xf32, [@S0, 8]>, %b: tensor<8xf32, [8]>) -> (tensor<?x8xf32, [@S0, 8]>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = "disc.broadcast_in_dim"(%b) {dims = array<i64: 1>, maybe = array<i64>} : (tensor<8xf32, [8]>) -> tensor<?x8xf32, [@S0, 8]>
  %1 = stablehlo.tanh %x : tensor<?x8xf32, [@S0, 8]>
  %2 = stablehlo.add %1, %0 : tensor<?x8xf32, [@S0, 8]>
  %3 = stablehlo.reduce(%2 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<?x8xf32, [@S0, 8]>, tensor<f32>) -> tensor<8xf32, [8]>
  %4 = "disc.broadcast_in_dim"(%3) {dims = array<i64: 1>, maybe = array<i64>} : (tensor<8xf32, [8]>) -> tensor<?x8xf32, [@S0, 8]>
  %5 = stablehlo.add %4, %0 : tensor<?x8xf32, [@S0, 8]>
  return %5 : tensor<?x8xf32, [@S0, 8]>
}

// -----
// A value that is also returned is a second result.
// CHECK-LABEL: func.func @main
// CHECK: %[[R:.*]]:2 = "kernel.fusion"
// CHECK: %[[T:.*]] = stablehlo.tanh
// CHECK: %[[N:.*]] = stablehlo.negate %[[T]]
// CHECK: "kernel.yield"(%[[T]], %[[N]])
// CHECK: return %[[R]]#0, %[[R]]#1
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x8xf32, [@S0, 8]>) -> (tensor<?x8xf32, [@S0, 8]>, tensor<?x8xf32, [@S0, 8]>) {
  %0 = stablehlo.tanh %x : tensor<?x8xf32, [@S0, 8]>
  %1 = stablehlo.negate %0 : tensor<?x8xf32, [@S0, 8]>
  return %0, %1 : tensor<?x8xf32, [@S0, 8]>, tensor<?x8xf32, [@S0, 8]>
}

// -----
// A view that is returned is a group.
// CHECK-LABEL: func.func @main
// CHECK: "kernel.fusion"
// CHECK: "disc.reshape"
// CHECK: }) {kind = "loop", name = "loop_reshape"}
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x8xf32, [@S0, 8]>) -> (tensor<?x2x4xf32, [@S0, 2, 4]>) {
  %0 = "disc.reshape"(%x) : (tensor<?x8xf32, [@S0, 8]>) -> tensor<?x2x4xf32, [@S0, 2, 4]>
  return %0 : tensor<?x2x4xf32, [@S0, 2, 4]>
}

// -----
// A weight stays outside and is an operand.
// CHECK-LABEL: func.func @main
// CHECK: %[[W:.*]] = "disc.weight"
// CHECK: "kernel.fusion"(%{{.*}}, %[[W]]) ({
// CHECK: ^bb0(%[[X:.*]]: tensor<?x8xf32, [@S0, 8]>, %[[V:.*]]: tensor<8x4xf32, [8, 4]>)
// CHECK: stablehlo.dot_general %[[X]], %[[V]]
// CHECK: }) {kind = "compute", name = "compute_dot_general_tanh"}
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x8xf32, [@S0, 8]>) -> (tensor<?x4xf32, [@S0, 4]>) {
  %w = "disc.weight"() {name = "w"} : () -> tensor<8x4xf32, [8, 4]>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<?x8xf32, [@S0, 8]>, tensor<8x4xf32, [8, 4]>) -> tensor<?x4xf32, [@S0, 4]>
  %1 = stablehlo.tanh %0 : tensor<?x4xf32, [@S0, 4]>
  return %1 : tensor<?x4xf32, [@S0, 4]>
}

// -----
// What needs a size stands behind the op that binds it, also where no value leads from there.
// CHECK-LABEL: func.func @main
// CHECK: %[[A:.*]] = "kernel.fusion"(
// CHECK: stablehlo.tanh
// CHECK: %[[SUM:.*]] = "kernel.fusion"(
// CHECK: stablehlo.reduce
// CHECK: "disc.size_of"(%[[SUM]]) {symbol = "S1"}
// CHECK: "kernel.fusion"(%[[A]]) ({
// CHECK: "disc.broadcast_in_dim"
// CHECK: stablehlo.negate
// CHECK: return
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "kernel"} : () -> ()
func.func @main(%x: tensor<?xi64, [@S0]>, %a: tensor<f32>) -> tensor<?xf32, [@S1]> {
  %zero = stablehlo.constant dense<0> : tensor<i64>
  %e = stablehlo.tanh %a : tensor<f32>
  %sum = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<?xi64, [@S0]>, tensor<i64>) -> tensor<i64>
  %n = "disc.size_of"(%sum) {symbol = "S1"} : (tensor<i64>) -> tensor<i64>
  %b = "disc.broadcast_in_dim"(%e) {dims = array<i64>, maybe = array<i64>} : (tensor<f32>) -> tensor<?xf32, [@S1]>
  %t = stablehlo.negate %b : tensor<?xf32, [@S1]>
  return %t : tensor<?xf32, [@S1]>
}

// -----
// What a branch is called with is made by kernels; the branch itself stays, and its function has fusions of its own.
// CHECK-LABEL: func.func @main
// CHECK: %[[V:.*]] = "kernel.fusion"
// CHECK: %[[R:.*]] = "control.case"(%{{.*}}, %[[V]]) {branches = [@f, @g]}
// CHECK: return %[[R]]
// CHECK: func.func private @f
// CHECK: "kernel.fusion"
// CHECK: func.func private @g(%[[A:.*]]: tensor<?x2x4xf32, [@S0, 2, 4]>)
// CHECK-NEXT: return %[[A]]
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg1.0"} : () -> ()
func.func @main(%i: tensor<i64>, %x: tensor<?x8xf32, [@S0, 8]>) -> tensor<?x2x4xf32, [@S0, 2, 4]> {
  %0 = "disc.reshape"(%x) : (tensor<?x8xf32, [@S0, 8]>) -> tensor<?x2x4xf32, [@S0, 2, 4]>
  %1 = "control.case"(%i, %0) {branches = [@f, @g]} : (tensor<i64>, tensor<?x2x4xf32, [@S0, 2, 4]>) -> tensor<?x2x4xf32, [@S0, 2, 4]>
  return %1 : tensor<?x2x4xf32, [@S0, 2, 4]>
}
func.func private @f(%a: tensor<?x2x4xf32, [@S0, 2, 4]>) -> tensor<?x2x4xf32, [@S0, 2, 4]> {
  %0 = stablehlo.tanh %a : tensor<?x2x4xf32, [@S0, 2, 4]>
  return %0 : tensor<?x2x4xf32, [@S0, 2, 4]>
}
func.func private @g(%a: tensor<?x2x4xf32, [@S0, 2, 4]>) -> tensor<?x2x4xf32, [@S0, 2, 4]> {
  return %a : tensor<?x2x4xf32, [@S0, 2, 4]>
}
