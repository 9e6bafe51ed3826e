// A device for tests: its memory is the process's, but nobody else may tell. What a thread asks for runs when it must, in order; memory holds
// nonsense before it is written, and again when it is freed. Misuse ends the process.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ral.h"

// What a code section hands over as a kernel: `words` numbers of its arguments are kept until it runs.
struct KernelRecord {
  ral_kernel function;
  int64_t words;
};

class FakeDevice {
 public:
  ral_device description(const char* name) {
    return {RAL_ABI_VERSION, name, this, allocate, free, copy, fill, launch, synchronize};
  }

  // The request of that number from now on fails, counted from 0; -1 = none.
  void fail_at(int64_t number) {
    const std::lock_guard lock(mutex_);
    fail_at_ = number;
    requests_ = 0;
  }
  int64_t requests() const { return requests_; }
  int64_t launches() const { return launches_; }
  int64_t asked_launches() const { return asked_launches_; }  // with those that fail
  size_t live() {
    const std::lock_guard lock(mutex_);
    return live_.size();
  }

 private:
  using Request = std::function<void()>;
  static constexpr int kFresh = 0xcd, kFreed = 0xdb;

  static FakeDevice& self(void* state) { return *static_cast<FakeDevice*>(state); }
  static std::vector<Request>& pending() {
    thread_local std::vector<Request> requests;
    return requests;
  }
  static void run_pending() {
    for (size_t i = 0; i < pending().size(); ++i) pending()[i]();
    pending().clear();
  }
  [[noreturn]] static void misused(const char* what) {
    std::fprintf(stderr, "fake device: %s\n", what);
    std::abort();
  }

  bool fails(int64_t launches = 0) {
    const std::lock_guard lock(mutex_);
    asked_launches_ += launches;
    return requests_++ == fail_at_;
  }

  // Whether the bytes lie in one block of the device; ends the process where they do in part.
  bool owns(const void* data, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto begin = reinterpret_cast<uintptr_t>(data);
    auto after = live_.upper_bound(begin);
    if (after == live_.begin()) return false;
    const auto& [first, size] = *--after;
    if (begin >= first + size) return false;
    if (begin + static_cast<uintptr_t>(bytes) > first + size) misused("beyond the end of a block");
    return true;
  }

  static void* allocate(void* state, int64_t bytes) {
    FakeDevice& device = self(state);
    if (bytes <= 0) misused("allocate of nothing");
    if (device.fails()) return nullptr;
    const size_t size = (static_cast<size_t>(bytes) + 63) / 64 * 64;
    void* block = std::aligned_alloc(64, size);
    std::memset(block, kFresh, size);
    const std::lock_guard lock(device.mutex_);
    device.live_[reinterpret_cast<uintptr_t>(block)] = static_cast<uintptr_t>(bytes);
    return block;
  }

  static void free(void* state, void* block) {
    FakeDevice& device = self(state);
    const auto drop = [&device, block] {
      const std::lock_guard lock(device.mutex_);
      const auto found = device.live_.find(reinterpret_cast<uintptr_t>(block));
      if (found == device.live_.end()) misused("free of what is no block");
      std::memset(block, kFreed, found->second);
      device.live_.erase(found);
      std::free(block);
    };
    pending().empty() ? drop() : pending().push_back(drop);
  }

  static int32_t copy(void* state, void* to, const void* from, int64_t bytes) {
    FakeDevice& device = self(state);
    if (device.fails()) return 11;
    const bool to_own = device.owns(to, bytes), from_own = device.owns(from, bytes);
    if (!to_own && !from_own) misused("copy between memory that is not the device's");
    if (!to_own) {
      run_pending();
      std::memcpy(to, from, static_cast<size_t>(bytes));
    } else if (from_own) {
      pending().push_back([=] { std::memcpy(to, from, static_cast<size_t>(bytes)); });
    } else {
      const auto* data = static_cast<const uint8_t*>(from);
      pending().push_back([to, kept = std::vector<uint8_t>(data, data + bytes)] { std::memcpy(to, kept.data(), kept.size()); });
    }
    return 0;
  }

  static int32_t fill(void* state, void* to, int64_t bytes, int32_t value) {
    FakeDevice& device = self(state);
    if (device.fails()) return 12;
    if (!device.owns(to, bytes)) misused("fill of memory that is not the device's");
    pending().push_back([=] { std::memset(to, value, static_cast<size_t>(bytes)); });
    return 0;
  }

  static int32_t launch(void* state, const ral_launch* launch) {
    FakeDevice& device = self(state);
    if (device.fails(1)) return 13;
    if (launch->tasks < 1) misused("launch of nothing");
    const auto* record = reinterpret_cast<const KernelRecord*>(reinterpret_cast<uintptr_t>(launch->kernel));
    pending().push_back([&device, record, tasks = launch->tasks, scratch = launch->scratch_bytes,
                         args = std::vector<int64_t>(launch->args, launch->args + record->words)] {
      std::vector<uint8_t> own(static_cast<size_t>(scratch));
      for (int64_t task = tasks; task-- > 0;) record->function(args.data(), task, task + 1, own.data());  // in any order
      const std::lock_guard lock(device.mutex_);
      device.launches_ += 1;
    });
    return 0;
  }

  static int32_t synchronize(void* state) {
    const bool failed = self(state).fails();
    run_pending();  // also then: what was asked for is over
    return failed ? 14 : 0;
  }

  std::mutex mutex_;  // guards the rest
  std::map<uintptr_t, uintptr_t> live_;  // blocks: address, bytes
  int64_t requests_ = 0, fail_at_ = -1, launches_ = 0, asked_launches_ = 0;
};
