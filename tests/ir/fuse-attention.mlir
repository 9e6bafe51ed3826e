// RUN: %disc_opt %s --passes=fuse-elementwise,fuse-compute,stitch,fuse-attention --stage=named | %filecheck %s

// Dot, softmax and dot are one group.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.dot_general{{.*}}disc.group = 0 : i64, disc.kind = "attention"
// CHECK: stablehlo.divide{{.*}}disc.group = 0 : i64, disc.kind = "attention"
// CHECK: stablehlo.dot_general{{.*}}disc.group = 0 : i64, disc.kind = "attention"
// CHECK-NOT: disc.note
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%q: tensor<?x16xf32, [@S0, 16]>) -> (tensor<?x16xf32, [@S0, 16]>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %s = stablehlo.dot_general %q, %q, contracting_dims = [1] x [1] : (tensor<?x16xf32, [@S0, 16]>, tensor<?x16xf32, [@S0, 16]>) -> tensor<?x?xf32, [@S0, @S0]>
  %m = stablehlo.reduce(%s init: %low) applies stablehlo.maximum across dimensions = [1] : (tensor<?x?xf32, [@S0, @S0]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  %mb = "disc.broadcast_in_dim"(%m) {dims = array<i64: 0>, maybe = array<i64>} : (tensor<?xf32, [@S0]>) -> tensor<?x?xf32, [@S0, @S0]>
  %d = stablehlo.subtract %s, %mb : tensor<?x?xf32, [@S0, @S0]>
  %e = stablehlo.exponential %d : tensor<?x?xf32, [@S0, @S0]>
  %t = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<?x?xf32, [@S0, @S0]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  %tb = "disc.broadcast_in_dim"(%t) {dims = array<i64: 0>, maybe = array<i64>} : (tensor<?xf32, [@S0]>) -> tensor<?x?xf32, [@S0, @S0]>
  %p = stablehlo.divide %e, %tb : tensor<?x?xf32, [@S0, @S0]>
  %y = stablehlo.dot_general %p, %q, contracting_dims = [1] x [0] : (tensor<?x?xf32, [@S0, @S0]>, tensor<?x16xf32, [@S0, 16]>) -> tensor<?x16xf32, [@S0, 16]>
  return %y : tensor<?x16xf32, [@S0, 16]>
}

// -----
// Probabilities that are returned have to be written: three groups, and a note.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.dot_general{{.*}}disc.kind = "compute"
// CHECK: stablehlo.divide{{.*}}disc.kind = "stitch"
// CHECK: stablehlo.dot_general{{.*}}disc.kind = "compute", disc.note = "no attention kernel with the dot of the scores{{.*}}: the probabilities are returned"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%q: tensor<?x16xf32, [@S0, 16]>) -> (tensor<?x16xf32, [@S0, 16]>, tensor<?x?xf32, [@S0, @S0]>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %s = stablehlo.dot_general %q, %q, contracting_dims = [1] x [1] : (tensor<?x16xf32, [@S0, 16]>, tensor<?x16xf32, [@S0, 16]>) -> tensor<?x?xf32, [@S0, @S0]>
  %m = stablehlo.reduce(%s init: %low) applies stablehlo.maximum across dimensions = [1] : (tensor<?x?xf32, [@S0, @S0]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  %mb = "disc.broadcast_in_dim"(%m) {dims = array<i64: 0>, maybe = array<i64>} : (tensor<?xf32, [@S0]>) -> tensor<?x?xf32, [@S0, @S0]>
  %d = stablehlo.subtract %s, %mb : tensor<?x?xf32, [@S0, @S0]>
  %e = stablehlo.exponential %d : tensor<?x?xf32, [@S0, @S0]>
  %t = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<?x?xf32, [@S0, @S0]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  %tb = "disc.broadcast_in_dim"(%t) {dims = array<i64: 0>, maybe = array<i64>} : (tensor<?xf32, [@S0]>) -> tensor<?x?xf32, [@S0, @S0]>
  %p = stablehlo.divide %e, %tb : tensor<?x?xf32, [@S0, @S0]>
  %y = stablehlo.dot_general %p, %q, contracting_dims = [1] x [0] : (tensor<?x?xf32, [@S0, @S0]>, tensor<?x16xf32, [@S0, 16]>) -> tensor<?x16xf32, [@S0, 16]>
  return %y, %p : tensor<?x16xf32, [@S0, 16]>, tensor<?x?xf32, [@S0, @S0]>
}

// -----
// So have scores that are returned.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.dot_general{{.*}}disc.kind = "compute"
// CHECK: stablehlo.divide{{.*}}disc.kind = "stitch"
// CHECK: stablehlo.dot_general{{.*}}disc.kind = "compute", disc.note = "no attention kernel with the dot of the scores{{.*}}: the scores are returned"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%q: tensor<?x16xf32, [@S0, 16]>) -> (tensor<?x16xf32, [@S0, 16]>, tensor<?x?xf32, [@S0, @S0]>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %s = stablehlo.dot_general %q, %q, contracting_dims = [1] x [1] : (tensor<?x16xf32, [@S0, 16]>, tensor<?x16xf32, [@S0, 16]>) -> tensor<?x?xf32, [@S0, @S0]>
  %m = stablehlo.reduce(%s init: %low) applies stablehlo.maximum across dimensions = [1] : (tensor<?x?xf32, [@S0, @S0]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  %mb = "disc.broadcast_in_dim"(%m) {dims = array<i64: 0>, maybe = array<i64>} : (tensor<?xf32, [@S0]>) -> tensor<?x?xf32, [@S0, @S0]>
  %d = stablehlo.subtract %s, %mb : tensor<?x?xf32, [@S0, @S0]>
  %e = stablehlo.exponential %d : tensor<?x?xf32, [@S0, @S0]>
  %t = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<?x?xf32, [@S0, @S0]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  %tb = "disc.broadcast_in_dim"(%t) {dims = array<i64: 0>, maybe = array<i64>} : (tensor<?xf32, [@S0]>) -> tensor<?x?xf32, [@S0, @S0]>
  %p = stablehlo.divide %e, %tb : tensor<?x?xf32, [@S0, @S0]>
  %y = stablehlo.dot_general %p, %q, contracting_dims = [1] x [0] : (tensor<?x?xf32, [@S0, @S0]>, tensor<?x16xf32, [@S0, 16]>) -> tensor<?x16xf32, [@S0, 16]>
  return %y, %s : tensor<?x16xf32, [@S0, 16]>, tensor<?x?xf32, [@S0, @S0]>
}
