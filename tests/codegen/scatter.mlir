// RUN: %disc_opt %s --passes=fuse-elementwise,fuse-compute,stitch,fuse-attention,form-fusions,speculate-versions,choose-kernels --target=x86-64-v4 --stage=fused | %filecheck %s

// One task, updates in their order.
// CHECK-LABEL: func.func @main
// CHECK: disc.plan = {"x86-64-v4" = "scatter{}"}
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg1.0"} : () -> ()
func.func @main(%x: tensor<?x24xf32, [@S0, 24]>, %i: tensor<?xi64, [@S1]>, %u: tensor<?x24xf32, [@S1, 24]>) -> tensor<?x24xf32, [@S0, 24]> {
  %0 = "stablehlo.scatter"(%x, %i, %u) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %1 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %1 : tensor<f32>
  }) {scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>} : (tensor<?x24xf32, [@S0, 24]>, tensor<?xi64, [@S1]>, tensor<?x24xf32, [@S1, 24]>) -> tensor<?x24xf32, [@S0, 24]>
  return %0 : tensor<?x24xf32, [@S0, 24]>
}
