// RUN: %disc_opt %s --passes=fuse-elementwise,fuse-compute,stitch,fuse-attention,form-fusions,speculate-versions,choose-kernels --target=x86-64-v4 --stage=fused | %filecheck %s

// Keys behind the row are not computed.
// CHECK-LABEL: func.func @main
// CHECK: disc.plan = {"x86-64-v4" = "attention-blocks{first = product{form = f32, left = in-place, right = per-panel, panel = 64, vectors = 4}, second = product{form = f32, left = in-place, right = in-place, panel = 32, vectors = 4}, rows = 96, keys = 512, causal = true, segments = false, dots = true, safe = false}"}
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.1"} : () -> ()
func.func @main(%q: tensor<2x?x32xf32, [2, @S0, 32]>, %k: tensor<2x?x32xf32, [2, @S0, 32]>, %v: tensor<2x?x32xf32, [2, @S0, 32]>) -> tensor<2x?x32xf32, [2, @S0, 32]> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %dot = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<2x?x32xf32, [2, @S0, 32]>, tensor<2x?x32xf32, [2, @S0, 32]>) -> tensor<2x?x?xf32, [2, @S0, @S0]>
  %places = "disc.iota"() {dim = 0 : i64} : () -> tensor<?xi64, [@S0]>
  %columns = "disc.broadcast_in_dim"(%places) {dims = array<i64: 1>, maybe = array<i64>} : (tensor<?xi64, [@S0]>) -> tensor<?x?xi64, [@S0, @S0]>
  %rows = "disc.broadcast_in_dim"(%places) {dims = array<i64: 0>, maybe = array<i64>} : (tensor<?xi64, [@S0]>) -> tensor<?x?xi64, [@S0, @S0]>
  %seen = stablehlo.compare LE, %columns, %rows : (tensor<?x?xi64, [@S0, @S0]>, tensor<?x?xi64, [@S0, @S0]>) -> tensor<?x?xi1, [@S0, @S0]>
  %mask = "disc.broadcast_in_dim"(%seen) {dims = array<i64: 1, 2>, maybe = array<i64>} : (tensor<?x?xi1, [@S0, @S0]>) -> tensor<2x?x?xi1, [2, @S0, @S0]>
  %lows = "disc.broadcast_in_dim"(%low) {dims = array<i64>, maybe = array<i64>} : (tensor<f32>) -> tensor<2x?x?xf32, [2, @S0, @S0]>
  %x = stablehlo.select %mask, %dot, %lows : tensor<2x?x?xi1, [2, @S0, @S0]>, tensor<2x?x?xf32, [2, @S0, @S0]>
  %m = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [2] : (tensor<2x?x?xf32, [2, @S0, @S0]>, tensor<f32>) -> tensor<2x?xf32, [2, @S0]>
  %mb = "disc.broadcast_in_dim"(%m) {dims = array<i64: 0, 1>, maybe = array<i64>} : (tensor<2x?xf32, [2, @S0]>) -> tensor<2x?x?xf32, [2, @S0, @S0]>
  %d = stablehlo.subtract %x, %mb : tensor<2x?x?xf32, [2, @S0, @S0]>
  %e = stablehlo.exponential %d : tensor<2x?x?xf32, [2, @S0, @S0]>
  %s = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [2] : (tensor<2x?x?xf32, [2, @S0, @S0]>, tensor<f32>) -> tensor<2x?xf32, [2, @S0]>
  %sb = "disc.broadcast_in_dim"(%s) {dims = array<i64: 0, 1>, maybe = array<i64>} : (tensor<2x?xf32, [2, @S0]>) -> tensor<2x?x?xf32, [2, @S0, @S0]>
  %p = stablehlo.divide %e, %sb : tensor<2x?x?xf32, [2, @S0, @S0]>
  %r = stablehlo.dot_general %p, %v, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<2x?x?xf32, [2, @S0, @S0]>, tensor<2x?x32xf32, [2, @S0, 32]>) -> tensor<2x?x32xf32, [2, @S0, 32]>
  return %r : tensor<2x?x32xf32, [2, @S0, 32]>
}
