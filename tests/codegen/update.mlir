// RUN: %disc_opt %s --passes=fuse-elementwise,fuse-compute,stitch,fuse-attention,form-fusions,speculate-versions,choose-kernels --target=x86-64-v4 --stage=fused | %filecheck %s

// A loop writes a slice of what it carries in place, unless something reads the old value afterwards: of two equal updates the second is
// made of a copy, since the body returns what it is made of. An input of the program is the caller's.
// CHECK-LABEL: func.func @main
// CHECK: disc.plan = {"x86-64-v4" = "rows{{{.*}}}"}
// CHECK: control.while
// CHECK-LABEL: func.func private @body
// CHECK: disc.plan = {"x86-64-v4" = "update{}"}, kind = "loop", name = "loop_dynamic_update_slice"
// CHECK: disc.plan = {"x86-64-v4" = "rows{{{.*}}}"}
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x24xf32, [@S0, 24]>, %u: tensor<1x24xf32, [1, 24]>, %i: tensor<i64>) -> (tensor<?x24xf32, [@S0, 24]>, tensor<?x24xf32, [@S0, 24]>, tensor<?x24xf32, [@S0, 24]>) {
  %zero = stablehlo.constant dense<0> : tensor<i64>
  %0 = stablehlo.dynamic_update_slice %x, %u, %i, %zero : (tensor<?x24xf32, [@S0, 24]>, tensor<1x24xf32, [1, 24]>, tensor<i64>, tensor<i64>) -> tensor<?x24xf32, [@S0, 24]>
  %1:4 = "control.while"(%i, %0, %0, %0, %u) {carried = 4 : i64, condition = @condition, body = @body} : (tensor<i64>, tensor<?x24xf32, [@S0, 24]>, tensor<?x24xf32, [@S0, 24]>, tensor<?x24xf32, [@S0, 24]>, tensor<1x24xf32, [1, 24]>) -> (tensor<i64>, tensor<?x24xf32, [@S0, 24]>, tensor<?x24xf32, [@S0, 24]>, tensor<?x24xf32, [@S0, 24]>)
  return %1#1, %1#2, %1#3 : tensor<?x24xf32, [@S0, 24]>, tensor<?x24xf32, [@S0, 24]>, tensor<?x24xf32, [@S0, 24]>
}
func.func private @condition(%i: tensor<i64>, %a: tensor<?x24xf32, [@S0, 24]>, %b: tensor<?x24xf32, [@S0, 24]>, %c: tensor<?x24xf32, [@S0, 24]>, %u: tensor<1x24xf32, [1, 24]>) -> tensor<i64> {
  %0 = stablehlo.negate %i : tensor<i64>
  return %0 : tensor<i64>
}
func.func private @body(%i: tensor<i64>, %a: tensor<?x24xf32, [@S0, 24]>, %b: tensor<?x24xf32, [@S0, 24]>, %c: tensor<?x24xf32, [@S0, 24]>, %u: tensor<1x24xf32, [1, 24]>) -> (tensor<i64>, tensor<?x24xf32, [@S0, 24]>, tensor<?x24xf32, [@S0, 24]>, tensor<?x24xf32, [@S0, 24]>) {
  %zero = stablehlo.constant dense<0> : tensor<i64>
  %0 = stablehlo.add %i, %i : tensor<i64>
  %1 = stablehlo.dynamic_update_slice %a, %u, %i, %zero : (tensor<?x24xf32, [@S0, 24]>, tensor<1x24xf32, [1, 24]>, tensor<i64>, tensor<i64>) -> tensor<?x24xf32, [@S0, 24]>
  %2 = stablehlo.dynamic_update_slice %b, %u, %i, %zero : (tensor<?x24xf32, [@S0, 24]>, tensor<1x24xf32, [1, 24]>, tensor<i64>, tensor<i64>) -> tensor<?x24xf32, [@S0, 24]>
  return %0, %1, %2, %b : tensor<i64>, tensor<?x24xf32, [@S0, 24]>, tensor<?x24xf32, [@S0, 24]>, tensor<?x24xf32, [@S0, 24]>
}
