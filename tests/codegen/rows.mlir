// RUN: %disc_opt %s --passes=fuse-elementwise,fuse-compute,stitch,fuse-attention,form-fusions,speculate-versions,choose-kernels --target=x86-64-v4 --stage=fused | %filecheck %s

// Two rounds of reductions, the second of what is kept of the first; four rows side by side; few long rows are cut.
// CHECK-LABEL: func.func @main
// CHECK: disc.plan = {"x86-64-v4" = "rows{regions = [region{form = groups, tiles = 1, rows = 4, short = 128, columns = 1, vectors = [4, 4, 1], stages = [[3], [7]], cached = [6]}], streamed = [region{form = groups, tiles = 1, rows = 4, short = 128, columns = 1, vectors = [4, 1, 1], stages = [[3], [7]], cached = [6]}], versions = [0, 1, 2, 3, 4], parts = 32, searches = [search{variables = 13, left = 6, space = 25165824, left_space = 2560, candidates = 11, {{.*}}}, search{variables = 13, left = 4, space = 8192, left_space = 128, candidates = 3, {{.*}}}]}"}
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg0.1"} : () -> ()

func.func @main(%x: tensor<?x?xf32, [@S0, @S1]>) -> tensor<?x?xf32, [@S0, @S1]> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %m = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [1] : (tensor<?x?xf32, [@S0, @S1]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  %mb = "disc.broadcast_in_dim"(%m) {dims = array<i64: 0>, maybe = array<i64>} : (tensor<?xf32, [@S0]>) -> tensor<?x?xf32, [@S0, @S1]>
  %d = stablehlo.subtract %x, %mb : tensor<?x?xf32, [@S0, @S1]>
  %e = stablehlo.exponential %d : tensor<?x?xf32, [@S0, @S1]>
  %s = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<?x?xf32, [@S0, @S1]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  %sb = "disc.broadcast_in_dim"(%s) {dims = array<i64: 0>, maybe = array<i64>} : (tensor<?xf32, [@S0]>) -> tensor<?x?xf32, [@S0, @S1]>
  %p = stablehlo.divide %e, %sb : tensor<?x?xf32, [@S0, @S1]>
  return %p : tensor<?x?xf32, [@S0, @S1]>
}
