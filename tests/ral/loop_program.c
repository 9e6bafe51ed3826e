/* Generated code as the compiler would make it for programs with control flow, for device_test.cc. Input 0: x, i64 [n]. Input 1: i64 [2],
 * what to do, and the step at which a check fails (-1: none). Everything that kernels write is read with `read`, and buffers are got and
 * given back in loops.
 * With RECORDS a kernel is handed over as the record that the fake device expects, with GPU as the description of one for the stand-in driver,
 * else as a function. */
#include "ral.h"

#define WORDS(...) (int64_t[8]){__VA_ARGS__}
#define CALL(expression) \
  do {                   \
    if (expression) return 1; \
  } while (0)

typedef struct kernel_record {
  ral_kernel function;
  int64_t words; /* arguments */
} kernel_record;

#ifdef GPU
#include "fake_driver.h"
#define KERNEL(name) ((ral_kernel)(uintptr_t)&name##_gpu)
#define LAUNCHED(name, words, fault, ...)                                                                         \
  static void name##_run(const uint64_t* values, const uint32_t* grid) {                                          \
    int64_t line = 0;                                                                                             \
    name((const int64_t*)values, 0, grid[0], &line);                                                              \
  }                                                                                                               \
  static const fake_kernel name##_kernel = {"kernel", name##_run, (words) + 2, sizes};                            \
  static const fake_image name##_image = {FAKE_MAGIC, 1, &name##_kernel};                                         \
  static const ral_gpu_image name##_images[] = {{80, 0, NULL, 0}, {90, 0, &name##_image, sizeof name##_image}};   \
  static const uint8_t name##_kinds[] = {__VA_ARGS__};                                                            \
  static const ral_gpu_kernel name##_gpu = {2, 32, 50000, 1, 16, fault, 2, words, "kernel", name##_images, name##_kinds};
static const uint8_t sizes[] = {8, 8, 8, 8, 8, 8, 8, 8};
#else
#define LAUNCHED(name, words, fault, ...) static const kernel_record name##_record = {name, words};
#ifdef RECORDS
#define KERNEL(name) ((ral_kernel)(uintptr_t)&name##_record)
#else
#define KERNEL(name) (name##_record.function)
#endif
#endif
#define PLACE (8 + RAL_GPU_ADDRESS) /* of memory */
#define DEFINE(name, words, ...) DEFINE_CHECKED(name, words, -1, __VA_ARGS__)
#define DEFINE_CHECKED(name, words, fault, ...)                                     \
  static void name(const int64_t* args, int64_t begin, int64_t end, void* scratch); \
  LAUNCHED(name, words, fault, __VA_ARGS__)                                         \
  static void name(const int64_t* args, int64_t begin, int64_t end, void* scratch)

enum { kHalve, kAny, kSquare, kCount, kGather, kPick, kKernels };

/* (from, to, steps): to = from / 2, and a step more where from > 1 */
DEFINE(halve, 3, PLACE, PLACE, PLACE) {
  const int64_t* from = (const int64_t*)args[0];
  (void)scratch;
  for (int64_t i = begin; i < end; ++i) {
    ((int64_t*)args[1])[i] = from[i] / 2;
    ((int64_t*)args[2])[i] += from[i] > 1;
  }
}

/* (from, n, flag): whether any is above 1; one task */
DEFINE(any_above_one, 3, PLACE, 8, PLACE) {
  int64_t found = 0;
  (void)begin, (void)end, (void)scratch;
  for (int64_t i = 0; i < args[1]; ++i) found |= ((const int64_t*)args[0])[i] > 1;
  *(int64_t*)args[2] = found;
}

/* (to, first, weight): to[first + i] = (first + i)^2 + weight */
DEFINE(square, 3, PLACE, 8, PLACE) {
  int64_t* line = (int64_t*)scratch;
  for (int64_t i = begin; i < end; ++i) {
    *line = args[1] + i;
    ((int64_t*)args[0])[*line] = *line * *line + *(const int64_t*)args[2];
  }
}

