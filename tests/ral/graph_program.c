/* Generated code as the compiler would make it for GPUs of the stand-in driver, without anything that is read: it can be recorded.
 * Inputs: x, i64 [n], and y, i64 [m]. Outputs: z = x[x] + x, with indices that are checked, and w = y + weight. Addresses that kernels get lie
 * in inputs and results, also behind their starts, and in memory that was used before. */
#include "ral.h"
#include "fake_driver.h"

#define PLACE (8 + RAL_GPU_ADDRESS)
#define KERNEL(name, scratch, fault, words, ...)                                                                  \
  static void name(const uint64_t* values, const uint32_t* grid);                                                 \
  static const uint8_t name##_kinds[] = {__VA_ARGS__};                                                            \
  static const fake_kernel name##_kernel = {"kernel", name, (words) + 2, sizes};                                  \
  static const fake_image name##_image = {FAKE_MAGIC, 1, &name##_kernel};                                         \
  static const ral_gpu_image name##_images[] = {{90, 0, &name##_image, sizeof name##_image}};                     \
  static const ral_gpu_kernel name##_gpu = {2, 32, 0, 1, scratch, fault, 1, words, "kernel", name##_images, name##_kinds}; \
  static void name(const uint64_t* values, const uint32_t* grid)
#define CALL(expression)      \
  do {                        \
    if (expression) return 1; \
  } while (0)

static const uint8_t sizes[] = {8, 8, 8, 8, 8, 8, 8};

/* (x, n, to, fault): to[i] = x[x[i]]; an index out of range is reported, and 0 stands for it */
KERNEL(pick, 0, 3, 4, PLACE, 8, PLACE, PLACE) {
  const int64_t* x = (const int64_t*)values[0];
  int64_t* fault = (int64_t*)values[3];
  for (uint32_t i = 0; i < grid[0]; ++i) {
    const int64_t index = x[i] >= 0 && x[i] < (int64_t)values[1] ? x[i] : 0;
    if (index != x[i]) fault[1] = x[i], fault[2] = (int64_t)values[1], fault[0] = 1;
    ((int64_t*)values[2])[i] = x[index];
  }
}

/* (a, b, to): to[i] = a[i] + b[i], by way of scratch memory */
KERNEL(add, 8, -1, 3, PLACE, PLACE, PLACE) {
  int64_t* line = (int64_t*)values[3];
  for (uint32_t i = 0; i < grid[0]; ++i) {
    line[i] = ((const int64_t*)values[0])[i] + ((const int64_t*)values[1])[i];
    ((int64_t*)values[2])[i] = line[i];
  }
}

/* (a, weight, number, to): to[i] += a[i] + weight + number, a number that looks like an address is none */
KERNEL(raise, 0, -1, 4, PLACE, PLACE, 8, PLACE) {
  for (uint32_t i = 0; i < grid[0]; ++i) {
    ((int64_t*)values[3])[i] += ((const int64_t*)values[0])[i] + *(const int64_t*)values[1] + (int64_t)values[2];
  }
}

enum { kPick, kAdd, kRaise };
#define RUN(id, name, tasks, ...) \
  CALL(api->launch(exec, id, (ral_kernel)(uintptr_t)&name##_gpu, (int64_t[]){__VA_ARGS__, tasks, 1, 1}, tasks, 0, 0))

int32_t disc_entry(ral_exec* exec, const ral_host_api* api, const ral_tensor* in, const void* const* weights, int64_t* counters);

/* Descriptions that are refused, and one whose programs need more scratch memory than there are addresses. */
#define WRONG(...) {__VA_ARGS__, "kernel", add_images, add_kinds}
static const ral_gpu_kernel wrong[] = {
    WRONG(1, 32, 0, 1, 8, -1, 1, 3),        WRONG(2, 0, 0, 1, 8, -1, 1, 3),     WRONG(2, 1025, 0, 1, 8, -1, 1, 3),
    WRONG(2, 32, -1, 1, 8, -1, 1, 3),       WRONG(2, 32, 1 << 30, 1, 8, -1, 1, 3), WRONG(2, 32, 0, 0, 8, -1, 1, 3),
    WRONG(2, 32, 0, 17, 8, -1, 1, 3),       WRONG(2, 32, 0, 1, -8, -1, 1, 3),   WRONG(2, 32, 0, 1, 8, 3, 1, 3),
    WRONG(2, 32, 0, 1, 8, -2, 1, 3),        WRONG(2, 32, 0, 1, 8, -1, 0, 3),    WRONG(2, 32, 0, 1, 8, -1, 1, -1),
    {2, 32, 0, 1, 8, -1, 1, 3, 0, add_images, add_kinds},
    {2, 32, 0, 1, 8, -1, 1, 3, "kernel", 0, add_kinds},
    WRONG(2, 32, 0, 1, (1 << 20) + 1, -1, 1, 3),
    {2, 32, 0, 1, 8, -1, 1, 3, "kernel", add_images, 0},
    {2, 32, 0, 1, 8, -1, 1, 513, "kernel", add_images, add_kinds},
    WRONG(2, 32, 0, 1, 1 << 20, -1, 1, 3),
};

int32_t disc_entry(ral_exec* exec, const ral_host_api* api, const ral_tensor* in, const void* const* weights, int64_t* counters) {
  const int64_t n = in[0].dims[0], m = in[1].dims[0], far = (int64_t)1 << 62;
  const int64_t *x = in[0].data, *y = in[1].data;
  if (n >= 100) {
    int64_t slots[520] = {0};
    const ral_gpu_kernel* kernel = &wrong[n - 100];
    const int64_t place = kernel->parameter_count > 0 ? kernel->parameter_count : 0;
    for (int64_t i = kernel->parameter_count < 0 ? -1 : place; i < place + 3; ++i) slots[i + 1] = 1;
    if (kernel->scratch == 1 << 20) slots[place + 1] = INT32_MAX, slots[place + 2] = slots[place + 3] = 65535;
    return api->launch(exec, kAdd, (ral_kernel)(uintptr_t)kernel, slots + 1, 1, 0, 0);
  }
  if (n == 13) {
    int64_t first = 0;
    CALL(api->read(exec, x, &first)); /* such calls cannot be recorded */
  }
  counters[(uintptr_t)x % 16 != 0] += 1;
  int64_t* picked = api->alloc(exec, n * 8);
  int64_t* z = api->output(exec, 0, &n);
  if (!picked || !z) return 1;
  CALL(api->watch(exec, 0));
  RUN(kPick, pick, n, (int64_t)x, n, (int64_t)picked, 0);
  RUN(kAdd, add, n, (int64_t)picked, (int64_t)x, (int64_t)z);
  if (n > 1) RUN(kAdd, add, n - 1, (int64_t)(picked + 1), (int64_t)(x + 1), (int64_t)(z + 1));
  CALL(api->free(exec, picked));
  int64_t* again = api->alloc(exec, m * 8); /* the same memory, where it is large enough */
  int64_t* w = api->output(exec, 1, &m);
  if (!again || !w) return 1;
  CALL(api->copy(exec, again, y, m * 8));
  CALL(api->fill(exec, w, m * 8, 0));
  RUN(kRaise, raise, m, (int64_t)again, (int64_t)weights[0], far, (int64_t)w);
  CALL(api->fill(exec, again, m * 8, 0));
  RUN(kRaise, raise, m, (int64_t)again, (int64_t)(again), -far, (int64_t)w); /* the number is gone again */
  return 0;
}
