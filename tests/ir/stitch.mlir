// RUN: %disc_opt %s --passes=fuse-elementwise,fuse-compute,stitch --stage=named | %filecheck %s

// Layer norm is one group.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.reduce{{.*}}disc.group = 0 : i64, disc.kind = "stitch"
// CHECK: stablehlo.divide{{.*}}disc.group = 0 : i64, disc.kind = "stitch"
// CHECK: stablehlo.subtract{{.*}}disc.group = 0 : i64, disc.kind = "stitch"
// CHECK: stablehlo.multiply{{.*}}disc.group = 0 : i64, disc.kind = "stitch"
// CHECK: stablehlo.reduce{{.*}}disc.group = 0 : i64, disc.kind = "stitch"
// CHECK: stablehlo.rsqrt{{.*}}disc.group = 0 : i64, disc.kind = "stitch"
// CHECK: stablehlo.multiply{{.*}}disc.group = 0 : i64, disc.kind = "stitch"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x64xf32, [@S0, 64]>) -> (tensor<?x64xf32, [@S0, 64]>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %n = stablehlo.constant dense<64.0> : tensor<f32>
  %nb = "disc.broadcast_in_dim"(%n) {dims = array<i64>, maybe = array<i64>} : (tensor<f32>) -> tensor<?xf32, [@S0]>
  %s = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<?x64xf32, [@S0, 64]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  %mean = stablehlo.divide %s, %nb : tensor<?xf32, [@S0]>
  %mb = "disc.broadcast_in_dim"(%mean) {dims = array<i64: 0>, maybe = array<i64>} : (tensor<?xf32, [@S0]>) -> tensor<?x64xf32, [@S0, 64]>
  %d = stablehlo.subtract %x, %mb : tensor<?x64xf32, [@S0, 64]>
  %q = stablehlo.multiply %d, %d : tensor<?x64xf32, [@S0, 64]>
  %v = stablehlo.reduce(%q init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<?x64xf32, [@S0, 64]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  %r = stablehlo.rsqrt %v : tensor<?xf32, [@S0]>
  %rb = "disc.broadcast_in_dim"(%r) {dims = array<i64: 0>, maybe = array<i64>} : (tensor<?xf32, [@S0]>) -> tensor<?x64xf32, [@S0, 64]>
  %y = stablehlo.multiply %d, %rb : tensor<?x64xf32, [@S0, 64]>
  return %y : tensor<?x64xf32, [@S0, 64]>
}