/* (x, n, count): how many are not 0; one task */
DEFINE(count_nonzero, 3, PLACE, 8, PLACE) {
  int64_t count = 0;
  (void)begin, (void)end, (void)scratch;
  for (int64_t i = 0; i < args[1]; ++i) count += ((const int64_t*)args[0])[i] != 0;
  *(int64_t*)args[2] = count;
}

/* (x, n, to): the places of those that are not 0; one task */
DEFINE(gather_nonzero, 3, PLACE, 8, PLACE) {
  int64_t* to = (int64_t*)args[2];
  (void)begin, (void)end, (void)scratch;
  for (int64_t i = 0; i < args[1]; ++i) {
    if (((const int64_t*)args[0])[i]) *to++ = i;
  }
}

/* (x, n, to, fault): to[i] = x[x[i]]; an index out of range is reported, and 0 stands for it */
DEFINE_CHECKED(pick, 4, 3, PLACE, 8, PLACE, PLACE) {
  const int64_t* x = (const int64_t*)args[0];
  int64_t* fault = (int64_t*)args[3];
  (void)scratch;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t index = x[i] >= 0 && x[i] < args[1] ? x[i] : 0;
    if (index != x[i]) fault[1] = x[i], fault[2] = args[1], fault[0] = 1;
    ((int64_t*)args[2])[i] = x[index];
  }
}

/* What each program needs. */
typedef struct call {
  ral_exec* exec;
  const ral_host_api* api;
  const int64_t* x;
  int64_t n;
  const void* weight;
  int64_t stop; /* step at which a check fails */
  int64_t* steps;
} call;

static int32_t step(call* c) {
  if ((*c->steps)++ == c->stop) return c->api->fail(c->exec, 0, c->stop, 0);
  return 0;
}

static int32_t run(call* c, int64_t id, ral_kernel kernel, const int64_t* args, int64_t tasks) {
#ifdef GPU
  const int64_t words = ((const ral_gpu_kernel*)(uintptr_t)kernel)->parameter_count;
  int64_t slots[11] = {0};
  for (int64_t i = 0; i < words; ++i) slots[i] = args[i];
  slots[words] = tasks, slots[words + 1] = slots[words + 2] = 1;
  args = slots;
#endif
  return c->api->launch(c->exec, id, kernel, args, tasks, 1000 * RAL_COST_PER_NANOSECOND, id == kSquare ? sizeof(int64_t) : 0);
}

/* While any is above 1: halve all. Two buffers that take turns, of which each is got and given back in the loop. y = steps of each. */
static int32_t loop(call* c) {
  int64_t more = 0;
  int64_t* y = c->api->output(c->exec, 0, &c->n);
  int64_t* flag = c->api->alloc(c->exec, sizeof(int64_t));
  int64_t* now = c->api->alloc(c->exec, c->n * 8);
  if (!y || !flag || !now) return 1;
  CALL(c->api->copy(c->exec, now, c->x, c->n * 8));
  CALL(c->api->fill(c->exec, y, c->n * 8, 0));
  for (;;) {
    CALL(step(c));
    CALL(run(c, kAny, KERNEL(any_above_one), WORDS((int64_t)now, c->n, (int64_t)flag), 1));
    CALL(c->api->read(c->exec, flag, &more));
    if (!more) return c->api->free(c->exec, now);
    int64_t* next = c->api->alloc(c->exec, c->n * 8);
    if (!next) return 1;
    CALL(run(c, kHalve, KERNEL(halve), WORDS((int64_t)now, (int64_t)next, (int64_t)y), c->n));
    CALL(c->api->free(c->exec, now));
    now = next;
  }
}

