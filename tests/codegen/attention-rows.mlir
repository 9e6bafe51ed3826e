// RUN: %disc_opt %s --passes=fuse-elementwise,fuse-compute,stitch,fuse-attention,form-fusions,speculate-versions,choose-kernels --target=x86-64-v4 --stage=fused | %filecheck %s

// No softmax: rows of scores are kept whole.
// CHECK-LABEL: func.func @main
// CHECK: disc.plan = {"x86-64-v4" = "attention-rows{first = product{form = f32, left = in-place, right = per-panel, panel = 64, vectors = 4}, second = product{form = f32, left = in-place, right = in-place, panel = 32, vectors = 4}, rows = 96, cached = []}"}
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()

func.func @main(%q: tensor<?x50x32xf32, [@S0, 50, 32]>, %k: tensor<?x70x32xf32, [@S0, 70, 32]>, %v: tensor<?x70x32xf32, [@S0, 70, 32]>) -> tensor<?x50x32xf32, [@S0, 50, 32]> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %x = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<?x50x32xf32, [@S0, 50, 32]>, tensor<?x70x32xf32, [@S0, 70, 32]>) -> tensor<?x50x70xf32, [@S0, 50, 70]>
  %e = stablehlo.abs %x : tensor<?x50x70xf32, [@S0, 50, 70]>
  %s = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [2] : (tensor<?x50x70xf32, [@S0, 50, 70]>, tensor<f32>) -> tensor<?x50xf32, [@S0, 50]>
  %sb = "disc.broadcast_in_dim"(%s) {dims = array<i64: 0, 1>, maybe = array<i64>} : (tensor<?x50xf32, [@S0, 50]>) -> tensor<?x50x70xf32, [@S0, 50, 70]>
  %p = stablehlo.divide %e, %sb : tensor<?x50x70xf32, [@S0, 50, 70]>
  %r = stablehlo.dot_general %p, %v, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<?x50x70xf32, [@S0, 50, 70]>, tensor<?x70x32xf32, [@S0, 70, 32]>) -> tensor<?x50x32xf32, [@S0, 50, 32]>
  return %r : tensor<?x50x32xf32, [@S0, 50, 32]>
}
