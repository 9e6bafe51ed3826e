// What one core can do at best: f32 multiply-adds in registers, and a copy outside the caches.
#include "cpu/core_limits.h"

#include <immintrin.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "cpu/cpu.h"
#include "cpu/memory.h"

namespace ral {

namespace {

using Clock = std::chrono::steady_clock;

// Short rounds, the best of which counts: other programs on the machine spoil long ones.
constexpr int kRounds = 80, kLeastCopies = 3;
constexpr int64_t kSteps = 100'000;  // of a round: about half a millisecond
constexpr auto kCopyTime = std::chrono::milliseconds(120);
constexpr int64_t kLeastCopyBytes = 64 << 20, kMostCopyBytes = 256 << 20;
// Two units take one multiply-add per cycle each, and a result is there after 4 or 5 cycles: 10 chains at least keep them busy.
constexpr int kChains512 = 24, kChains256 = 12;  // 16 registers hold no more than 12 and the two factors

struct Free {
  void operator()(void* pointer) const { std::free(pointer); }
};

// The loops give a sum of their values, so that no compiler may leave them out.
__attribute__((target("avx512f"))) float multiply_add_512(int64_t steps) {
  const __m512 factor = _mm512_set1_ps(0.999f), term = _mm512_set1_ps(1e-6f);
  __m512 sums[kChains512];
  for (int chain = 0; chain < kChains512; ++chain) sums[chain] = _mm512_set1_ps(static_cast<float>(chain));
  for (int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 24
    for (int chain = 0; chain < kChains512; ++chain) sums[chain] = _mm512_fmadd_ps(sums[chain], factor, term);
  }
  for (int chain = 1; chain < kChains512; ++chain) sums[0] = _mm512_add_ps(sums[0], sums[chain]);
  return _mm512_cvtss_f32(sums[0]);
}

__attribute__((target("avx2,fma"))) float multiply_add_256(int64_t steps) {
  const __m256 factor = _mm256_set1_ps(0.999f), term = _mm256_set1_ps(1e-6f);
  __m256 sums[kChains256];
  for (int chain = 0; chain < kChains256; ++chain) sums[chain] = _mm256_set1_ps(static_cast<float>(chain));
  for (int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
    for (int chain = 0; chain < kChains256; ++chain) sums[chain] = _mm256_fmadd_ps(sums[chain], factor, term);
  }
  for (int chain = 1; chain < kChains256; ++chain) sums[0] = _mm256_add_ps(sums[0], sums[chain]);
  return _mm256_cvtss_f32(sums[0]);
}

template <typename Work>
double seconds_of(Work work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double best_flops(float (*loop)(int64_t), double flops_per_step) {
  volatile float sink = 0;
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    const double seconds = seconds_of([&] { sink = loop(kSteps); });
    best = std::max(best, flops_per_step * kSteps / seconds);
  }
  return best;
}

// 0 when there is no memory for it.
double best_copy() {
  const int64_t bytes = std::clamp<int64_t>(2 * sysconf(_SC_LEVEL3_CACHE_SIZE), kLeastCopyBytes, kMostCopyBytes);
  const std::unique_ptr<void, Free> source(allocate(bytes)), target(allocate(bytes));
  if (!source || !target) return 0;
  std::memset(source.get(), 1, static_cast<size_t>(bytes));
  std::memset(target.get(), 0, static_cast<size_t>(bytes));
  double best = 0;
  const auto end = Clock::now() + kCopyTime;
  for (int copy = 0; copy < kLeastCopies || Clock::now() < end; ++copy) {
    const double seconds = seconds_of([&] { std::memcpy(target.get(), source.get(), static_cast<size_t>(bytes)); });
    best = std::max(best, 2.0 * static_cast<double>(bytes) / seconds);
    __asm__ volatile("" ::"r"(target.get()) : "memory");  // what was copied counts as read
  }
  return best;
}

}  // namespace

Status measure_limits(double* flops_per_second, double* bytes_per_second) {
  *flops_per_second = *bytes_per_second = 0;
  if (cpu_has("avx512f")) {
    *flops_per_second = best_flops(multiply_add_512, 2 * 16 * kChains512);
  } else if (cpu_has("avx2") && cpu_has("fma")) {
    *flops_per_second = best_flops(multiply_add_256, 2 * 8 * kChains256);
  } else {
    return error(RAL_ERROR_TARGET, "ral_measure_limits: this CPU has neither AVX-512 nor AVX2 with FMA");
  }
  *bytes_per_second = best_copy();
  return *bytes_per_second > 0 ? Status{} : error(RAL_ERROR_MEMORY, "ral_measure_limits: no memory for a copy outside the caches");
}

}  // namespace ral
