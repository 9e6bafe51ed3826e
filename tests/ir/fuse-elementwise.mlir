// RUN: %disc_opt %s --passes=fuse-elementwise --stage=named | %filecheck %s

// A chain is one group.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.tanh{{.*}}disc.group = 0 : i64, disc.kind = "loop"
// CHECK: stablehlo.add{{.*}}disc.group = 0 : i64, disc.kind = "loop"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?xf32, [@S0]>) -> (tensor<?xf32, [@S0]>) {
  %0 = stablehlo.tanh %x : tensor<?xf32, [@S0]>
  %1 = stablehlo.add %0, %x : tensor<?xf32, [@S0]>
  return %1 : tensor<?xf32, [@S0]>
}

// -----
// A producer with two consumers of its own size joins one of them and is a second result of that group.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.tanh{{.*}}disc.group = 0 : i64, disc.kind = "loop"
// CHECK: stablehlo.add{{.*}}disc.group = 0 : i64, disc.kind = "loop"
// CHECK: stablehlo.multiply{{.*}}disc.group = 1 : i64, disc.kind = "loop"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?xf32, [@S0]>) -> (tensor<?xf32, [@S0]>, tensor<?xf32, [@S0]>) {
  %0 = stablehlo.tanh %x : tensor<?xf32, [@S0]>
  %1 = stablehlo.add %0, %x : tensor<?xf32, [@S0]>
  %2 = stablehlo.multiply %0, %x : tensor<?xf32, [@S0]>
  return %1, %2 : tensor<?xf32, [@S0]>, tensor<?xf32, [@S0]>
}

// -----
// A dear producer of two groups of other sizes would be computed twice or be no result of theirs: it stays alone.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.tanh{{.*}}disc.group = 0 : i64, disc.kind = "loop"
// CHECK: stablehlo.reduce{{.*}}disc.group = 1 : i64, disc.kind = "loop"
// CHECK: stablehlo.reduce{{.*}}disc.group = 2 : i64, disc.kind = "loop"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x8xf32, [@S0, 8]>) -> (tensor<8xf32, [8]>, tensor<8xf32, [8]>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %0 = stablehlo.tanh %x : tensor<?x8xf32, [@S0, 8]>
  %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<?x8xf32, [@S0, 8]>, tensor<f32>) -> tensor<8xf32, [8]>
  %2 = stablehlo.reduce(%0 init: %low) applies stablehlo.maximum across dimensions = [0] : (tensor<?x8xf32, [@S0, 8]>, tensor<f32>) -> tensor<8xf32, [8]>
  return %1, %2 : tensor<8xf32, [8]>, tensor<8xf32, [8]>
}

// -----
// A dear value is not computed again for every row of a broadcast; a cheap one is.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.tanh{{.*}}disc.group = 0 : i64, disc.kind = "loop"
// CHECK: stablehlo.negate{{.*}}disc.group = 1 : i64, disc.kind = "loop"
// CHECK: stablehlo.add{{.*}}disc.group = 1 : i64, disc.kind = "loop"
// CHECK: stablehlo.multiply{{.*}}disc.group = 1 : i64, disc.kind = "loop"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%y: tensor<?x8xf32, [@S0, 8]>, %x: tensor<8xf32, [8]>) -> (tensor<?x8xf32, [@S0, 8]>) {
  %0 = stablehlo.tanh %x : tensor<8xf32, [8]>
  %1 = stablehlo.negate %x : tensor<8xf32, [8]>
  %2 = "disc.broadcast_in_dim"(%0) {dims = array<i64: 1>, maybe = array<i64>} : (tensor<8xf32, [8]>) -> tensor<?x8xf32, [@S0, 8]>
  %3 = "disc.broadcast_in_dim"(%1) {dims = array<i64: 1>, maybe = array<i64>} : (tensor<8xf32, [8]>) -> tensor<?x8xf32, [@S0, 8]>
  %4 = stablehlo.add %2, %y : tensor<?x8xf32, [@S0, 8]>
  %5 = stablehlo.multiply %4, %3 : tensor<?x8xf32, [@S0, 8]>
  return %5 : tensor<?x8xf32, [@S0, 8]>
}

// -----
// A reduction takes its producers and ends the group.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.exponential{{.*}}disc.group = 0 : i64, disc.kind = "stitch"
// CHECK: stablehlo.reduce{{.*}}disc.group = 0 : i64, disc.kind = "stitch"
// CHECK: stablehlo.divide{{.*}}disc.group = 1 : i64, disc.kind = "loop"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x8xf32, [@S0, 8]>, %y: tensor<?x8xf32, [@S0, 8]>) -> (tensor<?x8xf32, [@S0, 8]>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.exponential %x : tensor<?x8xf32, [@S0, 8]>
  %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<?x8xf32, [@S0, 8]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  %2 = "disc.broadcast_in_dim"(%1) {dims = array<i64: 0>, maybe = array<i64>} : (tensor<?xf32, [@S0]>) -> tensor<?x8xf32, [@S0, 8]>
  %3 = stablehlo.divide %y, %2 : tensor<?x8xf32, [@S0, 8]>
  return %3 : tensor<?x8xf32, [@S0, 8]>
}

