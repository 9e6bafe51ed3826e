// RUN: %disc_opt %s --passes=lift-batch --stage=named | %filecheck %s

// A matrix times a vector becomes the rows of one product; what no instance changes stays as it is.
// CHECK: "disc.symbolic_dim"() {divisor = 1 : i64, min = 0 : i64, source = "arg0.0", sym_name = "B"}
// CHECK: func.func @main(%[[H:.*]]: tensor<?x4xf32, [@B, 4]>, %{{.*}}: tensor<3xf32, [3]> {disc.shared})
// CHECK: %[[W:.*]] = "disc.weight"() {name = "w"} : () -> tensor<3x4xf32, [3, 4]>
// CHECK: %[[Y:.*]] = stablehlo.dot_general %[[H]], %[[W]], contracting_dims = [1] x [1]
// CHECK: "disc.broadcast_in_dim"(%{{.*}}) {dims = array<i64: 1>, maybe = array<i64>}
// CHECK: return %{{.*}} : tensor<?x3xf32, [@B, 3]>
func.func @main(%h: tensor<4xf32, [4]>, %b: tensor<3xf32, [3]> {disc.shared}) -> tensor<3xf32, [3]> {
  %w = "disc.weight"() {name = "w"} : () -> tensor<3x4xf32, [3, 4]>
  %0 = stablehlo.dot_general %w, %h, contracting_dims = [1] x [0] : (tensor<3x4xf32, [3, 4]>, tensor<4xf32, [4]>) -> tensor<3xf32, [3]>
  %1 = stablehlo.add %0, %b : tensor<3xf32, [3]>
  return %1 : tensor<3xf32, [3]>
}

// -----
// Two activations: instances are a batch dim. Sizes of arguments are found one dim further back.
// CHECK: source = "arg0.0", sym_name = "B"
// CHECK: source = "arg0.1", sym_name = "S0"
// CHECK: stablehlo.dot_general %{{.*}}, %{{.*}}, batching_dims = [0] x [0], contracting_dims = [2] x [1]
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%a: tensor<?x4xf32, [@S0, 4]>, %b: tensor<4x5xf32, [4, 5]>) -> tensor<?x5xf32, [@S0, 5]> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<?x4xf32, [@S0, 4]>, tensor<4x5xf32, [4, 5]>) -> tensor<?x5xf32, [@S0, 5]>
  return %0 : tensor<?x5xf32, [@S0, 5]>
}

// -----
// A matrix that all share times a matrix of 64 columns of each instance: one product for each, in the order of its result.
// CHECK: %[[W:.*]] = "disc.weight"()
// CHECK: %[[EACH:.*]] = "disc.broadcast_in_dim"(%[[W]]) {dims = array<i64: 1, 2>, maybe = array<i64>} : (tensor<3x4xf32, [3, 4]>) -> tensor<?x3x4xf32, [@B, 3, 4]>
// CHECK: stablehlo.dot_general %[[EACH]], %{{.*}}, batching_dims = [0] x [0], contracting_dims = [2] x [1]
// CHECK-NOT: transpose
// CHECK: return %{{.*}} : tensor<?x3x64xf32, [@B, 3, 64]>
func.func @main(%a: tensor<4x64xf32, [4, 64]>) -> tensor<3x64xf32, [3, 64]> {
  %w = "disc.weight"() {name = "w"} : () -> tensor<3x4xf32, [3, 4]>
  %0 = stablehlo.dot_general %w, %a, contracting_dims = [1] x [0] : (tensor<3x4xf32, [3, 4]>, tensor<4x64xf32, [4, 64]>) -> tensor<3x64xf32, [3, 64]>
  return %0 : tensor<3x64xf32, [3, 64]>
}
