// What the C++ tests on the stand-in driver share: tensors in the memory of its GPUs, and streams.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "cuda/driver.h"
#include "fake_driver.h"
#include "ral.h"
#include "testing.h"

using Numbers = std::vector<int64_t>;

constexpr int64_t kMemory = 64 << 20;

inline ral::cuda::Driver driver;  // the same stand-in, as another user of the GPUs has it
inline ral::cuda::ContextHandle contexts[2];

// The caller's thread with a GPU's context, as frameworks leave it.
class Here {
 public:
  explicit Here(int32_t gpu) { CHECK(driver.push_context(contexts[gpu]) == 0); }
  Here(const Here&) = delete;
  Here& operator=(const Here&) = delete;
  ~Here() {
    ral::cuda::ContextHandle popped = nullptr;
    driver.pop_context(&popped);
  }
};

// A stream of the caller's.
class Stream {
 public:
  explicit Stream(int32_t gpu) : here_(gpu) { CHECK(driver.create_stream(&handle, ral::cuda::kNonBlocking) == 0); }
  ~Stream() { driver.destroy_stream(handle); }
  ral::cuda::StreamHandle handle = nullptr;

 private:
  Here here_;
};

// Numbers in the memory of a GPU, written and freed in the order of a stream; without one, in this process's memory.
class Tensor {
 public:
  Tensor(const Numbers& numbers, const Stream* stream, uint8_t gpu = 0) : numbers_(numbers), dims_{static_cast<int64_t>(numbers.size())}, stream_(stream), gpu_(gpu) {
    if (!stream) return;
    CHECK(driver.allocate(&place_, numbers_.size() * 8 + 1) == 0);
    CHECK(driver.copy_async(place_, reinterpret_cast<uint64_t>(numbers_.data()), numbers_.size() * 8, stream->handle) == 0);
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() {
    if (stream_) driver.free_async(place_, stream_->handle);
  }
  ral_tensor tensor() {
    if (stream_) return {reinterpret_cast<void*>(place_), dims_, nullptr, 1, RAL_I64, RAL_CUDA, gpu_};
    return {numbers_.data(), dims_, nullptr, 1, RAL_I64, RAL_CPU, 0};
  }

 private:
  Numbers numbers_;
  int64_t dims_[1];
  const Stream* stream_;
  uint8_t gpu_;
  uint64_t place_ = 0;
};

inline Numbers result(const ral_tensor& output, const Stream* stream) {
  Numbers found(static_cast<size_t>(output.dims[0]), -7);
  CHECK(output.device == (stream ? RAL_CUDA : RAL_CPU));
  if (!stream) {
    std::copy_n(static_cast<const int64_t*>(output.data), found.size(), found.data());
  } else if (!found.empty()) {
    CHECK(driver.copy_async(reinterpret_cast<uint64_t>(found.data()), reinterpret_cast<uint64_t>(output.data), found.size() * 8,
                            stream->handle) == 0);
  }
  return found;
}

// Whether the call that fake_fail made fail is one that the runtime makes again when memory was given back.
inline bool failed_for_memory() {
  const std::string failed = fake_get_failed();
  for (const char* name : {"cuMemAlloc_v2", "cuMemAllocFromPoolAsync", "cuModuleLoadDataEx", "cuLaunchKernelEx"}) {
    if (failed == name) return true;
  }
  return false;
}

// Lends memory of its own for results, as a framework does, on a stream; keeps count. fails: so many times there is none.
struct Loans {
  const Stream& stream;
  int64_t lent = 0, returned = 0;
  int64_t fails = 0;

  static int32_t lend(void* state, const ral_tensor* wanted, ral_lent* lent) {
    auto* loans = static_cast<Loans*>(state);
    int64_t count = 1;
    for (int32_t i = 0; i < wanted->rank; ++i) count *= wanted->dims[i];
    CHECK(wanted->device == RAL_CUDA && wanted->dtype == RAL_I64 && !wanted->data && !wanted->strides);
    uint64_t place = 0;
    if ((loans->fails > 0 && loans->fails--) || (count > 0 && driver.allocate(&place, static_cast<size_t>(count) * 8))) return 1;
    loans->lent += 1;
    auto* loan = static_cast<Loan*>(std::malloc(sizeof(Loan)));  // not by `new`, which tests let fail
    *loan = {loans, place};
    *lent = {reinterpret_cast<void*>(place), loan, give_back};
    return 0;
  }

 private:
  struct Loan {
    Loans* from;
    uint64_t place;
  };
  static void give_back(void* owner) {
    auto* loan = static_cast<Loan*>(owner);
    if (loan->place) driver.free_async(loan->place, loan->from->stream.handle);
    loan->from->returned += 1;
    std::free(loan);
  }
};

// Two GPUs.
inline void start_gpus() {
  fake_configure(2, 90, 13000, kMemory);
#define FIND(member, symbol, parameters)                                                    \
  driver.member = reinterpret_cast<decltype(driver.member)>(dlsym(RTLD_DEFAULT, symbol)); \
  CHECK(driver.member);
  RAL_CUDA_FUNCTIONS(FIND)
#undef FIND
  CHECK(driver.init(0) == 0);
  for (int32_t gpu = 0; gpu < 2; ++gpu) CHECK(driver.retain_context(&contexts[gpu], gpu) == 0);
}
