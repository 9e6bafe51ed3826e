/* A stand-in for NVIDIA's driver, libcuda.so.1, without a GPU. Device memory is memory of this process that only running work may touch. What is
 * asked of a stream runs when somebody waits for it, streams in an order drawn from a seed. Memory holds nonsense before it is written, and
 * ends the process when it is used after it was freed, as does any other misuse that the real driver need not notice. */
#define _GNU_SOURCE
#include "fake_driver.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_IMAGE = 200,
       INVALID_CONTEXT = 201, NO_BINARY = 209, UNSUPPORTED_PTX = 222, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600,
       ILLEGAL_ADDRESS = 700 };
enum { MOST_GPUS = 8, MOST_PARAMETERS = 514, GUARD = 4096, PLAIN_SHARED = 48 << 10, MOST_SHARED = 227 << 10 };

typedef uint64_t address;

typedef struct function {
  struct function* next;
  struct module* module;
  char name[256];
  const fake_kernel* own; /* of a fake_image */
  int32_t count;
  uint8_t sizes[MOST_PARAMETERS];
  int32_t shared; /* that it may have */
} function;

typedef struct module {
  struct context* context;
  const void* image;
  int64_t size;
  function* functions;
} module;

typedef struct block {
  struct block* next;
  address first;
  int64_t bytes, whole; /* whole: of pages, without the guard */
  int32_t gpu, live, host;
} block;

typedef enum { LAUNCH, COPY, FILL, FREE, RECORD, GRAPH, CALL } kind;

typedef struct op {
  struct op* next;
  kind kind;
  function* function;
  uint32_t grid[3];
  uint64_t* values;
  int64_t words; /* of the values of a call */
  void (*call)(const uint64_t*);
  address to, from;
  size_t bytes;
  int32_t value, width;
  struct event* event;
  struct exec* exec;  /* of a graph */
  struct op* items;   /* its nodes, as they were when it was launched */
  int64_t ticket;     /* how many launches of it come before */
} op;

typedef struct node {
  struct node* next;
  struct graph* owner;
  int32_t number, behind; /* behind: the node that it comes after, -1 = none */
  op item;
} node;

typedef struct graph {
  node* nodes; /* the last one first */
  int32_t count;
} graph;

typedef struct exec {
  graph* from;
  struct context* context;
  int32_t count;
  op* items;
  int32_t* behind;
  int64_t asked, done; /* launches */
} exec;

typedef struct stream {
  struct stream* next;
  struct context* context;
  op *first, **last;
  int32_t running, legacy;
  struct graph* captured; /* what is asked for goes there meanwhile */
} stream;

typedef struct event {
  int64_t pending; /* records that have not run */
  int64_t time;
  int32_t recorded;
} event;

typedef struct context {
  int32_t gpu;
  stream legacy;
} context;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards all of it; work itself runs without */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int32_t gpus = 1, architecture = 90, version = 13000, eager, protects, started;
static int64_t memory = (int64_t)1 << 34, used[MOST_GPUS];
static context contexts[MOST_GPUS];
static stream* streams;
static block* blocks;
static uint32_t state = 1;
static int64_t fail_at = -1, crash_at = -1;
static int32_t fail_with, lost, working;
static const char* failed_call = "";
static fake_counts counts;
static int32_t (*executor)(const void*, int64_t, const char*, const uint32_t*, const uint64_t*, int32_t);
static __thread context* current[16];
static __thread int32_t depth;

static void misused(const char* what, const char* name) {
  fprintf(stderr, "fake driver: %s%s%s\n", what, name ? ": " : "", name ? name : "");
  abort();
}

static void lock(void) { pthread_mutex_lock(&mutex); }
static int32_t unlock(int32_t result) {
  pthread_mutex_unlock(&mutex);
  return result;
}

static uint32_t drawn(uint32_t below) {
  state = state * 1664525u + 1013904223u;
  return (state >> 8) % below;
}

/* --- what tests say ------------------------------------------------------------------------------------------------------------ */

void fake_configure(int32_t count, int32_t sm, int32_t driver, int64_t bytes) {
  gpus = count, architecture = sm, version = driver, memory = bytes;
}
void fake_set_executor(int32_t (*run)(const void*, int64_t, const char*, const uint32_t*, const uint64_t*, int32_t)) { executor = run; }
void fake_set_seed(uint32_t seed, int32_t percent) {
  lock();
  state = seed * 2654435761u + 1, eager = percent;
  unlock(0);
}
void fake_fail(int64_t number, int32_t result) {
  lock();
  fail_at = number, fail_with = result, counts.calls = 0;
  if (number >= 0) failed_call = "";
  unlock(0);
}
const char* fake_get_failed(void) {
  lock();
  const char* found = failed_call;
  unlock(0);
  return found;
}
void fake_crash(int64_t number) {
  lock();
  crash_at = number;
  unlock(0);
}
fake_counts fake_get_counts(void) {
  lock();
  const fake_counts found = counts;
  unlock(0);
  return found;
}

static block* find(address place, int32_t live) {
  for (block* each = blocks; each; each = each->next) {
    if (each->live == live && place >= each->first && place < each->first + (address)(each->bytes ? each->bytes : 1)) return each;
  }
  return NULL;
}

