/* Generated code as the compiler would make it for GPUs of the stand-in driver: one product, by the library where there is one.
 * Inputs: a, b: f32 or others, flat; bias; and sizes, i64 [8] in this process's memory: m, n, k, batch, which of `descriptions`, what is wrong.
 * Output: y [batch * m * n], of i64 or f32. */
#include "ral.h"
#include "fake_driver.h"

static void own(const uint64_t* values, const uint32_t* grid) {
  for (uint32_t i = 0; i < grid[0]; ++i) ((float*)values[0])[i] = -1;
}
static const uint8_t sizes[] = {8, 8, 8};
static const fake_kernel own_kernel = {"kernel", own, 3, sizes};
static const fake_image own_image = {FAKE_MAGIC, 1, &own_kernel};
static const ral_gpu_image own_images[] = {{90, 0, &own_image, sizeof own_image}};
static const uint8_t kinds[] = {8 + RAL_GPU_ADDRESS};
static const ral_gpu_kernel own_gpu = {2, 32, 0, 1, 0, -1, 1, 1, "kernel", own_images, kinds};

/* a, b, bias, y. The last ones cannot be. */
static const ral_gpu_product descriptions[] = {
    {3, 4, 0, 1, -1, 3, RAL_F32, RAL_F32, 0, 1, 0}, {3, 4, 0, 1, 2, 3, RAL_F32, RAL_F32, 0, 0, 0},
    {3, 4, 0, 1, 2, 3, RAL_F32, RAL_F32, 1, 1, 0},  {3, 4, 0, 1, -1, 3, RAL_F32, RAL_F32, 1, 0, 1},
    {3, 4, 0, 1, 2, 4, RAL_F32, RAL_F32, 0, 0, 0},  {3, 4, -1, 1, 2, 3, RAL_F32, RAL_F32, 0, 0, 0},
    {3, 4, 0, 1, 9, 3, RAL_F32, RAL_F32, 0, 0, 0},  {3, 4, 0, 1, 2, 3, RAL_I32, RAL_F32, 0, 0, 0},
    {3, 4, 0, 1, 2, 3, RAL_F16, RAL_BF16, 0, 0, 0}, {3, -1, 0, 1, 2, 3, RAL_F32, RAL_F32, 0, 0, 0},
};

int32_t disc_entry(ral_exec* exec, const ral_host_api* api, const ral_tensor* in, const void* const* weights, int64_t* counters);
int32_t disc_entry(ral_exec* exec, const ral_host_api* api, const ral_tensor* in, const void* const* weights, int64_t* counters) {
  (void)weights;
  /* Sizes are dims, so that nothing is read and the call can be recorded. */
  const int64_t m = in[3].dims[0], n = in[3].dims[1], k = in[3].dims[2], batch = in[3].dims[3], which = in[3].dims[4] - 1;
  const int64_t count = batch * m * n;
  float* y = api->output(exec, 0, &count);
  if (!y) return 1;
  static const int64_t tree[] = {RAL_FEATURE_M, 1000, 1, 4, RAL_FEATURE_PRODUCTS, 0, 2, 3, -1, 0, 0, 0, -1, 1, 0, 0, -1, 0, 0, 0};
  int64_t features[RAL_FEATURE_COUNT] = {m, n, k, batch, 0};
  const int64_t chosen = api->choose(exec, tree, features, 2);
  counters[chosen] += 1;
  if (chosen == 0) {
    const int64_t arguments[] = {(int64_t)y, count, 1, 1};
    return api->launch(exec, 0, (ral_kernel)(uintptr_t)&own_gpu, arguments, count, 0, 0);
  }
  const ral_gpu_product* product = &descriptions[which];
  const int64_t left = product->left_apart ? m : k, right = product->right_apart ? n : k;
  int64_t arguments[] = {(int64_t)in[0].data, (int64_t)in[1].data, (int64_t)in[2].data, (int64_t)y, m, n, batch, 0, k, left, right, n,
                         m * k, n * k, m * n};
  if (in[3].dims[5] == 2) arguments[9] -= 1; /* rows that overlap */
  return api->launch(exec, 0, (ral_kernel)(uintptr_t)product, arguments, count, 0, 0);
}
