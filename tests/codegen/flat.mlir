// RUN: %disc_opt %s --passes=fuse-elementwise,fuse-compute,stitch,fuse-attention,form-fusions,speculate-versions,choose-kernels --target=x86-64-v4 --stage=fused | %filecheck %s

// All elements are one loop.
// CHECK-LABEL: func.func @main
// CHECK: disc.plan = {"x86-64-v4" = "rows{regions = [region{form = flat, tiles = 1, rows = 1, short = 0, columns = 1, vectors = [4], stages = [], cached = []}], streamed = [region{form = flat, tiles = 1, rows = 1, short = 0, columns = 1, vectors = [1], stages = [], cached = []}], versions = [0, 1], parts = 0, searches = [search{variables = 2, left = 1, space = 16, left_space = 4, candidates = 1, {{.*}}}, search{variables = 3, left = 2, space = 32, left_space = 8, candidates = 1, {{.*}}}]}"}
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()

func.func @main(%x: tensor<?x24xf32, [@S0, 24]>) -> tensor<?x24xf32, [@S0, 24]> {
  %0 = stablehlo.tanh %x : tensor<?x24xf32, [@S0, 24]>
  return %0 : tensor<?x24xf32, [@S0, 24]>
}