// -----
// Softmax is one group; how long a row is does not matter.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.reduce{{.*}}disc.group = 0 : i64, disc.kind = "stitch"
// CHECK: stablehlo.subtract{{.*}}disc.group = 0 : i64, disc.kind = "stitch"
// CHECK: stablehlo.exponential{{.*}}disc.group = 0 : i64, disc.kind = "stitch"
// CHECK: stablehlo.reduce{{.*}}disc.group = 0 : i64, disc.kind = "stitch"
// CHECK: stablehlo.divide{{.*}}disc.group = 0 : i64, disc.kind = "stitch"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg0.1"} : () -> ()
func.func @main(%x: tensor<?x?xf32, [@S0, @S1]>) -> (tensor<?x?xf32, [@S0, @S1]>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %m = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [1] : (tensor<?x?xf32, [@S0, @S1]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  %mb = "disc.broadcast_in_dim"(%m) {dims = array<i64: 0>, maybe = array<i64>} : (tensor<?xf32, [@S0]>) -> tensor<?x?xf32, [@S0, @S1]>
  %d = stablehlo.subtract %x, %mb : tensor<?x?xf32, [@S0, @S1]>
  %e = stablehlo.exponential %d : tensor<?x?xf32, [@S0, @S1]>
  %s = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<?x?xf32, [@S0, @S1]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  %sb = "disc.broadcast_in_dim"(%s) {dims = array<i64: 0>, maybe = array<i64>} : (tensor<?xf32, [@S0]>) -> tensor<?x?xf32, [@S0, @S1]>
  %y = stablehlo.divide %e, %sb : tensor<?x?xf32, [@S0, @S1]>
  return %y : tensor<?x?xf32, [@S0, @S1]>
}

// -----
// Rows of 16 and rows of 8 * 16 elements do not make one group.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.reduce{{.*}}disc.group = 0 : i64, disc.kind = "stitch"
// CHECK: stablehlo.divide{{.*}}disc.group = 1 : i64, disc.kind = "stitch"
// CHECK: stablehlo.reduce{{.*}}disc.group = 1 : i64, disc.kind = "stitch"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x8x16xf32, [@S0, 8, 16]>) -> (tensor<?xf32, [@S0]>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [2] : (tensor<?x8x16xf32, [@S0, 8, 16]>, tensor<f32>) -> tensor<?x8xf32, [@S0, 8]>
  %1 = "disc.broadcast_in_dim"(%0) {dims = array<i64: 0, 1>, maybe = array<i64>} : (tensor<?x8xf32, [@S0, 8]>) -> tensor<?x8x16xf32, [@S0, 8, 16]>
  %2 = stablehlo.divide %x, %1 : tensor<?x8x16xf32, [@S0, 8, 16]>
  %3 = stablehlo.reduce(%2 init: %zero) applies stablehlo.add across dimensions = [1, 2] : (tensor<?x8x16xf32, [@S0, 8, 16]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  return %3 : tensor<?xf32, [@S0]>
}

// -----
// A column reduction is not stitched.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.tanh{{.*}}disc.group = 0 : i64, disc.kind = "loop"
// CHECK: stablehlo.reduce{{.*}}disc.group = 1 : i64, disc.kind = "loop"
// CHECK: stablehlo.subtract{{.*}}disc.group = 2 : i64, disc.kind = "stitch"
// CHECK: stablehlo.reduce{{.*}}disc.group = 2 : i64, disc.kind = "stitch"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg0.1"} : () -> ()
func.func @main(%x: tensor<?x?xf32, [@S0, @S1]>) -> (tensor<?xf32, [@S0]>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.tanh %x : tensor<?x?xf32, [@S0, @S1]>
  %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<?x?xf32, [@S0, @S1]>, tensor<f32>) -> tensor<?xf32, [@S1]>
  %2 = "disc.broadcast_in_dim"(%1) {dims = array<i64: 1>, maybe = array<i64>} : (tensor<?xf32, [@S1]>) -> tensor<?x?xf32, [@S0, @S1]>
  %3 = stablehlo.subtract %0, %2 : tensor<?x?xf32, [@S0, @S1]>
  %4 = stablehlo.reduce(%3 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<?x?xf32, [@S0, @S1]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  return %4 : tensor<?xf32, [@S0]>
}

// -----
// Rows that are read across are not rows of the reader.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.reduce{{.*}}disc.group = 0 : i64, disc.kind = "stitch"
// CHECK: stablehlo.subtract{{.*}}disc.group = 1 : i64, disc.kind = "stitch"
// CHECK: stablehlo.reduce{{.*}}disc.group = 1 : i64, disc.kind = "stitch"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg0.1"} : () -> ()
func.func @main(%x: tensor<?x?xf32, [@S0, @S1]>) -> (tensor<?xf32, [@S1]>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<?x?xf32, [@S0, @S1]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  %1 = "disc.broadcast_in_dim"(%0) {dims = array<i64: 0>, maybe = array<i64>} : (tensor<?xf32, [@S0]>) -> tensor<?x?xf32, [@S0, @S1]>
  %2 = stablehlo.subtract %x, %1 : tensor<?x?xf32, [@S0, @S1]>
  %3 = stablehlo.transpose %2, dims = [1, 0] : (tensor<?x?xf32, [@S0, @S1]>) -> tensor<?x?xf32, [@S1, @S0]>
  %4 = stablehlo.reduce(%3 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<?x?xf32, [@S1, @S0]>, tensor<f32>) -> tensor<?xf32, [@S1]>
  return %4 : tensor<?xf32, [@S1]>
}

// -----
// The dot lies on a path between the two groups: one group of both would depend on itself.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.reduce{{.*}}disc.group = 0 : i64, disc.kind = "stitch"
// CHECK: stablehlo.subtract{{.*}}disc.group = 0 : i64, disc.kind = "stitch"
// CHECK: stablehlo.dot_general{{.*}}disc.group = 1 : i64, disc.kind = "compute"
// CHECK: stablehlo.multiply{{.*}}disc.group = 2 : i64, disc.kind = "stitch"
// CHECK: stablehlo.reduce{{.*}}disc.group = 2 : i64, disc.kind = "stitch"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x8xf32, [@S0, 8]>, %w: tensor<8x8xf32, [8, 8]>) -> (tensor<?xf32, [@S0]>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<?x8xf32, [@S0, 8]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  %1 = "disc.broadcast_in_dim"(%0) {dims = array<i64: 0>, maybe = array<i64>} : (tensor<?xf32, [@S0]>) -> tensor<?x8xf32, [@S0, 8]>
  %2 = stablehlo.subtract %x, %1 : tensor<?x8xf32, [@S0, 8]>
  %3 = stablehlo.dot_general %2, %w, contracting_dims = [1] x [0] : (tensor<?x8xf32, [@S0, 8]>, tensor<8x8xf32, [8, 8]>) -> tensor<?x8xf32, [@S0, 8]>
  %4 = stablehlo.multiply %2, %3 : tensor<?x8xf32, [@S0, 8]>
  %5 = stablehlo.reduce(%4 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<?x8xf32, [@S0, 8]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  return %5 : tensor<?xf32, [@S0]>
}

// -----
// Two reductions of the same rows are one group, though neither needs the other; one of other rows is not.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.add across dimensions = [1]{{.*}}disc.group = 0 : i64, disc.kind = "stitch"
// CHECK: stablehlo.maximum across dimensions = [1]{{.*}}disc.group = 0 : i64, disc.kind = "stitch"
// CHECK: stablehlo.maximum across dimensions = [0, 1]{{.*}}disc.group = 1 : i64, disc.kind = "stitch"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x64xf32, [@S0, 64]>) -> (tensor<?xf32, [@S0]>, tensor<?xf32, [@S0]>, tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %s = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<?x64xf32, [@S0, 64]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  %m = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [1] : (tensor<?x64xf32, [@S0, 64]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  %t = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [0, 1] : (tensor<?x64xf32, [@S0, 64]>, tensor<f32>) -> tensor<f32>
  return %s, %m, %t : tensor<?xf32, [@S0]>, tensor<?xf32, [@S0]>, tensor<f32>
}

