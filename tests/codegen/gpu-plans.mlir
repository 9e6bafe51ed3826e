// RUN: %disc_opt %s --passes=fuse-elementwise,fuse-compute,stitch,fuse-attention,form-fusions,choose-kernels --target=sm_90 --stage=fused | %filecheck %s

// A loop is flat blocks of elements.
// CHECK-LABEL: func.func @main
// CHECK: {disc.plan = {"cuda:x86-64-v3+sm_90" = "loop{block = 1024, warps = 4}"}, kind = "loop"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x64xf32, [@S0, 64]>) -> tensor<?x64xf32, [@S0, 64]> {
  %0 = stablehlo.negate %x : tensor<?x64xf32, [@S0, 64]>
  return %0 : tensor<?x64xf32, [@S0, 64]>
}

// -----
// A product with its epilogue is one kernel, of which a tree chooses the schedule in every call.
// CHECK-LABEL: func.func @main
// CHECK: "cuda:x86-64-v3+sm_90" = "product{schedules = [16x64x64+w4+s3+g8, 64x64x32+w4+s3+g8, 128x128x32+w8+s3+g8], nodes = [m>256?6:1, m>64?3:2, @0, m>160?5:4, @0, @1, m>1280?8:7, @1, @2], precision = tf32x3}"
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x256xf32, [@S0, 256]>) -> tensor<?x512xf32, [@S0, 512]> {
  %w = "disc.weight"() {name = "w"} : () -> tensor<256x512xf32, [256, 512]>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<?x256xf32, [@S0, 256]>, tensor<256x512xf32, [256, 512]>) -> tensor<?x512xf32, [@S0, 512]>
  %1 = stablehlo.negate %0 : tensor<?x512xf32, [@S0, 512]>
  return %1 : tensor<?x512xf32, [@S0, 512]>
}
