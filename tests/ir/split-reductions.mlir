// RUN: %disc_opt %s --passes=split-reductions --stage=named | %filecheck %s

// The last dims first, then the others: a sum, and a maximum of bf16. Not a sum of bf16, not rows of 8 elements, not what is transposed
// behind elementwise ops, and not what reduces the last dims alone or the first ones.
// CHECK-LABEL: func.func @main
// CHECK: %[[ROWS:.*]] = stablehlo.reduce(%arg0 {{.*}} dimensions = [2, 3] : {{.*}} -> tensor<?x8xf32, [@S0, 8]>
// CHECK: stablehlo.reduce(%[[ROWS]] {{.*}} dimensions = [0] : {{.*}} -> tensor<8xf32, [8]>
// CHECK: stablehlo.reduce({{.*}} applies stablehlo.maximum across dimensions = [2, 3]
// CHECK: stablehlo.reduce({{.*}} applies stablehlo.maximum across dimensions = [0]
// CHECK: stablehlo.reduce({{.*}} dimensions = [0, 2, 3] : {{.*}} -> tensor<8xbf16, [8]>
// CHECK: stablehlo.reduce({{.*}} dimensions = [0, 2] : {{.*}} -> tensor<16xf32, [16]>
// CHECK: stablehlo.reduce({{.*}} dimensions = [0, 2] : {{.*}} -> tensor<8xf32, [8]>
// CHECK: stablehlo.reduce({{.*}} dimensions = [1, 2, 3] : {{.*}} -> tensor<?xf32, [@S0]>
// CHECK: stablehlo.reduce({{.*}} dimensions = [0, 1] : {{.*}} -> tensor<?x?xf32, [@S1, @S1]>
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg0.2"} : () -> ()
func.func @main(%x: tensor<?x8x?x?xf32, [@S0, 8, @S1, @S1]>, %n: tensor<?x8x?x?xbf16, [@S0, 8, @S1, @S1]>, %s: tensor<?x16x8xf32, [@S0, 16, 8]>, %t: tensor<?x?x8xf32, [@S0, @S1, 8]>) -> (tensor<8xf32, [8]>, tensor<8xbf16, [8]>, tensor<8xbf16, [8]>, tensor<16xf32, [16]>, tensor<8xf32, [8]>, tensor<?xf32, [@S0]>, tensor<?x?xf32, [@S1, @S1]>) {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %l = stablehlo.constant dense<0xFF80> : tensor<bf16>
  %b = stablehlo.constant dense<0.0> : tensor<bf16>
  %0 = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [0, 2, 3] : (tensor<?x8x?x?xf32, [@S0, 8, @S1, @S1]>, tensor<f32>) -> tensor<8xf32, [8]>
  %1 = stablehlo.reduce(%n init: %l) applies stablehlo.maximum across dimensions = [0, 2, 3] : (tensor<?x8x?x?xbf16, [@S0, 8, @S1, @S1]>, tensor<bf16>) -> tensor<8xbf16, [8]>
  %2 = stablehlo.reduce(%n init: %b) applies stablehlo.add across dimensions = [0, 2, 3] : (tensor<?x8x?x?xbf16, [@S0, 8, @S1, @S1]>, tensor<bf16>) -> tensor<8xbf16, [8]>
  %3 = stablehlo.reduce(%s init: %z) applies stablehlo.add across dimensions = [0, 2] : (tensor<?x16x8xf32, [@S0, 16, 8]>, tensor<f32>) -> tensor<16xf32, [16]>
  %4 = stablehlo.transpose %t, dims = [0, 2, 1] : (tensor<?x?x8xf32, [@S0, @S1, 8]>) -> tensor<?x8x?xf32, [@S0, 8, @S1]>
  %5 = stablehlo.negate %4 : tensor<?x8x?xf32, [@S0, 8, @S1]>
  %6 = stablehlo.reduce(%5 init: %z) applies stablehlo.add across dimensions = [0, 2] : (tensor<?x8x?xf32, [@S0, 8, @S1]>, tensor<f32>) -> tensor<8xf32, [8]>
  %7 = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [1, 2, 3] : (tensor<?x8x?x?xf32, [@S0, 8, @S1, @S1]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  %8 = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [0, 1] : (tensor<?x8x?x?xf32, [@S0, 8, @S1, @S1]>, tensor<f32>) -> tensor<?x?xf32, [@S1, @S1]>
  return %0, %1, %2, %3, %6, %7, %8 : tensor<8xf32, [8]>, tensor<8xbf16, [8]>, tensor<8xbf16, [8]>, tensor<16xf32, [16]>, tensor<8xf32, [8]>, tensor<?xf32, [@S0]>, tensor<?x?xf32, [@S1, @S1]>
}