// -----
// What costs much is computed for a vector of rows at once, by a kernel of its own.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.exponential{{.*}}disc.group = 0 : i64, disc.kind = "loop"
// CHECK: stablehlo.reduce{{.*}}disc.group = 1 : i64, disc.kind = "stitch"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x64xf32, [@S0, 64]>, %y: tensor<?xf32, [@S0]>) -> tensor<?xf32, [@S0]> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %e = stablehlo.exponential %y : tensor<?xf32, [@S0]>
  %n = stablehlo.log %e : tensor<?xf32, [@S0]>
  %1 = "disc.broadcast_in_dim"(%n) {dims = array<i64: 0>, maybe = array<i64>} : (tensor<?xf32, [@S0]>) -> tensor<?x64xf32, [@S0, 64]>
  %2 = stablehlo.multiply %x, %1 : tensor<?x64xf32, [@S0, 64]>
  %3 = stablehlo.reduce(%2 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<?x64xf32, [@S0, 64]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  return %3 : tensor<?xf32, [@S0]>
}

// -----
// What costs little is computed within its row.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.negate{{.*}}disc.group = 0 : i64, disc.kind = "stitch"
// CHECK: stablehlo.reduce{{.*}}disc.group = 0 : i64, disc.kind = "stitch"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x64xf32, [@S0, 64]>, %y: tensor<?xf32, [@S0]>) -> tensor<?xf32, [@S0]> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %e = stablehlo.negate %y : tensor<?xf32, [@S0]>
  %n = stablehlo.multiply %e, %e : tensor<?xf32, [@S0]>
  %1 = "disc.broadcast_in_dim"(%n) {dims = array<i64: 0>, maybe = array<i64>} : (tensor<?xf32, [@S0]>) -> tensor<?x64xf32, [@S0, 64]>
  %2 = stablehlo.multiply %x, %1 : tensor<?x64xf32, [@S0, 64]>
  %3 = stablehlo.reduce(%2 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<?x64xf32, [@S0, 64]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  return %3 : tensor<?xf32, [@S0]>
}

