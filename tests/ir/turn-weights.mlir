// RUN: %disc_opt %s --passes=turn-weights --stage=named | %filecheck %s

// Products that sum over the first dim read the weight turned, from both sides.
// CHECK-LABEL: func.func @main
// CHECK-NOT: name = "across"
// CHECK: %[[T:.*]] = "disc.weight"() {name = "turned.across"} : () -> tensor<6x8xf32, [6, 8]>
// CHECK: %[[B:.*]] = "disc.weight"() {name = "turned.batches"} : () -> tensor<3x5x8xf32, [3, 5, 8]>
// CHECK-DAG: %[[ALONG:.*]] = "disc.weight"() {name = "along"}
// CHECK-DAG: %[[READ:.*]] = "disc.weight"() {name = "read"}
// CHECK-DAG: %[[BOTH:.*]] = "disc.weight"() {name = "both"}
// CHECK-DAG: %[[NARROW:.*]] = "disc.weight"() {name = "narrow"}
// CHECK-DAG: %[[ODD:.*]] = "disc.weight"() {name = "odd"}
// CHECK: stablehlo.dot_general %arg0, %[[T]], contracting_dims = [1] x [1]
// CHECK: stablehlo.dot_general %[[T]], %arg0, contracting_dims = [1] x [1]
// CHECK: stablehlo.dot_general %arg1, %[[B]], batching_dims = [0] x [0], contracting_dims = [2] x [2]

// What lies along k, is read by others, is summed over either dim, has 16 bits, or would lose its loads of 16 bytes, stays.
// CHECK: stablehlo.dot_general %arg0, %[[ALONG]], contracting_dims = [1] x [1]
// CHECK: stablehlo.dot_general %arg0, %[[READ]], contracting_dims = [1] x [0]
// CHECK: stablehlo.dot_general %arg0, %[[BOTH]], contracting_dims = [1] x [0]
// CHECK: stablehlo.dot_general %arg0, %[[BOTH]], contracting_dims = [1] x [1]
// CHECK: stablehlo.dot_general %arg2, %[[NARROW]], contracting_dims = [1] x [0]
// CHECK: stablehlo.dot_general %arg3, %[[ODD]], contracting_dims = [1] x [0]
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x8xf32, [@S0, 8]>, %y: tensor<3x?x8xf32, [3, @S0, 8]>, %h: tensor<?x8xbf16, [@S0, 8]>, %o: tensor<?x7xf32, [@S0, 7]>)
    -> (tensor<?x6xf32, [@S0, 6]>, tensor<6x?xf32, [6, @S0]>, tensor<3x?x5xf32, [3, @S0, 5]>, tensor<?x4xf32, [@S0, 4]>, tensor<?x8xf32, [@S0, 8]>,
        tensor<8x8xf32, [8, 8]>, tensor<?x8xf32, [@S0, 8]>, tensor<?x8xf32, [@S0, 8]>, tensor<?x4xbf16, [@S0, 4]>, tensor<?x4xf32, [@S0, 4]>) {
  %across = "disc.weight"() {name = "across"} : () -> tensor<8x6xf32, [8, 6]>
  %batches = "disc.weight"() {name = "batches"} : () -> tensor<3x8x5xf32, [3, 8, 5]>
  %along = "disc.weight"() {name = "along"} : () -> tensor<4x8xf32, [4, 8]>
  %read = "disc.weight"() {name = "read"} : () -> tensor<8x8xf32, [8, 8]>
  %both = "disc.weight"() {name = "both"} : () -> tensor<8x8xf32, [8, 8]>
  %narrow = "disc.weight"() {name = "narrow"} : () -> tensor<8x4xbf16, [8, 4]>
  %odd = "disc.weight"() {name = "odd"} : () -> tensor<7x4xf32, [7, 4]>
  %0 = stablehlo.dot_general %x, %across, contracting_dims = [1] x [0] : (tensor<?x8xf32, [@S0, 8]>, tensor<8x6xf32, [8, 6]>) -> tensor<?x6xf32, [@S0, 6]>
  %1 = stablehlo.dot_general %across, %x, contracting_dims = [0] x [1] : (tensor<8x6xf32, [8, 6]>, tensor<?x8xf32, [@S0, 8]>) -> tensor<6x?xf32, [6, @S0]>
  %2 = stablehlo.dot_general %y, %batches, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<3x?x8xf32, [3, @S0, 8]>, tensor<3x8x5xf32, [3, 8, 5]>) -> tensor<3x?x5xf32, [3, @S0, 5]>
  %3 = stablehlo.dot_general %x, %along, contracting_dims = [1] x [1] : (tensor<?x8xf32, [@S0, 8]>, tensor<4x8xf32, [4, 8]>) -> tensor<?x4xf32, [@S0, 4]>
  %4 = stablehlo.dot_general %x, %read, contracting_dims = [1] x [0] : (tensor<?x8xf32, [@S0, 8]>, tensor<8x8xf32, [8, 8]>) -> tensor<?x8xf32, [@S0, 8]>
  %5 = stablehlo.tanh %read : tensor<8x8xf32, [8, 8]>
  %6 = stablehlo.dot_general %x, %both, contracting_dims = [1] x [0] : (tensor<?x8xf32, [@S0, 8]>, tensor<8x8xf32, [8, 8]>) -> tensor<?x8xf32, [@S0, 8]>
  %7 = stablehlo.dot_general %x, %both, contracting_dims = [1] x [1] : (tensor<?x8xf32, [@S0, 8]>, tensor<8x8xf32, [8, 8]>) -> tensor<?x8xf32, [@S0, 8]>
  %8 = stablehlo.dot_general %h, %narrow, contracting_dims = [1] x [0] : (tensor<?x8xbf16, [@S0, 8]>, tensor<8x4xbf16, [8, 4]>) -> tensor<?x4xbf16, [@S0, 4]>
  %9 = stablehlo.dot_general %o, %odd, contracting_dims = [1] x [0] : (tensor<?x7xf32, [@S0, 7]>, tensor<7x4xf32, [7, 4]>) -> tensor<?x4xf32, [@S0, 4]>
  return %0, %1, %2, %3, %4, %5, %6, %7, %8, %9 : tensor<?x6xf32, [@S0, 6]>, tensor<6x?xf32, [6, @S0]>, tensor<3x?x5xf32, [3, @S0, 5]>, tensor<?x4xf32, [@S0, 4]>, tensor<?x8xf32, [@S0, 8]>, tensor<8x8xf32, [8, 8]>, tensor<?x8xf32, [@S0, 8]>, tensor<?x8xf32, [@S0, 8]>, tensor<?x4xbf16, [@S0, 4]>, tensor<?x4xf32, [@S0, 4]>
}
