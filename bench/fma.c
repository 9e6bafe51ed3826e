// The highest rate of fused multiply-adds that the cores of this machine reach: independent accumulators in registers, no memory.
// Arguments: number of threads, seconds. Prints flops per second (2 per multiply-add), the best of 5 parts.
// Compiled by bench/limits.py with -O3 -march=native; DISC_LANES is 16 with AVX-512, 8 with AVX; DISC_BITS = 16 measures the dot products
// of bf16 pairs into f32 lanes (AVX512_BF16), 8 those of four bytes into i32 lanes (AVX512_VNNI), 32 f32 multiply-adds.
#include <immintrin.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "clock.h"

#if DISC_BITS == 8
typedef int Number;  // sums of another type than the instruction's would be copied through memory
#else
typedef float Number;
#endif
typedef Number Vector __attribute__((vector_size(DISC_LANES * 4)));
// 24 chains of 4 cycles keep any two FMA units busy; with 16 registers (AVX) 12 chains do, and more would spill.
enum { CHAINS = DISC_LANES == 16 ? 24 : 12, STEPS = 4096 };

#if DISC_BITS == 8
enum { PRODUCTS = 4 * DISC_LANES };
static inline Vector step(Vector sum, Vector a, Vector b) {
  return (Vector)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
}
#elif DISC_BITS == 16
enum { PRODUCTS = 2 * DISC_LANES };
static inline Vector step(Vector sum, Vector a, Vector b) {
  return (Vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}
#else
enum { PRODUCTS = DISC_LANES };
static inline Vector step(Vector sum, Vector a, Vector b) { return sum * a + b; }
#endif

typedef struct {
  double until;
  double flops;
  double sink;
} Work;

static void *work(void *argument) {
  Work *w = argument;
  Vector sums[CHAINS];
  Vector a = (Vector){0} + (Number)0.999f, b = (Vector){0} + (Number)1e-6f;
  for (int c = 0; c < CHAINS; ++c) sums[c] = (Vector){0} + (Number)c;
  while (now() < w->until) {
    for (int i = 0; i < STEPS; ++i) {
#pragma GCC unroll 24
      for (int c = 0; c < CHAINS; ++c) sums[c] = step(sums[c], a, b);
    }
    w->flops += 2.0 * PRODUCTS * CHAINS * STEPS;
  }
  for (int c = 0; c < CHAINS; ++c) w->sink += sums[c][0];
  return NULL;
}

static double part(int threads, double seconds) {
  pthread_t ids[threads];
  Work works[threads];
  double start = now(), flops = 0;
  for (int i = 0; i < threads; ++i) {
    works[i] = (Work){start + seconds, 0, 0};
    if (pthread_create(&ids[i], NULL, work, &works[i])) exit(1);
  }
  for (int i = 0; i < threads; ++i) {
    pthread_join(ids[i], NULL);
    flops += works[i].flops;
    if (works[i].sink == 0.5) puts("");  // the sums are used
  }
  return flops / (now() - start);
}

int main(int count, char **arguments) {
  if (count != 3) return 1;
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    double rate = part(atoi(arguments[1]), atof(arguments[2]) / 5);
    if (rate > best) best = rate;
  }
  printf("%.0f\n", best);
  return 0;
}