int32_t fake_find(uint64_t place, uint64_t* first, int64_t* bytes) {
  lock();
  const block* found = find(place, 1);
  if (found) *first = found->first, *bytes = found->bytes;
  return unlock(found != NULL);
}

static void protect(int32_t access) {
  for (block* each = blocks; each; each = each->next) {
    if (each->live && !each->host && mprotect((void*)each->first, (size_t)each->whole, access)) misused("mprotect failed", NULL);
  }
}

void fake_set_protection(int32_t on) {
  lock();
  protects = on;
  protect(on ? PROT_NONE : PROT_READ | PROT_WRITE);
  unlock(0);
}

/* --- calls ---------------------------------------------------------------------------------------------------------------------- */

/* The result of a call before it does anything: it holds the lock from here on. */
static int32_t begin_call(const char* name) {
  lock();
  if (counts.calls++ != fail_at) return lost;
  failed_call = name;
  return fail_with;
}
#define begin() begin_call(__func__)

static context* here(void) { return depth ? current[depth - 1] : NULL; }

static stream* stream_of(void* handle) {
  if ((uintptr_t)handle > 2) return handle;
  context* own = here();
  return own ? &own->legacy : NULL;
}

static int32_t is_stream(const stream* wanted) {
  for (int32_t i = 0; i < gpus; ++i) {
    if (wanted == &contexts[i].legacy) return 1;
  }
  for (const stream* each = streams; each; each = each->next) {
    if (each == wanted) return 1;
  }
  return 0;
}

static op* ask(stream* s, kind what) {
  if (s->captured) misused("this cannot be captured", NULL);
  op* o = calloc(1, sizeof *o);
  o->kind = what;
  *s->last = o;
  s->last = &o->next;
  return o;
}

/* --- work ----------------------------------------------------------------------------------------------------------------------- */

static void check_range(address place, size_t bytes, const char* what) {
  if (find(place, 0)) misused("use after free", what);
  const block* found = find(place, 1);
  if (found && place + bytes > found->first + (address)found->bytes) misused("beyond the end of a block", what);
}

static void drop(block* each) {
  mprotect((void*)each->first, (size_t)each->whole, PROT_READ | PROT_WRITE);
  memset((void*)each->first, 0xdb, (size_t)each->bytes);
  mprotect((void*)each->first, (size_t)each->whole, PROT_NONE); /* the addresses are never used again */
  madvise((void*)each->first, (size_t)each->whole, MADV_DONTNEED);
  each->live = 0;
  if (each->host) {
    counts.live_host -= 1;
  } else {
    counts.live_blocks -= 1, counts.live_bytes -= each->bytes, used[each->gpu] -= each->bytes;
  }
}

static int32_t execute(op* o) {
  if (o->kind == COPY) memcpy((void*)o->to, (const void*)o->from, o->bytes);
  if (o->kind == FILL && o->width == 1) memset((void*)o->to, o->value, o->bytes);
  for (size_t i = 0; o->kind == FILL && o->width == 4 && i < o->bytes / 4; ++i) ((int32_t*)o->to)[i] = o->value;
  if (o->kind == CALL) o->call(o->values);
  if (o->kind != LAUNCH) return SUCCESS;
  if (o->function->own) {
    o->function->own->run(o->values, o->grid);
    return SUCCESS;
  }
  const module* from = o->function->module;
  if (!executor) misused("nothing runs machine code", o->function->name);
  return executor(from->image, from->size, o->function->name, o->grid, o->values, o->function->count);
}

static void check(const op* o) {
  if (o->kind == COPY || o->kind == FILL) check_range(o->to, o->bytes, "copy or fill");
  if (o->kind == COPY) check_range(o->from, o->bytes, "copy");
  for (uint64_t i = 0; o->kind == CALL && i < o->values[0]; ++i) {
    if (!find(o->values[1 + 2 * i], 1) && !find(o->values[1 + 2 * i], 0)) misused("a call uses what is no device memory", NULL);
    check_range(o->values[1 + 2 * i], o->values[2 + 2 * i], "call");
  }
  for (int32_t i = 0; o->kind == LAUNCH && i < o->function->count; ++i) {
    if (o->function->sizes[i] == 8 && find(o->values[i], 0)) misused("use after free in a launch", o->function->name);
  }
}

/* Does one thing. The lock is held, and given up meanwhile. */
static void work_on(op* o) {
  if (lost) return;
  if (o->kind == LAUNCH && crash_at >= 0 && crash_at-- == 0) {
    lost = ILLEGAL_ADDRESS;
    return;
  }
  check(o);
  if (protects && working++ == 0) protect(PROT_READ | PROT_WRITE);
  pthread_mutex_unlock(&mutex);
  const int32_t failed = execute(o);
  lock();
  if (protects && --working == 0) protect(PROT_NONE);
  if (failed) lost = failed;
  counts.executed += o->kind == LAUNCH;
  counts.calls_made += o->kind == CALL;
}

/* Nodes in any order that their dependencies allow. */
static void work_on_graph(op* o) {
  exec* e = o->exec;
  uint8_t* done = calloc((size_t)e->count + 1, 1);
  for (int32_t left = e->count; left > 0; --left) {
    int32_t ready = 0, chosen = -1;
    for (int32_t i = 0; i < e->count; ++i) {
      if (!done[i] && (e->behind[i] < 0 || done[e->behind[i]]) && drawn((uint32_t)++ready) == 0) chosen = i;
    }
    done[chosen] = 1;
    work_on(&o->items[chosen]);
  }
  for (int32_t i = 0; i < e->count; ++i) free(o->items[i].values);
  free(o->items);
  free(done);
  e->done += 1;
}

