// The check of an artifact's weights against their hash, which runs in the background after loading.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>

#include "core/fork.h"
#include "core/sha256.h"

namespace ral {

// Without a lock: chunks are taken one by one, by threads of its own and by whoever waits. A forked child has none of those threads, so
// there whoever waits hashes what they had not finished.
class WeightsCheck final : ForkAware {
 public:
  // Begins at once. `region` stays mapped as long as this lives; its hash is the hash of the hashes of its chunks.
  WeightsCheck(std::span<const uint8_t> region, const Digest& expected);
  WeightsCheck(const WeightsCheck&) = delete;
  WeightsCheck& operator=(const WeightsCheck&) = delete;
  ~WeightsCheck();

  // Helps until all is hashed; false when the weights are damaged.
  bool passed() noexcept;

 private:
  enum Chunk : uint8_t { kFree, kTaken, kHashed };
  enum Verdict : uint32_t { kOpen, kJudging, kWhole, kDamaged };

  void before_fork() noexcept override {}
  void after_fork(bool in_child) noexcept override;
  void hash_chunks() noexcept;
  void judge() noexcept;

  std::span<const uint8_t> region_;
  Digest expected_;
  uint32_t count_;  // chunks
  std::unique_ptr<std::atomic<uint8_t>[]> chunks_;
  std::unique_ptr<Digest[]> digests_;
  std::atomic<uint32_t> next_{0};    // chunks before it are not free
  std::atomic<uint32_t> hashed_{0};  // chunks
  std::atomic<uint32_t> verdict_{kOpen};
  std::atomic<bool> stop_{false};
  std::array<std::thread, 2> threads_;
  ForkRegistration registration_{*this};
};

}  // namespace ral
