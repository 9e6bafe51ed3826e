/* The device "stub" of stub_target.py. Nobody may touch its memory but its kernels and its copies: at all other times access ends the process,
 * as does misuse, and access to what was freed. Kernels are functions of this process. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ral.h"

enum { kBlocks = 256 };

static struct block {
  char* data;
  int64_t bytes; /* of whole pages */
} blocks[kBlocks];

static int64_t counts[5]; /* allocate, free, copy, fill, launch */

static void misused(const char* what) {
  fprintf(stderr, "stub device: %s\n", what);
  abort();
}

static void allow(int access) {
  for (int i = 0; i < kBlocks; ++i) {
    if (blocks[i].data && mprotect(blocks[i].data, (size_t)blocks[i].bytes, access)) misused("mprotect failed");
  }
}

static void* stub_allocate(void* state, int64_t bytes) {
  const int64_t whole = (bytes + 4095) / 4096 * 4096;
  (void)state;
  for (int i = 0; i < kBlocks; ++i) {
    if (blocks[i].data) continue;
    char* data = mmap(NULL, (size_t)whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return NULL;
    memset(data, 0xcd, (size_t)whole);
    mprotect(data, (size_t)whole, PROT_NONE);
    blocks[i] = (struct block){data, whole};
    counts[0] += 1;
    return data;
  }
  return NULL;
}

static void stub_free(void* state, void* pointer) {
  (void)state;
  for (int i = 0; i < kBlocks; ++i) {
    if (blocks[i].data != pointer) continue;
    mprotect(blocks[i].data, (size_t)blocks[i].bytes, PROT_NONE);
    munmap(blocks[i].data, (size_t)blocks[i].bytes);
    blocks[i].data = NULL;
    counts[1] += 1;
    return;
  }
  misused("free of what is no block");
}

static int32_t stub_copy(void* state, void* to, const void* from, int64_t bytes) {
  (void)state;
  allow(PROT_READ | PROT_WRITE);
  memcpy(to, from, (size_t)bytes);
  allow(PROT_NONE);
  counts[2] += 1;
  return 0;
}

static int32_t stub_fill(void* state, void* to, int64_t bytes, int32_t value) {
  (void)state;
  allow(PROT_READ | PROT_WRITE);
  memset(to, value, (size_t)bytes);
  allow(PROT_NONE);
  counts[3] += 1;
  return 0;
}

static int32_t stub_launch(void* state, const ral_launch* launch) {
  void* scratch = malloc((size_t)launch->scratch_bytes + 1);
  (void)state;
  allow(PROT_READ | PROT_WRITE);
  launch->kernel(launch->args, 0, launch->tasks, scratch);
  allow(PROT_NONE);
  free(scratch);
  counts[4] += 1;
  return 0;
}

static int32_t stub_synchronize(void* state) {
  (void)state;
  return 0;
}

const ral_device stub_device = {RAL_ABI_VERSION, "stub",    NULL,        stub_allocate,   stub_free,
                                stub_copy,       stub_fill, stub_launch, stub_synchronize};

int64_t stub_count(int32_t what);
int64_t stub_count(int32_t what) { return counts[what]; }
