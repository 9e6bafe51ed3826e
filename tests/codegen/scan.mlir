// RUN: %disc_opt %s --passes=fuse-elementwise,fuse-compute,stitch,fuse-attention,form-fusions,speculate-versions,choose-kernels --target=x86-64-v4 --stage=fused | %filecheck %s

// Lanes run along the dim that is not scanned.
// CHECK-LABEL: func.func @main
// CHECK: disc.plan = {"x86-64-v4" = "scan{lanes = across}"}
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()

func.func @main(%x: tensor<?x24xf32, [@S0, 24]>) -> tensor<?x24xf32, [@S0, 24]> {
  %0 = "disc.cumulative"(%x) {dim = 0 : i64, kind = "max"} : (tensor<?x24xf32, [@S0, 24]>) -> tensor<?x24xf32, [@S0, 24]>
  return %0 : tensor<?x24xf32, [@S0, 24]>
}