/* Runs the first request of a stream. The lock is held, and given up meanwhile. */
static void step(stream* s) {
  op* o = s->first;
  s->first = o->next;
  if (!s->first) s->last = &s->first;
  s->running = 1;
  if (!lost && o->kind == FREE) {
    block* freed = find(o->to, 1);
    if (!freed || freed->first != o->to || freed->host) misused("free of what is no block", NULL);
    drop(freed);
  } else if (o->kind == RECORD) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    o->event->time = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    if (--o->event->pending < 0) misused("an event was destroyed", NULL);
  } else if (o->kind == GRAPH) {
    work_on_graph(o);
  } else if (o->kind != FREE) {
    work_on(o);
  }
  s->running = 0;
  pthread_cond_broadcast(&changed);
  free(o->values);
  free(o);
}

/* Launches of one graph run one after the other, whatever their streams. */
static int32_t is_ready(const stream* s) {
  return s->first && !s->running && !(s->first->kind == GRAPH && s->first->ticket != s->first->exec->done);
}

static stream* any_ready(void) {
  stream* ready[1024];
  uint32_t count = 0;
  for (int32_t i = 0; i < gpus; ++i) {
    if (is_ready(&contexts[i].legacy)) ready[count++] = &contexts[i].legacy;
  }
  for (stream* each = streams; each && count < 1024; each = each->next) {
    if (is_ready(each)) ready[count++] = each;
  }
  return count ? ready[drawn(count)] : NULL;
}

/* Some work is done before anybody waits for it. */
static void progress(void) {
  if (eager && drawn(100) < (uint32_t)eager) {
    stream* s = any_ready();
    if (s) step(s);
  }
}

static void wait_for(stream* s) {
  counts.waits += 1;
  while (s->first || s->running) {
    stream* other = !is_ready(s) || drawn(3) == 0 ? any_ready() : NULL;
    if (other) step(other);
    else if (is_ready(s)) step(s);
    else pthread_cond_wait(&changed, &mutex);
  }
}

static int32_t any_running(void) {
  int32_t found = 0;
  for (int32_t i = 0; i < gpus; ++i) found |= contexts[i].legacy.running || contexts[i].legacy.first;
  for (const stream* each = streams; each; each = each->next) found |= each->running || each->first;
  return found;
}

static void wait_for_all(void) {
  counts.waits += 1;
  while (any_running()) {
    stream* s = any_ready();
    if (s) step(s);
    else pthread_cond_wait(&changed, &mutex);
  }
}

/* --- the driver: start and devices ---------------------------------------------------------------------------------------------- */

