// RUN: %disc_opt %s --passes=fuse-elementwise,fuse-compute,stitch,fuse-attention,form-fusions,speculate-versions,choose-kernels --target=x86-64-v4 --stage=fused | %filecheck %s

// An input is read across its rows: blocks are transposed in registers.
// CHECK-LABEL: func.func @main
// CHECK: disc.plan = {"x86-64-v4" = "rows{regions = [region{form = blocks, tiles = 1, rows = 1, short = 0, columns = 1, vectors = [1], stages = [], cached = []}], streamed = [region{form = blocks, tiles = 1, rows = 1, short = 0, columns = 1, vectors = [1], stages = [], cached = []}], versions = [0, 2, 3], parts = 0, searches = []}"}
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg0.1"} : () -> ()

func.func @main(%x: tensor<?x?xf32, [@S0, @S1]>) -> tensor<?x?xf32, [@S1, @S0]> {
  %0 = stablehlo.transpose %x, dims = [1, 0] : (tensor<?x?xf32, [@S0, @S1]>) -> tensor<?x?xf32, [@S1, @S0]>
  %1 = stablehlo.negate %0 : tensor<?x?xf32, [@S1, @S0]>
  return %1 : tensor<?x?xf32, [@S1, @S0]>
}

// -----

// Also where rows are read from their ends, as by a rotation.
// CHECK-LABEL: func.func @main
// CHECK: disc.plan = {"x86-64-v4" = "rows{regions = [region{form = blocks,
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg0.1"} : () -> ()

func.func @main(%x: tensor<?x?xf32, [@S0, @S1]>) -> tensor<?x?xf32, [@S1, @S0]> {
  %0 = stablehlo.transpose %x, dims = [1, 0] : (tensor<?x?xf32, [@S0, @S1]>) -> tensor<?x?xf32, [@S1, @S0]>
  %1 = stablehlo.reverse %0, dims = [0] : tensor<?x?xf32, [@S1, @S0]>
  return %1 : tensor<?x?xf32, [@S1, @S0]>
}
