// How many bytes per second the cores of this machine read, and copy, when they pass over one working set again and again.
// Arguments: number of threads, seconds per figure, sizes of working sets in bytes. Per size it prints: size, bytes read per second, bytes
// copied per second (each byte counts twice: read and written; half of the working set is the source). The best of 3 parts.
// Compiled by bench/limits.py with -O3 -march=native; DISC_LANES as in fma.c.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"

typedef float Vector __attribute__((vector_size(DISC_LANES * 4)));
enum { SUMS = 8, PIECE = SUMS * sizeof(Vector) };

typedef struct {
  char *memory;
  size_t size;  // of this thread's part
  int copies;
  double seconds;
  pthread_barrier_t *start;
  double rate;
  float sink;
} Work;

static void read_all(Work *w, Vector *sums) {
  for (const char *p = w->memory; p < w->memory + w->size; p += PIECE) {
    const Vector *v = (const Vector *)p;
#pragma GCC unroll 8
    for (int i = 0; i < SUMS; ++i) sums[i] += v[i];
  }
}

static void *work(void *argument) {
  Work *w = argument;
  Vector sums[SUMS] = {0};
  memset(w->memory, 0, w->size);  // the pages are this thread's
  pthread_barrier_wait(w->start);
  double begin = now(), end = begin, bytes = 0;
  for (int passes = 0; passes < 2 || end - begin < w->seconds; ++passes, end = now()) {
    if (passes == 1) begin = now(), bytes = 0;  // the first pass warms up
    if (w->copies)
      memcpy(w->memory + w->size / 2, w->memory, w->size / 2);
    else
      read_all(w, sums);
    bytes += (double)w->size;
    __asm__ volatile("" ::: "memory");  // every pass happens
  }
  w->rate = bytes / (end - begin);
  for (int i = 0; i < SUMS; ++i) w->sink += sums[i][0];
  return NULL;
}

static double part(int threads, double seconds, size_t size, int copies) {
  pthread_t ids[threads];
  Work works[threads];
  pthread_barrier_t start;
  double rate = 0;
  size_t own = size / threads / (2 * PIECE) * (2 * PIECE);
  pthread_barrier_init(&start, NULL, threads);
  for (int i = 0; i < threads; ++i) {
    works[i] = (Work){aligned_alloc(4096, (own + 4095) / 4096 * 4096), own, copies, seconds, &start, 0, 0};
    if (!works[i].memory || pthread_create(&ids[i], NULL, work, &works[i])) exit(1);
  }
  for (int i = 0; i < threads; ++i) {
    pthread_join(ids[i], NULL);
    rate += works[i].rate;
    if (works[i].sink == 0.5f) puts("");  // the sums are used
    free(works[i].memory);
  }
  return rate;
}

int main(int count, char **arguments) {
  if (count < 4) return 1;
  for (int number = 3; number < count; ++number) {
    double best[2] = {0, 0};
    for (int i = 0; i < 6; ++i) {
      double rate = part(atoi(arguments[1]), atof(arguments[2]) / 3, strtoull(arguments[number], NULL, 10), i % 2);
      if (rate > best[i % 2]) best[i % 2] = rate;
    }
    printf("%s %.0f %.0f\n", arguments[number], best[0], best[1]);
  }
  return 0;
}
