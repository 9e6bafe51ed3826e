/* What tests tell and ask the stand-in for libcuda.so.1 (fake_driver.c). */
#ifndef FAKE_DRIVER_H
#define FAKE_DRIVER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FAKE_MAGIC "FAKEGPU"

/* An image whose kernels are functions of this process. sizes: of the parameters, the last two of them Triton's scratch pointers. */
typedef struct fake_kernel {
  const char* name;
  void (*run)(const uint64_t* values, const uint32_t* grid);
  int32_t count;
  const uint8_t* sizes;
} fake_kernel;

typedef struct fake_image {
  char magic[8]; /* FAKE_MAGIC */
  int64_t count;
  const fake_kernel* kernels;
} fake_image;

typedef struct fake_counts {
  int64_t calls;     /* that may fail, as fake_fail counts them */
  int64_t launches;  /* asked for */
  int64_t executed;  /* launches that have run */
  int64_t copies, fills;
  int64_t waits;     /* for a stream, an event or the context */
  int64_t allocated; /* blocks of device memory so far */
  int64_t live_blocks, live_bytes;
  int64_t live_host; /* pinned blocks */
  int64_t live_modules, live_streams, live_events;
  int64_t graphs, graph_launches, live_graphs;
  int64_t calls_made; /* of fake_enqueue, that have run */
  int64_t plain_copies; /* from or to memory of the process that is not pinned */
} fake_counts;

/* Before the driver is started: how many GPUs, of which architecture (90), the driver's version (13000), bytes of memory of each. */
void fake_configure(int32_t gpus, int32_t architecture, int32_t version, int64_t memory);
/* Runs launches of kernels that are machine code. size: bytes of the image. Returns 0, or the error that the GPU meets. */
void fake_set_executor(int32_t (*run)(const void* image, int64_t size, const char* name, const uint32_t* grid, const uint64_t* values,
                                      int32_t count));
/* In which order streams go on, and how often work is done before somebody waits for it: 0 = never. */
void fake_set_seed(uint32_t seed, int32_t eager_percent);
/* Whether device memory is protected from everybody but running work. */
void fake_set_protection(int32_t on);
/* The call of that number from now on fails, counted from 0, with this CUresult; -1 = none. */
void fake_fail(int64_t number, int32_t result);
/* The name of the call that failed so since; "" = none has. */
const char* fake_get_failed(void);
/* The launch of that number from now on, as they run, meets an illegal address; -1 = none. */
void fake_crash(int64_t number);
fake_counts fake_get_counts(void);
/* For other stand-ins of NVIDIA's libraries: asks a stream, of the current context, to call `run` with a copy of these words. The first says
 * how many ranges of device memory it uses, which follow as (address, bytes); then comes what it likes. Returns a CUresult. */
int32_t fake_enqueue(void* stream, void (*run)(const uint64_t* words), const uint64_t* words, int64_t count);
/* The current context; NULL = none. */
void* fake_current(void);
/* The live block that holds an address: its first byte and its size; 0 where there is none. */
int32_t fake_find(uint64_t address, uint64_t* first, int64_t* bytes);

#ifdef __cplusplus
}
#endif
#endif