/* y = i * i + weight for i below the sum of x, in a buffer that doubles whenever it is full. */
static int32_t grow(call* c) {
  int64_t wanted = 0, room = 1, count = 0, word = 0;
  for (int64_t i = 0; i < c->n; ++i) {
    CALL(c->api->read(c->exec, c->x + i, &word));
    wanted += word;
  }
  int64_t* buffer = c->api->alloc(c->exec, room * 8);
  if (!buffer) return 1;
  while (count < wanted) {
    const int64_t more = room - count < wanted - count ? room - count : wanted - count;
    CALL(step(c));
    CALL(run(c, kSquare, KERNEL(square), WORDS((int64_t)buffer, count, (int64_t)c->weight), more));
    count += more;
    if (count == wanted) break;
    int64_t* larger = c->api->alloc(c->exec, 2 * room * 8);
    if (!larger) return 1;
    CALL(c->api->copy(c->exec, larger, buffer, room * 8));
    CALL(c->api->free(c->exec, buffer));
    buffer = larger;
    room *= 2;
  }
  int64_t* y = c->api->output(c->exec, 0, &count);
  return y ? c->api->copy(c->exec, y, buffer, count * 8) : 1;
}

/* y = the places of what is not 0, as many as a kernel counts; where there are none, one that is -1. */
static int32_t gather(call* c) {
  int64_t count = 0;
  int64_t* place = c->api->alloc(c->exec, sizeof(int64_t));
  if (!place) return 1;
  CALL(run(c, kCount, KERNEL(count_nonzero), WORDS((int64_t)c->x, c->n, (int64_t)place), 1));
  CALL(c->api->read(c->exec, place, &count));
  CALL(c->api->free(c->exec, place));
  CALL(step(c));
  if (count == 0) {
    const int64_t one = 1;
    int64_t* none = c->api->output(c->exec, 0, &one);
    return none ? c->api->fill(c->exec, none, 8, 255) : 1;
  }
  int64_t* y = c->api->output(c->exec, 0, &count);
  return y ? run(c, kGather, KERNEL(gather_nonzero), WORDS((int64_t)c->x, c->n, (int64_t)y), 1) : 1;
}

/* While any of x is above 1, which has no end; y = zeros. */
static int32_t wait(call* c) {
  int64_t more = 1;
  int64_t* flag = c->api->alloc(c->exec, sizeof(int64_t));
  if (!flag) return 1;
  while (more) {
    CALL(run(c, kAny, KERNEL(any_above_one), WORDS((int64_t)c->x, c->n, (int64_t)flag), 1));
    CALL(c->api->read(c->exec, flag, &more));
  }
  int64_t* y = c->api->output(c->exec, 0, &c->n);
  return y ? c->api->fill(c->exec, y, c->n * 8, 0) : 1;
}

/* y = x[x], with indices that are checked. */
static int32_t picked(call* c) {
  int64_t* y = c->api->output(c->exec, 0, &c->n);
  int64_t* fault = c->api->alloc(c->exec, 3 * sizeof(int64_t));
  if (!y || !fault) return 1;
#ifdef GPU
  CALL(c->api->watch(c->exec, 1));
#endif
  return run(c, kPick, KERNEL(pick), WORDS((int64_t)c->x, c->n, (int64_t)y, (int64_t)fault), c->n);
}

int32_t disc_entry(ral_exec* exec, const ral_host_api* api, const ral_tensor* inputs, const void* const* weights, int64_t* counters);

int32_t disc_entry(ral_exec* exec, const ral_host_api* api, const ral_tensor* inputs, const void* const* weights, int64_t* counters) {
  int64_t what = 0;
  call c = {exec, api, inputs[0].data, inputs[0].dims[0], weights[0], -1, counters};
  const int64_t* wanted = inputs[1].data;
  CALL(api->read(exec, wanted, &what));
  CALL(api->read(exec, wanted + 1, &c.stop));
  return what == 0 ? loop(&c) : what == 1 ? grow(&c) : what == 2 ? gather(&c) : what == 3 ? wait(&c) : picked(&c);
}
