#include "core/weights_check.h"

#include <sys/mman.h>

#include <algorithm>
#include <exception>
#include <new>

#include "core/file.h"

namespace ral {

WeightsCheck::WeightsCheck(std::span<const uint8_t> region, const Digest& expected)
    : region_(region),
      expected_(expected),
      count_(static_cast<uint32_t>((region.size() + kWeightsChunk - 1) / kWeightsChunk)),
      chunks_(std::make_unique<std::atomic<uint8_t>[]>(count_)),
      digests_(std::make_unique<Digest[]>(count_)) {
  // Only a hint: pages are read either way.
  if (!region.empty()) madvise(const_cast<uint8_t*>(region.data()), region.size(), MADV_WILLNEED);
  for (size_t i = 0; i < std::min<size_t>(count_, threads_.size()); ++i) {
    try {
      threads_[i] = std::thread([this] { hash_chunks(); });
    } catch (const std::exception&) {
      return;  // no more threads or memory for this process: whoever waits hashes what is left
    }
  }
}

WeightsCheck::~WeightsCheck() {
  stop_ = true;
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void WeightsCheck::hash_chunks() noexcept {
  for (;;) {
    const uint32_t chunk = next_.fetch_add(1);
    if (chunk >= count_ || stop_) {
      next_.store(count_);  // so that it never wraps
      return;
    }
    uint8_t expected = kFree;
    if (!chunks_[chunk].compare_exchange_strong(expected, kTaken)) continue;
    const auto rest = region_.subspan(chunk * kWeightsChunk);
    digests_[chunk] = sha256(rest.first(std::min(rest.size(), kWeightsChunk)));
    chunks_[chunk].store(kHashed, std::memory_order_release);
    if (hashed_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) hashed_.notify_all();
  }
}

void WeightsCheck::judge() noexcept {
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
  const auto* digests = reinterpret_cast<const uint8_t*>(digests_.get());
  verdict_ = sha256({digests, count_ * sizeof(Digest)}) == expected_ ? kWhole : kDamaged;
  verdict_.notify_all();
}

bool WeightsCheck::passed() noexcept {
  for (;;) {
    uint32_t verdict = verdict_.load(std::memory_order_acquire);
    if (verdict == kWhole || verdict == kDamaged) return verdict == kWhole;
    if (verdict == kJudging) {
      verdict_.wait(kJudging);
      continue;
    }
    hash_chunks();
    for (uint32_t done = hashed_; done < count_; done = hashed_) hashed_.wait(done);
    if (verdict_.compare_exchange_strong(verdict, kJudging)) judge();
  }
}

void WeightsCheck::after_fork(bool in_child) noexcept {
  if (!in_child) return;
  for (std::thread& thread : threads_) new (&thread) std::thread;  // not here: neither to be joined nor to be detached
  uint32_t hashed = 0;
  for (uint32_t chunk = 0; chunk < count_; ++chunk) {
    if (chunks_[chunk] == kHashed) ++hashed;
    else chunks_[chunk] = kFree;
  }
  next_ = 0;
  hashed_ = hashed;
  if (verdict_ == kJudging) verdict_ = kOpen;
}

}  // namespace ral