// -----
// A square, normed and turned: with the rows of the result as its own, each of its elements would need another row's sum.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.reduce{{.*}}disc.group = 0 : i64, disc.kind = "stitch"
// CHECK: stablehlo.divide{{.*}}disc.group = 1 : i64, disc.kind = "loop"
// CHECK: stablehlo.transpose{{.*}}disc.group = 1 : i64, disc.kind = "loop"
func.func @main(%x: tensor<8x8xf32, [8, 8]>) -> (tensor<8x8xf32, [8, 8]>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<8x8xf32, [8, 8]>, tensor<f32>) -> tensor<8xf32, [8]>
  %sb = "disc.broadcast_in_dim"(%s) {dims = array<i64: 0>, maybe = array<i64>} : (tensor<8xf32, [8]>) -> tensor<8x8xf32, [8, 8]>
  %y = stablehlo.divide %x, %sb : tensor<8x8xf32, [8, 8]>
  %t = stablehlo.transpose %y, dims = [1, 0] : (tensor<8x8xf32, [8, 8]>) -> tensor<8x8xf32, [8, 8]>
  return %t : tensor<8x8xf32, [8, 8]>
}

// -----
// The sums of the rows as a row: each element needs that of another row.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.reduce{{.*}}disc.group = 0 : i64, disc.kind = "stitch"
// CHECK: stablehlo.divide{{.*}}disc.group = 1 : i64, disc.kind = "loop"
func.func @main(%x: tensor<8x8xf32, [8, 8]>) -> (tensor<8x8xf32, [8, 8]>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<8x8xf32, [8, 8]>, tensor<f32>) -> tensor<8xf32, [8]>
  %sb = "disc.broadcast_in_dim"(%s) {dims = array<i64: 1>, maybe = array<i64>} : (tensor<8xf32, [8]>) -> tensor<8x8xf32, [8, 8]>
  %y = stablehlo.divide %x, %sb : tensor<8x8xf32, [8, 8]>
  return %y : tensor<8x8xf32, [8, 8]>
}

// -----
// Rows that change places as a whole are still made once each.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.reduce{{.*}}disc.group = 0 : i64, disc.kind = "stitch"
// CHECK: stablehlo.divide{{.*}}disc.group = 0 : i64, disc.kind = "stitch"
// CHECK: stablehlo.transpose{{.*}}disc.group = 0 : i64, disc.kind = "stitch"
func.func @main(%x: tensor<8x8x8xf32, [8, 8, 8]>) -> (tensor<8x8x8xf32, [8, 8, 8]>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [2] : (tensor<8x8x8xf32, [8, 8, 8]>, tensor<f32>) -> tensor<8x8xf32, [8, 8]>
  %sb = "disc.broadcast_in_dim"(%s) {dims = array<i64: 0, 1>, maybe = array<i64>} : (tensor<8x8xf32, [8, 8]>) -> tensor<8x8x8xf32, [8, 8, 8]>
  %y = stablehlo.divide %x, %sb : tensor<8x8x8xf32, [8, 8, 8]>
  %t = stablehlo.transpose %y, dims = [1, 0, 2] : (tensor<8x8x8xf32, [8, 8, 8]>) -> tensor<8x8x8xf32, [8, 8, 8]>
  return %t : tensor<8x8x8xf32, [8, 8, 8]>
}
