// RUN: %disc_opt %s --passes=fuse-elementwise,fuse-compute --stage=named | %filecheck %s

// Bias and gelu are the epilogue of the dot.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.dot_general{{.*}}disc.group = 0 : i64, disc.kind = "compute"
// CHECK: stablehlo.add{{.*}}disc.group = 0 : i64, disc.kind = "compute"
// CHECK: stablehlo.multiply{{.*}}disc.group = 0 : i64, disc.kind = "compute"
// CHECK: chlo.erf{{.*}}disc.group = 0 : i64, disc.kind = "compute"
// CHECK: stablehlo.add{{.*}}disc.group = 0 : i64, disc.kind = "compute"
// CHECK: stablehlo.multiply{{.*}}disc.group = 0 : i64, disc.kind = "compute"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x8xf32, [@S0, 8]>, %w: tensor<8x4xf32, [8, 4]>, %b: tensor<4xf32, [4]>) -> (tensor<?x4xf32, [@S0, 4]>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<?x8xf32, [@S0, 8]>, tensor<8x4xf32, [8, 4]>) -> tensor<?x4xf32, [@S0, 4]>
  %1 = "disc.broadcast_in_dim"(%b) {dims = array<i64: 1>, maybe = array<i64>} : (tensor<4xf32, [4]>) -> tensor<?x4xf32, [@S0, 4]>
  %2 = stablehlo.add %0, %1 : tensor<?x4xf32, [@S0, 4]>
  %h = stablehlo.constant dense<0.5> : tensor<f32>
  %hb = "disc.broadcast_in_dim"(%h) {dims = array<i64>, maybe = array<i64>} : (tensor<f32>) -> tensor<?x4xf32, [@S0, 4]>
  %3 = stablehlo.multiply %2, %hb : tensor<?x4xf32, [@S0, 4]>
  %4 = chlo.erf %2 : tensor<?x4xf32, [@S0, 4]> -> tensor<?x4xf32, [@S0, 4]>
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %ob = "disc.broadcast_in_dim"(%one) {dims = array<i64>, maybe = array<i64>} : (tensor<f32>) -> tensor<?x4xf32, [@S0, 4]>
  %5 = stablehlo.add %4, %ob : tensor<?x4xf32, [@S0, 4]>
  %6 = stablehlo.multiply %3, %5 : tensor<?x4xf32, [@S0, 4]>
  return %6 : tensor<?x4xf32, [@S0, 4]>
}

// -----
// So is a residual.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.dot_general{{.*}}disc.group = 0 : i64, disc.kind = "compute"
// CHECK: stablehlo.add{{.*}}disc.group = 0 : i64, disc.kind = "compute"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x8xf32, [@S0, 8]>, %w: tensor<8x8xf32, [8, 8]>) -> (tensor<?x8xf32, [@S0, 8]>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<?x8xf32, [@S0, 8]>, tensor<8x8xf32, [8, 8]>) -> tensor<?x8xf32, [@S0, 8]>
  %1 = stablehlo.add %0, %x : tensor<?x8xf32, [@S0, 8]>
  return %1 : tensor<?x8xf32, [@S0, 8]>
}

// -----
// A dot that two groups read stays alone.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.dot_general{{.*}}disc.group = 0 : i64, disc.kind = "compute"
// CHECK: stablehlo.tanh{{.*}}disc.group = 1 : i64, disc.kind = "loop"
// CHECK: stablehlo.reduce{{.*}}disc.group = 2 : i64, disc.kind = "loop"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x8xf32, [@S0, 8]>, %w: tensor<8x8xf32, [8, 8]>) -> (tensor<?x8xf32, [@S0, 8]>, tensor<8xf32, [8]>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<?x8xf32, [@S0, 8]>, tensor<8x8xf32, [8, 8]>) -> tensor<?x8xf32, [@S0, 8]>
  %1 = stablehlo.tanh %0 : tensor<?x8xf32, [@S0, 8]>
  %2 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<?x8xf32, [@S0, 8]>, tensor<f32>) -> tensor<8xf32, [8]>
  return %1, %2 : tensor<?x8xf32, [@S0, 8]>, tensor<8xf32, [8]>
}

// -----
// So does one that is returned.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.dot_general{{.*}}disc.group = 0 : i64, disc.kind = "compute"
// CHECK: stablehlo.tanh{{.*}}disc.group = 1 : i64, disc.kind = "loop"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x8xf32, [@S0, 8]>, %w: tensor<8x8xf32, [8, 8]>) -> (tensor<?x8xf32, [@S0, 8]>, tensor<?x8xf32, [@S0, 8]>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<?x8xf32, [@S0, 8]>, tensor<8x8xf32, [8, 8]>) -> tensor<?x8xf32, [@S0, 8]>
  %1 = stablehlo.tanh %0 : tensor<?x8xf32, [@S0, 8]>
  return %0, %1 : tensor<?x8xf32, [@S0, 8]>, tensor<?x8xf32, [@S0, 8]>
}