// -----
// A dot is no part of an element-wise group, on either side.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.tanh{{.*}}disc.group = 0 : i64, disc.kind = "loop"
// CHECK: stablehlo.dot_general{{.*}}disc.group = 1 : i64, disc.kind = "compute"
// CHECK: stablehlo.negate{{.*}}disc.group = 2 : i64, disc.kind = "loop"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x8xf32, [@S0, 8]>, %w: tensor<8x4xf32, [8, 4]>) -> (tensor<?x4xf32, [@S0, 4]>) {
  %0 = stablehlo.tanh %x : tensor<?x8xf32, [@S0, 8]>
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] : (tensor<?x8xf32, [@S0, 8]>, tensor<8x4xf32, [8, 4]>) -> tensor<?x4xf32, [@S0, 4]>
  %2 = stablehlo.negate %1 : tensor<?x4xf32, [@S0, 4]>
  return %2 : tensor<?x4xf32, [@S0, 4]>
}

// -----
// A source whose channels only a transpose makes innermost is written so, together with what computes it.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.tanh{{.*}}disc.group = 0 : i64, disc.kind = "loop"
// CHECK: stablehlo.transpose{{.*}}disc.group = 0 : i64, disc.kind = "loop", disc.store
// CHECK: stablehlo.convolution{{.*}}disc.group = 1 : i64, disc.kind = "compute"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 1 : i64, divisor = 1 : i64, source = "arg0.2"} : () -> ()
func.func @main(%x: tensor<?x16x?xf32, [@S0, 16, @S1]>, %w: tensor<3x16x8xf32, [3, 16, 8]>) -> (tensor<?x?x8xf32, [@S0, @S1, 8]>) {
  %0 = stablehlo.tanh %x : tensor<?x16x?xf32, [@S0, 16, @S1]>
  %1 = stablehlo.transpose %0, dims = [0, 2, 1] : (tensor<?x16x?xf32, [@S0, 16, @S1]>) -> tensor<?x?x16xf32, [@S0, @S1, 16]>
  %2 = stablehlo.convolution(%1, %w) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {pad = [[1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<?x?x16xf32, [@S0, @S1, 16]>, tensor<3x16x8xf32, [3, 16, 8]>) -> tensor<?x?x8xf32, [@S0, @S1, 8]>
  return %2 : tensor<?x?x8xf32, [@S0, @S1, 8]>
}

// -----
// What turns the kernel of a convolution is done once; a slice of one is read where it lies.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.transpose{{.*}}disc.group = 0 : i64, disc.kind = "loop", disc.store
// CHECK: stablehlo.convolution{{.*}}disc.group = 1 : i64, disc.kind = "compute"
// CHECK-NOT: "disc.slice"{{.*}}disc.store
// CHECK: stablehlo.convolution{{.*}}disc.group = 2 : i64, disc.kind = "compute"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 1 : i64, divisor = 1 : i64, source = "arg0.2"} : () -> ()
func.func @main(%x: tensor<?x4x?xf32, [@S0, 4, @S1]>, %w: tensor<4x5x3xf32, [4, 5, 3]>, %v: tensor<6x4x3xf32, [6, 4, 3]>) -> (tensor<?x5x?xf32, [@S0, 5, @S1]>, tensor<?x5x?xf32, [@S0, 5, @S1]>) {
  %0 = stablehlo.reverse %w, dims = [2] : tensor<4x5x3xf32, [4, 5, 3]>
  %1 = stablehlo.transpose %0, dims = [1, 0, 2] : (tensor<4x5x3xf32, [4, 5, 3]>) -> tensor<5x4x3xf32, [5, 4, 3]>
  %2 = stablehlo.convolution(%x, %1) dim_numbers = [b, f, 0]x[o, i, 0]->[b, f, 0], window = {pad = [[1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<?x4x?xf32, [@S0, 4, @S1]>, tensor<5x4x3xf32, [5, 4, 3]>) -> tensor<?x5x?xf32, [@S0, 5, @S1]>
  %3 = "disc.slice"(%v) {starts = ["1", "0", "0"], strides = array<i64: 1, 1, 1>} : (tensor<6x4x3xf32, [6, 4, 3]>) -> tensor<5x4x3xf32, [5, 4, 3]>
  %4 = stablehlo.convolution(%x, %3) dim_numbers = [b, f, 0]x[o, i, 0]->[b, f, 0], window = {pad = [[1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<?x4x?xf32, [@S0, 4, @S1]>, tensor<5x4x3xf32, [5, 4, 3]>) -> tensor<?x5x?xf32, [@S0, 5, @S1]>
  return %2, %4 : tensor<?x5x?xf32, [@S0, 5, @S1]>, tensor<?x5x?xf32, [@S0, 5, @S1]>
}
