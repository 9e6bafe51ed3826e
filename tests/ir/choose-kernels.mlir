// RUN: %disc_opt %s --passes=choose-kernels --target=x86-64-v4 --stage=fused | %filecheck %s

// Equal fusions have equal plans; one that stands there already is kept.
// CHECK-LABEL: func.func @main
// CHECK: {disc.plan = {"x86-64-v4" = "rows{regions = [region{form = flat, tiles = 1, rows = 1, short = 0, columns = 1, vectors = [1], stages = [], cached = []}], streamed = [], versions = [0], parts = 0, searches = [search{variables = 2, left = 1, space = 16, left_space = 4, {{.*}}}]}"}, kind = "loop", name = "loop_negate"}
// CHECK: {disc.plan = {"x86-64-v4" = "rows{regions = [region{form = flat, tiles = 1, rows = 1, short = 0, columns = 1, vectors = [1], stages = [], cached = []}], streamed = [], versions = [0], parts = 0, searches = [search{variables = 2, left = 1, space = 16, left_space = 4, {{.*}}}]}"}, kind = "loop", name = "loop_again"}
// CHECK: {disc.plan = {"x86-64-v4" = "rows{regions = [region{form = groups, tiles = 1, rows = 1, short = 0, columns = 1, vectors = [1], stages = [], cached = []}], streamed = [], versions = [0], parts = 0, searches = []}"}, kind = "loop", name = "loop_forced"}
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x64xf32, [@S0, 64]>) -> tensor<?x64xf32, [@S0, 64]> {
  %0 = "kernel.fusion"(%x) ({
  ^bb0(%a: tensor<?x64xf32, [@S0, 64]>):
    %1 = stablehlo.negate %a : tensor<?x64xf32, [@S0, 64]>
    "kernel.yield"(%1) : (tensor<?x64xf32, [@S0, 64]>) -> ()
  }) {kind = "loop", name = "loop_negate"} : (tensor<?x64xf32, [@S0, 64]>) -> tensor<?x64xf32, [@S0, 64]>
  %2 = "kernel.fusion"(%0) ({
  ^bb0(%a: tensor<?x64xf32, [@S0, 64]>):
    %1 = stablehlo.negate %a : tensor<?x64xf32, [@S0, 64]>
    "kernel.yield"(%1) : (tensor<?x64xf32, [@S0, 64]>) -> ()
  }) {kind = "loop", name = "loop_again"} : (tensor<?x64xf32, [@S0, 64]>) -> tensor<?x64xf32, [@S0, 64]>
  %3 = "kernel.fusion"(%2) ({
  ^bb0(%a: tensor<?x64xf32, [@S0, 64]>):
    %1 = stablehlo.negate %a : tensor<?x64xf32, [@S0, 64]>
    "kernel.yield"(%1) : (tensor<?x64xf32, [@S0, 64]>) -> ()
  }) {kind = "loop", name = "loop_forced", disc.plan = {"x86-64-v4" = "rows{regions = [region{form = groups, tiles = 1, rows = 1, short = 0, columns = 1, vectors = [1], stages = [], cached = []}], streamed = [], versions = [0], parts = 0, searches = []}"}} : (tensor<?x64xf32, [@S0, 64]>) -> tensor<?x64xf32, [@S0, 64]>
  return %3 : tensor<?x64xf32, [@S0, 64]>
}
