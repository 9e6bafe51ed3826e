// RUN: %disc_opt %s --passes=quantize-dots --stage=named | %filecheck %s

"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()

func.func @main(%x: tensor<?x64xf32, [@S0, 64]>, %p: tensor<64x?xf32, [64, @S0]>) -> (tensor<?x32xf32, [@S0, 32]>, tensor<?x?xf32, [@S0, @S0]>, tensor<?x2xf32, [@S0, 2]>) {
  %w = "disc.weight"() {name = "w"} : () -> tensor<32x64xf32, [32, 64]>
  %v = "disc.weight"() {name = "v"} : () -> tensor<2x64xf32, [2, 64]>
  %d = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : (tensor<?x64xf32, [@S0, 64]>, tensor<32x64xf32, [32, 64]>) -> tensor<?x32xf32, [@S0, 32]>
  %e = stablehlo.dot_general %x, %p, contracting_dims = [1] x [0] : (tensor<?x64xf32, [@S0, 64]>, tensor<64x?xf32, [64, @S0]>) -> tensor<?x?xf32, [@S0, @S0]>
  %f = stablehlo.dot_general %x, %v, contracting_dims = [1] x [1] : (tensor<?x64xf32, [@S0, 64]>, tensor<2x64xf32, [2, 64]>) -> tensor<?x2xf32, [@S0, 2]>
  return %d, %e, %f : tensor<?x32xf32, [@S0, 32]>, tensor<?x?xf32, [@S0, @S0]>, tensor<?x2xf32, [@S0, 2]>
}