// -----
// An element is read in two places: no epilogue.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.dot_general{{.*}}disc.group = 0 : i64, disc.kind = "compute"
// CHECK: stablehlo.add{{.*}}disc.group = 1 : i64, disc.kind = "loop"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x?xf32, [@S0, @S0]>, %w: tensor<?x?xf32, [@S0, @S0]>) -> (tensor<?x?xf32, [@S0, @S0]>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<?x?xf32, [@S0, @S0]>, tensor<?x?xf32, [@S0, @S0]>) -> tensor<?x?xf32, [@S0, @S0]>
  %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<?x?xf32, [@S0, @S0]>) -> tensor<?x?xf32, [@S0, @S0]>
  %2 = stablehlo.add %0, %1 : tensor<?x?xf32, [@S0, @S0]>
  return %2 : tensor<?x?xf32, [@S0, @S0]>
}

// -----
// A broadcast of the result is no epilogue.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.dot_general{{.*}}disc.group = 0 : i64, disc.kind = "compute"
// CHECK: stablehlo.tanh{{.*}}disc.group = 1 : i64, disc.kind = "loop"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x8xf32, [@S0, 8]>, %w: tensor<8x4xf32, [8, 4]>) -> (tensor<3x?x4xf32, [3, @S0, 4]>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<?x8xf32, [@S0, 8]>, tensor<8x4xf32, [8, 4]>) -> tensor<?x4xf32, [@S0, 4]>
  %1 = "disc.broadcast_in_dim"(%0) {dims = array<i64: 1, 2>, maybe = array<i64>} : (tensor<?x4xf32, [@S0, 4]>) -> tensor<3x?x4xf32, [3, @S0, 4]>
  %2 = stablehlo.tanh %1 : tensor<3x?x4xf32, [3, @S0, 4]>
  return %2 : tensor<3x?x4xf32, [3, @S0, 4]>
}

// -----
// A reduction is no epilogue.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.dot_general{{.*}}disc.group = 0 : i64, disc.kind = "compute"
// CHECK: stablehlo.reduce{{.*}}disc.group = 1 : i64, disc.kind = "stitch"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x8xf32, [@S0, 8]>, %w: tensor<8x8xf32, [8, 8]>) -> (tensor<?xf32, [@S0]>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<?x8xf32, [@S0, 8]>, tensor<8x8xf32, [8, 8]>) -> tensor<?x8xf32, [@S0, 8]>
  %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<?x8xf32, [@S0, 8]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  return %1 : tensor<?xf32, [@S0]>
}

// -----
// Rows stay rows: a transpose that moves the last dim is a kernel of its own, with an epilogue before it or without.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.dot_general{{.*}}disc.group = 0 : i64, disc.kind = "compute"
// CHECK: stablehlo.tanh{{.*}}disc.group = 0 : i64, disc.kind = "compute"
// CHECK: stablehlo.transpose{{.*}}disc.group = 1 : i64, disc.kind = "loop"
// CHECK: stablehlo.dot_general{{.*}}disc.group = 2 : i64, disc.kind = "compute"
// CHECK: stablehlo.transpose{{.*}}disc.group = 3 : i64, disc.kind = "loop"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x8xf32, [@S0, 8]>, %w: tensor<8x4xf32, [8, 4]>, %v: tensor<8x4xf32, [8, 4]>) -> (tensor<4x?xf32, [4, @S0]>, tensor<4x?xf32, [4, @S0]>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<?x8xf32, [@S0, 8]>, tensor<8x4xf32, [8, 4]>) -> tensor<?x4xf32, [@S0, 4]>
  %1 = stablehlo.tanh %0 : tensor<?x4xf32, [@S0, 4]>
  %2 = stablehlo.transpose %1, dims = [1, 0] : (tensor<?x4xf32, [@S0, 4]>) -> tensor<4x?xf32, [4, @S0]>
  %3 = stablehlo.dot_general %x, %v, contracting_dims = [1] x [0] : (tensor<?x8xf32, [@S0, 8]>, tensor<8x4xf32, [8, 4]>) -> tensor<?x4xf32, [@S0, 4]>
  %4 = stablehlo.transpose %3, dims = [1, 0] : (tensor<?x4xf32, [@S0, 4]>) -> tensor<4x?xf32, [4, @S0]>
  return %2, %4 : tensor<4x?xf32, [4, @S0]>, tensor<4x?xf32, [4, @S0]>
}
