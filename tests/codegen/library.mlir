// RUN: %disc_opt %s --passes=fuse-elementwise,fuse-compute,stitch,fuse-attention,form-fusions,speculate-versions,choose-kernels --target=x86-64-v4 --stage=fused | %filecheck %s

// A sort is a launch of its own: what it reads is computed and stored before, and what reads it comes after; a reshape takes no launch.
// CHECK-LABEL: func.func @main
// CHECK: %[[A:.*]] = "kernel.fusion"
// CHECK: stablehlo.negate
// CHECK: disc.plan = {"x86-64-v4" = "rows
// CHECK: %[[B:.*]] = "kernel.fusion"(%[[A]]) ({
// CHECK-NEXT: ^bb0(%[[X:.*]]: tensor<?x24xf32, [@S0, 24]>):
// CHECK-NEXT: %[[FLAT:.*]] = "disc.reshape"(%[[X]])
// CHECK-NEXT: %[[S:.*]]:2 = "disc.sort"(%[[FLAT]])
// CHECK-NEXT: "kernel.yield"(%[[S]]#1)
// CHECK: disc.plan = {"x86-64-v4" = "library{function = sort}"}
// CHECK: %[[C:.*]] = "kernel.fusion"
// CHECK: stablehlo.transpose
// CHECK: disc.plan = {"x86-64-v4" = "rows
// CHECK: "kernel.fusion"(%[[C]])
// CHECK: disc.plan = {"x86-64-v4" = "library{function = sort}"}
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 24 : i64, expr = "S0 * 24"} : () -> ()

func.func @main(%x: tensor<?x24xf32, [@S0, 24]>) -> (tensor<?xi64, [@S1]>, tensor<24x?xf32, [24, @S0]>) {
  %0 = stablehlo.negate %x : tensor<?x24xf32, [@S0, 24]>
  %1 = "disc.reshape"(%0) : (tensor<?x24xf32, [@S0, 24]>) -> tensor<?xf32, [@S1]>
  %2:2 = "disc.sort"(%1) {dim = 0 : i64, descending = false} : (tensor<?xf32, [@S1]>) -> (tensor<?xf32, [@S1]>, tensor<?xi64, [@S1]>)
  %3 = stablehlo.transpose %x, dims = [1, 0] : (tensor<?x24xf32, [@S0, 24]>) -> tensor<24x?xf32, [24, @S0]>
  %4:2 = "disc.sort"(%3) {dim = 1 : i64, descending = false} : (tensor<24x?xf32, [24, @S0]>) -> (tensor<24x?xf32, [24, @S0]>, tensor<24x?xi64, [24, @S0]>)
  return %2#1, %4#0 : tensor<?xi64, [@S1]>, tensor<24x?xf32, [24, @S0]>
}
