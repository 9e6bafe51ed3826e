/* Generated code as the compiler would make it, for ral_test.cc: y = x + weight for f32 [rows, 4], in parallel over rows. */
#include "ral.h"

static int64_t calls_of_this_library;

static void add_rows(const int64_t* args, int64_t begin, int64_t end, void* scratch) {
  const float* x = (const float*)args[0];
  float* y = (float*)args[1];
  float* line = (float*)scratch;
  for (int64_t row = begin; row < end; ++row) {
    for (int i = 0; i < 4; ++i) line[i] = x[row * 4 + i] + *(const float*)args[2];
    for (int i = 0; i < 4; ++i) y[row * 4 + i] = line[i];
  }
}

int32_t disc_entry(ral_exec* exec, const ral_host_api* api, const ral_tensor* inputs, const void* const* weights, int64_t* counters);

int32_t disc_entry(ral_exec* exec, const ral_host_api* api, const ral_tensor* inputs, const void* const* weights, int64_t* counters) {
  const int64_t* dims = inputs[0].dims;
  if (dims[0] > 100000) return api->fail(exec, 0, dims[0], 100000);
  __atomic_fetch_add(&calls_of_this_library, 1, __ATOMIC_RELAXED);
  counters[0] += dims[0];
  void* y = api->output(exec, 0, dims);
  char* block = (char*)api->alloc(exec, 64 + dims[0]);
  if (!y || !block) return 1;
  for (int64_t i = 0; i < dims[0]; ++i) block[i] = 1;
  const int64_t args[3] = {(int64_t)inputs[0].data, (int64_t)y, (int64_t)weights[0]};
  return api->launch(exec, 0, add_rows, args, dims[0], 1000 * RAL_COST_PER_NANOSECOND, 4 * sizeof(float));
}
