// RUN: %disc_opt %s --passes=fuse-elementwise,fuse-compute,stitch,fuse-attention,form-fusions,speculate-versions,choose-kernels --target=x86-64-v4 --stage=fused | %filecheck %s

// The rules keep nothing, since no sum reads the gate itself: the search finds that the pass over the results computes it again.
// CHECK-LABEL: func.func @main
// CHECK: disc.plan = {"x86-64-v4" = "rows{regions = [region{form = groups, tiles = 1, rows = 4, short = 256, columns = 1, vectors = [4, 1], stages = [[5]], cached = [3]}], streamed = [], versions = [0, 1, 2], parts = 32, searches = [search{variables = 11, left = 5, space = 1572864, left_space = 640, candidates = 20, {{.*}}}]}"}
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg0.1"} : () -> ()

func.func @main(%x0: tensor<?x?xf32, [@S0, @S1]>) -> tensor<?x?xf32, [@S0, @S1]> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %v0 = stablehlo.logistic %x0 : tensor<?x?xf32, [@S0, @S1]>
  %v1 = stablehlo.multiply %x0, %v0 : tensor<?x?xf32, [@S0, @S1]>
  %v2 = stablehlo.multiply %v1, %v1 : tensor<?x?xf32, [@S0, @S1]>
  %v3 = stablehlo.reduce(%v2 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<?x?xf32, [@S0, @S1]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  %v4 = "disc.broadcast_in_dim"(%v3) {dims = array<i64: 0>, maybe = array<i64>} : (tensor<?xf32, [@S0]>) -> tensor<?x?xf32, [@S0, @S1]>
  %v5 = stablehlo.rsqrt %v4 : tensor<?x?xf32, [@S0, @S1]>
  %v6 = stablehlo.multiply %v1, %v5 : tensor<?x?xf32, [@S0, @S1]>
  return %v6 : tensor<?x?xf32, [@S0, @S1]>
}