int32_t cuInit(uint32_t flags) {
  (void)flags;
  const int32_t failed = begin();
  if (failed || gpus == 0) return unlock(failed ? failed : NO_DEVICE);
  for (int32_t i = 0; i < gpus && !started; ++i) {
    contexts[i].gpu = i;
    contexts[i].legacy = (stream){NULL, &contexts[i], NULL, NULL, 0, 1, NULL};
    contexts[i].legacy.last = &contexts[i].legacy.first;
  }
  started = 1;
  return unlock(SUCCESS);
}
int32_t cuDriverGetVersion(int32_t* found) {
  *found = version;
  return SUCCESS;
}
int32_t cuGetErrorName(int32_t error, const char** name) {
  static const struct {
    int32_t code;
    const char* name;
  } names[] = {{INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},     {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
               {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},             {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
               {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE"},     {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
               {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},   {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
               {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"}, {NO_BINARY, "CUDA_ERROR_NO_BINARY_FOR_GPU"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    if (names[i].code != error) continue;
    *name = names[i].name;
    return SUCCESS;
  }
  return INVALID_VALUE;
}
int32_t cuGetErrorString(int32_t error, const char** text) {
  (void)error;
  *text = "of the stand-in";
  return SUCCESS;
}
int32_t cuDeviceGetCount(int32_t* count) {
  *count = gpus;
  return started ? SUCCESS : NOT_INITIALIZED;
}
int32_t cuDeviceGet(int32_t* device, int32_t ordinal) {
  const int32_t failed = begin();
  *device = ordinal;
  return unlock(failed ? failed : !started ? NOT_INITIALIZED : ordinal < 0 || ordinal >= gpus ? INVALID_DEVICE : SUCCESS);
}
int32_t cuDeviceGetName(char* name, int32_t size, int32_t device) {
  snprintf(name, (size_t)size, "Stand-in %d", device);
  return SUCCESS;
}
int32_t cuDeviceTotalMem_v2(size_t* bytes, int32_t device) {
  (void)device;
  *bytes = (size_t)memory;
  return SUCCESS;
}
int32_t cuDeviceGetAttribute(int32_t* value, int32_t attribute, int32_t device) {
  (void)device;
  *value = attribute == 16 ? 132 : attribute == 75 ? architecture / 10 : attribute == 76 ? architecture % 10 : attribute == 97 ? MOST_SHARED : 1;
  return SUCCESS;
}
int32_t cuDevicePrimaryCtxRetain(void** found, int32_t device) {
  const int32_t failed = begin();
  *found = &contexts[device];
  return unlock(failed);
}
int32_t cuCtxPushCurrent_v2(void* pushed) {
  if (depth == 16) misused("contexts are pushed and not popped", NULL);
  current[depth++] = pushed;
  return SUCCESS;
}
int32_t cuCtxPopCurrent_v2(void** popped) {
  if (!depth) return INVALID_CONTEXT;
  *popped = current[--depth];
  return SUCCESS;
}
int32_t cuCtxSynchronize(void) {
  const int32_t failed = begin();
  if (failed || !here()) return unlock(failed ? failed : INVALID_CONTEXT);
  wait_for_all();
  return unlock(lost);
}

/* --- modules --------------------------------------------------------------------------------------------------------------------- */

static function* add_function(module* m, const char* name, size_t length) {
  function* f = calloc(1, sizeof *f);
  f->module = m, f->next = m->functions, f->shared = PLAIN_SHARED;
  memcpy(f->name, name, length < sizeof f->name ? length : sizeof f->name - 1);
  m->functions = f;
  return f;
}

static uint64_t word(const uint8_t* at, int32_t bytes) {
  uint64_t value = 0;
  memcpy(&value, at, (size_t)bytes);
  return value;
}

/* Of the sections .nv.info.<name> of a cubin: attribute 0x17 is a parameter, (ordinal, offset, size << 18). */
static void read_cubin(module* m) {
  const uint8_t* elf = m->image;
  const uint64_t table = word(elf + 40, 8), entry = word(elf + 58, 2), sections = word(elf + 60, 2);
  const char* names = (const char*)elf + word(elf + table + entry * word(elf + 62, 2) + 24, 8);
  m->size = (int64_t)(table + entry * sections);
  for (uint64_t i = 0; i < sections; ++i) {
    const uint8_t* head = elf + table + entry * i;
    const uint8_t* data = elf + word(head + 24, 8);
    const uint64_t size = word(head + 32, 8);
    const char* name = names + word(head, 4);
    if (word(head + 4, 4) != 8 && (int64_t)(word(head + 24, 8) + size) > m->size) m->size = (int64_t)(word(head + 24, 8) + size);
    if (strncmp(name, ".nv.info.", 9)) continue;
    function* f = add_function(m, name + 9, strlen(name + 9));
    for (uint64_t at = 0; at < size; at += 4 + (data[at] == 4 ? word(data + at + 2, 2) : 0)) {
      if (data[at] != 4 || data[at + 1] != 0x17) continue;
      f->count += 1;
      f->sizes[word(data + at + 8, 2)] = (uint8_t)(word(data + at + 12, 4) >> 18);
    }
  }
  const int64_t segments = (int64_t)(word(elf + 32, 8) + word(elf + 54, 2) * word(elf + 56, 2));
  if (segments > m->size) m->size = segments;
}

static void read_own(module* m) {
  const fake_image* image = m->image;
  for (int64_t i = 0; i < image->count; ++i) {
    const fake_kernel* kernel = &image->kernels[i];
    function* f = add_function(m, kernel->name, strlen(kernel->name));
    f->own = kernel, f->count = kernel->count;
    memcpy(f->sizes, kernel->sizes, (size_t)kernel->count);
  }
}

/* Of PTX: ".entry name(" and its ".param .u64 name" up to the parenthesis. */
static int32_t read_ptx(module* m) {
  const char* text = m->image;
  m->size = (int64_t)strlen(text);
  for (const char* at = strstr(text, ".entry "); at; at = strstr(at, ".entry ")) {
    at += 7;
    const char *head = strchr(at, '('), *end = head ? strchr(head, ')') : NULL;
    if (!end) return INVALID_IMAGE;
    function* f = add_function(m, at, strcspn(at, " (\n\t"));
    for (const char* each = strstr(head, ".param "); each && each < end; each = strstr(each + 1, ".param ")) {
      const char* type = each + 7 + strcspn(each + 7, ".");
      f->sizes[f->count++] = (uint8_t)(strtol(type + 2, NULL, 10) / 8);
    }
  }
  return m->functions ? SUCCESS : INVALID_IMAGE;
}

int32_t cuModuleLoadDataEx(module** found, const void* image, uint32_t options, int32_t* names, void** values) {
  (void)options, (void)names, (void)values;
  int32_t failed = begin();
  if (!failed && !here()) failed = INVALID_CONTEXT;
  if (failed) return unlock(failed);
  module* m = calloc(1, sizeof *m);
  m->context = here(), m->image = image;
  if (!memcmp(image, "\177ELF", 4)) read_cubin(m);
  else if (!memcmp(image, FAKE_MAGIC, 8)) read_own(m);
  else failed = read_ptx(m);
  if (failed) {
    free(m);
    return unlock(failed);
  }
  counts.live_modules += 1;
  *found = m;
  return unlock(SUCCESS);
}
int32_t cuModuleUnload(module* m) {
  lock();
  for (function* f = m->functions; f;) {
    function* next = f->next;
    for (stream* s = streams; s; s = s->next) {
      for (op* o = s->first; o; o = o->next) {
        if (o->kind == LAUNCH && o->function == f) misused("a module is unloaded before a launch of it has run", f->name);
      }
    }
    free(f);
    f = next;
  }
  free(m);
  counts.live_modules -= 1;
  return unlock(SUCCESS);
}
int32_t cuModuleGetFunction(function** found, module* m, const char* name) {
  const int32_t failed = begin();
  if (failed) return unlock(failed);
  for (function* f = m->functions; f; f = f->next) {
    if (strcmp(f->name, name)) continue;
    *found = f;
    return unlock(SUCCESS);
  }
  return unlock(NOT_FOUND);
}
int32_t cuFuncSetAttribute(function* f, int32_t attribute, int32_t value) {
  const int32_t failed = begin();
  if (failed) return unlock(failed);
  if (attribute != 8 || value > MOST_SHARED) return unlock(INVALID_VALUE);
  f->shared = value;
  return unlock(SUCCESS);
}

typedef struct config {
  uint32_t grid[3], block[3], shared;
  void* stream;
  const struct {
    int32_t id;
    char padding[4];
    uint32_t cluster[16];
  } * attributes;
  uint32_t count;
} config;

int32_t cuLaunchKernelEx(const config* c, function* f, void** parameters, void** extra) {
  (void)extra;
  const int32_t failed = begin();
  if (failed) return unlock(failed);
  stream* s = stream_of(c->stream);
  if (!is_stream(s)) return unlock(INVALID_HANDLE);
  if (s->context != f->module->context || here() != s->context) return unlock(INVALID_HANDLE);
  const uint32_t threads = c->block[0] * c->block[1] * c->block[2];
  if (!c->grid[0] || !c->grid[1] || !c->grid[2] || c->grid[0] > INT32_MAX || c->grid[1] > 65535 || c->grid[2] > 65535 || !threads ||
      threads > 1024 || c->shared > (uint32_t)f->shared || (c->count && c->grid[0] % c->attributes->cluster[0])) {
    return unlock(INVALID_VALUE);
  }
  op* o = ask(s, LAUNCH);
  o->function = f;
  memcpy(o->grid, c->grid, sizeof o->grid);
  o->values = calloc((size_t)f->count + 1, sizeof *o->values);
  for (int32_t i = 0; i < f->count; ++i) memcpy(&o->values[i], parameters[i], f->sizes[i]); /* as the driver: that many bytes, now */
  counts.launches += 1;
  progress();
  return unlock(SUCCESS);
}

/* --- streams and events ---------------------------------------------------------------------------------------------------------- */

int32_t cuStreamCreate(stream** found, uint32_t flags) {
  (void)flags;
  const int32_t failed = begin();
  if (failed || !here()) return unlock(failed ? failed : INVALID_CONTEXT);
  stream* s = calloc(1, sizeof *s);
  s->context = here(), s->last = &s->first, s->next = streams;
  streams = *found = s;
  counts.live_streams += 1;
  return unlock(SUCCESS);
}
int32_t cuStreamSynchronize(void* handle) {
  const int32_t failed = begin();
  if (failed) return unlock(failed);
  stream* s = stream_of(handle);
  if (is_stream(s) && s->captured) misused("a stream that is captured is waited for", NULL);
  if (!is_stream(s)) return unlock(INVALID_HANDLE);
  wait_for(s);
  return unlock(lost);
}
int32_t cuStreamDestroy_v2(void* handle) {
  lock();
  if (!is_stream(handle)) misused("a stream is destroyed twice", NULL);
  wait_for(handle);
  for (stream** each = &streams; *each; each = &(*each)->next) {
    if (*each != handle) continue;
    *each = (*each)->next;
    break;
  }
  free(handle);
  counts.live_streams -= 1;
  return unlock(SUCCESS);
}
int32_t cuStreamGetCtx(void* handle, void** found) {
  const int32_t failed = begin();
  if (failed) return unlock(failed);
  stream* s = stream_of(handle);
  if (!is_stream(s)) return unlock(INVALID_HANDLE);
  *found = s->context;
  return unlock(SUCCESS);
}
int32_t cuEventCreate(event** found, uint32_t flags) {
  (void)flags;
  const int32_t failed = begin();
  if (failed || !here()) return unlock(failed ? failed : INVALID_CONTEXT);
  *found = calloc(1, sizeof **found);
  counts.live_events += 1;
  return unlock(SUCCESS);
}
int32_t cuEventRecord(event* e, void* handle) {
  const int32_t failed = begin();
  if (failed) return unlock(failed);
  stream* s = stream_of(handle);
  if (!is_stream(s)) return unlock(INVALID_HANDLE);
  ask(s, RECORD)->event = e;
  e->pending += 1;
  return unlock(SUCCESS);
}
int32_t cuEventQuery(const event* e) {
  const int32_t failed = begin();
  if (failed) return unlock(failed);
  progress();
  return unlock(lost ? lost : e->pending ? NOT_READY : SUCCESS);
}
int32_t cuEventSynchronize(const event* e) {
  const int32_t failed = begin();
  if (failed) return unlock(failed);
  counts.waits += 1;
  while (e->pending) {
    stream* s = any_ready();
    if (s) step(s);
    else pthread_cond_wait(&changed, &mutex);
  }
  return unlock(lost);
}
int32_t cuEventElapsedTime(float* milliseconds, const event* from, const event* to) {
  const int32_t failed = begin();
  if (failed) return unlock(failed);
  if (from->pending || to->pending) return unlock(NOT_READY);
  *milliseconds = (float)(to->time - from->time) * 1e-6f;
  return unlock(SUCCESS);
}
int32_t cuEventDestroy_v2(event* e) {
  lock();
  if (e->pending) wait_for_all();
  free(e);
  counts.live_events -= 1;
  return unlock(SUCCESS);
}

/* --- memory ---------------------------------------------------------------------------------------------------------------------- */

static int32_t make_block(address* found, size_t bytes, int32_t gpu, int32_t host) {
  const size_t whole = (bytes + GUARD - 1) / GUARD * GUARD;
  if (!bytes) return INVALID_VALUE;
  if (!host && used[gpu] + (int64_t)bytes > memory) return OUT_OF_MEMORY;
  char* data = mmap(NULL, whole + GUARD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return OUT_OF_MEMORY;
  mprotect(data + whole, GUARD, PROT_NONE);
  memset(data, 0xff, bytes); /* NaN */
  block* made = calloc(1, sizeof *made);
  *made = (block){blocks, (address)data, (int64_t)bytes, (int64_t)whole, gpu, 1, host};
  blocks = made;
  if (host) {
    counts.live_host += 1;
  } else {
    used[gpu] += (int64_t)bytes;
    counts.allocated += 1, counts.live_blocks += 1, counts.live_bytes += (int64_t)bytes;
    if (protects && !working) mprotect(data, whole, PROT_NONE);
  }
  *found = (address)data;
  return SUCCESS;
}

int32_t cuMemPoolCreate(void** pool, const void* properties) {
  const int32_t failed = begin();
  (void)properties;
  *pool = here();
  return unlock(failed);
}
int32_t cuMemPoolSetAttribute(void* pool, int32_t attribute, void* value) {
  (void)pool, (void)attribute, (void)value;
  return SUCCESS;
}
int32_t cuMemPoolTrimTo(void* pool, size_t bytes) {
  (void)pool, (void)bytes;
  return SUCCESS;
}
int32_t cuMemAllocFromPoolAsync(address* found, size_t bytes, context* pool, void* handle) {
  const int32_t failed = begin();
  if (failed) return unlock(failed);
  const stream* s = stream_of(handle);
  if (!is_stream(s) || s->context != pool) return unlock(INVALID_HANDLE);
  return unlock(make_block(found, bytes, pool->gpu, 0));
}
int32_t cuMemFreeAsync(address place, void* handle) {
  lock();
  stream* s = stream_of(handle);
  if (!is_stream(s)) misused("memory is freed on a stream that there is not", NULL);
  ask(s, FREE)->to = place;
  progress();
  return unlock(SUCCESS);
}
int32_t cuMemAlloc_v2(address* found, size_t bytes) {
  const int32_t failed = begin();
  if (failed || !here()) return unlock(failed ? failed : INVALID_CONTEXT);
  return unlock(make_block(found, bytes, here()->gpu, 0));
}
int32_t cuMemFree_v2(address place) {
  lock();
  wait_for_all();
  block* found = find(place, 1);
  if (!found || found->first != place || found->host) misused("free of what is no block", NULL);
  drop(found);
  return unlock(SUCCESS);
}
int32_t cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  const context* own = here();
  if (!own) return INVALID_CONTEXT;
  *free_bytes = (size_t)(memory - used[own->gpu]), *total = (size_t)memory;
  return SUCCESS;
}
int32_t cuMemHostAlloc(void** found, size_t bytes, uint32_t flags) {
  (void)flags;
  const int32_t failed = begin();
  if (failed || !here()) return unlock(failed ? failed : INVALID_CONTEXT);
  address place = 0;
  const int32_t made = make_block(&place, bytes, 0, 1);
  *found = (void*)place;
  return unlock(made);
}
int32_t cuMemFreeHost(void* place) {
  lock();
  block* found = find((address)place, 1);
  if (!found || !found->host) misused("free of what is no pinned block", NULL);
  drop(found);
  return unlock(SUCCESS);
}

/* Plain memory of the process is read at once; a copy to it is done when the driver returns. */
int32_t cuMemcpyAsync(address to, address from, size_t bytes, void* handle) {
  const int32_t failed = begin();
  if (failed) return unlock(failed);
  stream* s = stream_of(handle);
  if (!is_stream(s)) return unlock(INVALID_HANDLE);
  if (!bytes) return unlock(SUCCESS);
  counts.copies += 1;
  const int32_t here_from = !find(from, 1) && !find(from, 0), here_to = !find(to, 1) && !find(to, 0);
  counts.plain_copies += here_from || here_to;
  op* o = ask(s, COPY);
  o->to = to, o->from = from, o->bytes = bytes;
  if (here_from) {
    o->values = malloc(bytes);
    memcpy(o->values, (const void*)from, bytes);
    o->from = (address)o->values;
  }
  if (here_to) wait_for(s), counts.waits -= 1;
  progress();
  return unlock(SUCCESS);
}
static int32_t fill(address to, int32_t value, size_t bytes, int32_t width, void* handle) {
  const int32_t failed = begin();
  if (failed) return unlock(failed);
  stream* s = stream_of(handle);
  if (!is_stream(s)) return unlock(INVALID_HANDLE);
  counts.fills += 1;
  op* o = ask(s, FILL);
  o->to = to, o->value = value, o->bytes = bytes, o->width = width;
  progress();
  return unlock(SUCCESS);
}
int32_t cuMemsetD8Async(address to, uint8_t value, size_t count, void* handle) { return fill(to, value, count, 1, handle); }
int32_t cuMemsetD32Async(address to, uint32_t value, size_t count, void* handle) { return fill(to, (int32_t)value, 4 * count, 4, handle); }

/* --- graphs ---------------------------------------------------------------------------------------------------------------------- */

typedef struct kernel_parameters {
  function* function;
  uint32_t grid[3], block[3], shared;
  void** parameters;
  void** extra;
  void* kernel;
  void* context;
} kernel_parameters;

typedef struct side {
  size_t x, y, z, level;
  int32_t kind;
  void* host;
  address place;
  void *array, *reserved;
  size_t pitch, height;
} side;

typedef struct copy_parameters {
  side from, to;
  size_t width, height, depth;
} copy_parameters;

typedef struct fill_parameters {
  address to;
  size_t pitch;
  uint32_t value, element;
  size_t width, height;
} fill_parameters;

int32_t cuGraphCreate(graph** found, uint32_t flags) {
  const int32_t failed = begin();
  if (failed || flags) return unlock(failed ? failed : INVALID_VALUE);
  *found = calloc(1, sizeof **found);
  counts.live_graphs += 1;
  return unlock(SUCCESS);
}
int32_t cuGraphDestroy(graph* g) {
  lock();
  for (node* each = g->nodes; each;) {
    node* next = each->next;
    free(each->item.values);
    free(each);
    each = next;
  }
  free(g);
  counts.live_graphs -= 1;
  return unlock(SUCCESS);
}

static int32_t add_node(node** found, graph* g, node* const* behind, size_t count, const op* item) {
  if (count > 1 || (count && behind[0]->owner != g)) return INVALID_VALUE;
  node* n = calloc(1, sizeof *n);
  *n = (node){g->nodes, g, g->count++, count ? behind[0]->number : -1, *item};
  g->nodes = *found = n;
  return SUCCESS;
}

/* The request of a kernel node: its values are read now. */
static int32_t launch_item(op* item, const kernel_parameters* p) {
  const function* f = p->function;
  const uint32_t threads = p->block[0] * p->block[1] * p->block[2];
  if (!p->grid[0] || !p->grid[1] || !p->grid[2] || p->grid[1] > 65535 || p->grid[2] > 65535 || !threads || threads > 1024 ||
      p->shared > (uint32_t)f->shared || p->kernel) {
    return INVALID_VALUE;
  }
  *item = (op){.kind = LAUNCH, .function = p->function, .grid = {p->grid[0], p->grid[1], p->grid[2]}};
  item->values = calloc((size_t)f->count + 1, sizeof *item->values);
  for (int32_t i = 0; i < f->count; ++i) memcpy(&item->values[i], p->parameters[i], f->sizes[i]);
  return SUCCESS;
}
static int32_t copy_item(op* item, const copy_parameters* p) {
  if (p->from.kind != 2 || p->to.kind != 2 || !p->width || p->height != 1 || p->depth != 1) return INVALID_VALUE;
  if (!find(p->from.place, 1) || !find(p->to.place, 1)) return INVALID_VALUE;
  *item = (op){.kind = COPY, .to = p->to.place, .from = p->from.place, .bytes = p->width};
  return SUCCESS;
}
static int32_t fill_item(op* item, const fill_parameters* p) {
  if (p->element != 1 || !p->width || p->height != 1 || p->value > 255 || !find(p->to, 1)) return INVALID_VALUE;
  *item = (op){.kind = FILL, .to = p->to, .value = (int32_t)p->value, .bytes = p->width, .width = 1};
  return SUCCESS;
}

int32_t cuGraphAddKernelNode_v2(node** found, graph* g, node* const* behind, size_t count, const kernel_parameters* p) {
  int32_t failed = begin();
  op item;
  if (!failed) failed = launch_item(&item, p);
  return unlock(failed ? failed : add_node(found, g, behind, count, &item));
}
int32_t cuGraphAddMemcpyNode(node** found, graph* g, node* const* behind, size_t count, const copy_parameters* p, void* own) {
  int32_t failed = begin();
  op item;
  if (!failed) failed = own == here() ? copy_item(&item, p) : INVALID_CONTEXT;
  return unlock(failed ? failed : add_node(found, g, behind, count, &item));
}
int32_t cuGraphAddMemsetNode(node** found, graph* g, node* const* behind, size_t count, const fill_parameters* p, void* own) {
  int32_t failed = begin();
  op item;
  if (!failed) failed = own == here() ? fill_item(&item, p) : INVALID_CONTEXT;
  return unlock(failed ? failed : add_node(found, g, behind, count, &item));
}

/* A request with values of its own. */
static op copied(const op* item) {
  op own = *item;
  if (item->values) {
    const size_t bytes = (size_t)(item->kind == CALL ? item->words : item->function->count + 1) * sizeof *own.values;
    own.values = malloc(bytes);
    memcpy(own.values, item->values, bytes);
  }
  return own;
}

int32_t cuGraphInstantiateWithFlags(exec** found, graph* g, unsigned long long flags) {
  const int32_t failed = begin();
  if (failed || flags) return unlock(failed ? failed : INVALID_VALUE);
  exec* e = calloc(1, sizeof *e);
  *e = (exec){g, here(), g->count, calloc((size_t)g->count + 1, sizeof(op)), calloc((size_t)g->count + 1, sizeof(int32_t)), 0, 0};
  for (const node* each = g->nodes; each; each = each->next) {
    e->items[each->number] = copied(&each->item);
    e->behind[each->number] = each->behind;
  }
  counts.graphs += 1, counts.live_graphs += 1;
  *found = e;
  return unlock(SUCCESS);
}
int32_t cuGraphExecDestroy(exec* e) {
  lock();
  if (e->asked != e->done) misused("a graph is destroyed before a launch of it has run", NULL);
  for (int32_t i = 0; i < e->count; ++i) free(e->items[i].values);
  free(e->items);
  free(e->behind);
  free(e);
  counts.live_graphs -= 1;
  return unlock(SUCCESS);
}

/* From the next launch on. */
static int32_t set_item(exec* e, const node* n, int32_t failed, op* item) {
  if (!failed && (n->owner != e->from || n->item.kind != item->kind || n->item.function != item->function)) failed = INVALID_VALUE;
  if (!failed && n->item.call != item->call) failed = INVALID_VALUE;
  if (failed) {
    if (item->kind == CALL) free(item->values);
    return unlock(failed);
  }
  free(e->items[n->number].values);
  e->items[n->number] = *item;
  return unlock(SUCCESS);
}
int32_t cuGraphExecKernelNodeSetParams_v2(exec* e, const node* n, const kernel_parameters* p) {
  int32_t failed = begin();
  op item = {0};
  if (!failed) failed = launch_item(&item, p);
  return set_item(e, n, failed, &item);
}
int32_t cuGraphExecMemcpyNodeSetParams(exec* e, const node* n, const copy_parameters* p, void* own) {
  int32_t failed = begin();
  op item = {0};
  if (!failed) failed = own == here() ? copy_item(&item, p) : INVALID_CONTEXT;
  return set_item(e, n, failed, &item);
}
int32_t cuGraphExecMemsetNodeSetParams(exec* e, const node* n, const fill_parameters* p, void* own) {
  int32_t failed = begin();
  op item = {0};
  if (!failed) failed = own == here() ? fill_item(&item, p) : INVALID_CONTEXT;
  return set_item(e, n, failed, &item);
}

/* A graph within another: what was captured, one request. */
int32_t cuGraphAddChildGraphNode(node** found, graph* g, node* const* behind, size_t count, const graph* child) {
  const int32_t failed = begin();
  if (failed || child->count != 1) return unlock(failed ? failed : INVALID_VALUE);
  const op item = copied(&child->nodes->item);
  return unlock(add_node(found, g, behind, count, &item));
}
int32_t cuGraphExecChildGraphNodeSetParams(exec* e, const node* n, const graph* child) {
  int32_t failed = begin();
  if (!failed && child->count != 1) failed = INVALID_VALUE;
  op item = {0};
  if (!failed) item = copied(&child->nodes->item);
  return set_item(e, n, failed, &item);
}

int32_t cuStreamBeginCapture_v2(void* handle, int32_t mode) {
  const int32_t failed = begin();
  if (failed) return unlock(failed);
  stream* s = stream_of(handle);
  if (!is_stream(s) || s->legacy || s->captured || mode != 2) return unlock(INVALID_VALUE);
  s->captured = calloc(1, sizeof *s->captured);
  counts.live_graphs += 1;
  return unlock(SUCCESS);
}
int32_t cuStreamEndCapture(void* handle, graph** found) {
  const int32_t failed = begin();
  stream* s = stream_of(handle);
  if (!is_stream(s) || !s->captured) return unlock(INVALID_VALUE);
  *found = failed ? NULL : s->captured;
  if (failed) { /* the capture is over, and its graph is lost */
    if (s->captured->nodes) free(s->captured->nodes->item.values);
    free(s->captured->nodes);
    free(s->captured);
    counts.live_graphs -= 1;
  }
  s->captured = NULL;
  return unlock(failed);
}

int32_t fake_enqueue(void* handle, void (*run)(const uint64_t*), const uint64_t* words, int64_t count) {
  lock();
  stream* s = stream_of(handle);
  if (!is_stream(s) || s->context != here()) return unlock(INVALID_HANDLE);
  op item = {.kind = CALL, .call = run, .words = count, .values = malloc((size_t)count * sizeof *words)};
  memcpy(item.values, words, (size_t)count * sizeof *words);
  if (s->captured) {
    node* made;
    node* const* behind = s->captured->count ? &s->captured->nodes : NULL;
    return unlock(add_node(&made, s->captured, behind, behind != NULL, &item));
  }
  op* o = ask(s, CALL);
  o->call = run, o->words = count, o->values = item.values;
  progress();
  return unlock(SUCCESS);
}
void* fake_current(void) { return here(); }

int32_t cuGraphLaunch(exec* e, void* handle) {
  const int32_t failed = begin();
  if (failed) return unlock(failed);
  stream* s = stream_of(handle);
  if (!is_stream(s) || s->context != e->context) return unlock(INVALID_HANDLE);
  op* o = ask(s, GRAPH);
  o->exec = e, o->ticket = e->asked++;
  o->items = calloc((size_t)e->count + 1, sizeof *o->items);
  for (int32_t i = 0; i < e->count; ++i) {
    o->items[i] = copied(&e->items[i]);
    counts.launches += o->items[i].kind == LAUNCH;
  }
  counts.graph_launches += 1;
  progress();
  return unlock(SUCCESS);
}
