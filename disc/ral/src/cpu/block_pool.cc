#include "cpu/block_pool.h"

#include <utility>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace ral {

namespace {

// Under the sanitizer of addresses kernels may touch what was asked for and nothing else of a block, and nothing of a free one.
#ifdef __SANITIZE_ADDRESS__
void forbid(const Block& block) { ASAN_POISON_MEMORY_REGION(block.data(), static_cast<size_t>(block.capacity())); }
void allow(const Block& block) { ASAN_UNPOISON_MEMORY_REGION(block.data(), static_cast<size_t>(block.capacity())); }
void allow(void* data, int64_t bytes) { ASAN_UNPOISON_MEMORY_REGION(data, static_cast<size_t>(bytes)); }
#else
void forbid(const Block&) {}
void allow(const Block&) {}
void allow(void*, int64_t) {}
#endif

}  // namespace

BlockPool::~BlockPool() {
  for (const auto& entry : entries_) allow(entry->block);
}

BlockPool::Entry* BlockPool::find(int64_t bytes) noexcept {
  Entry *enough = nullptr, *largest = nullptr;
  for (const auto& entry : entries_) {
    if (entry->data) continue;
    const int64_t capacity = entry->block.capacity();
    if (capacity >= bytes && (!enough || capacity < enough->block.capacity())) enough = entry.get();
    if (!largest || capacity > largest->block.capacity()) largest = entry.get();
  }
  return enough ? enough : largest;
}

void* BlockPool::take(int64_t bytes) {
  Entry* entry = find(bytes);
  if (!entry) entry = entries_.emplace_back(std::make_unique<Entry>()).get();
  allow(entry->block);  // before it goes back to the system, if it has to grow
  entry->data = entry->block.reserve(bytes);
  forbid(entry->block);
  if (entry->data) allow(entry->data, bytes);
  return entry->data;
}

bool BlockPool::give(void* data) noexcept {
  if (!data) return false;
  for (const auto& entry : entries_) {
    if (entry->data != data) continue;
    entry->data = nullptr;
    forbid(entry->block);
    return true;
  }
  return false;
}

void BlockPool::give_all() noexcept {
  for (const auto& entry : entries_) {
    entry->data = nullptr;
    forbid(entry->block);
  }
}

void BlockPool::trim() noexcept {
  std::erase_if(entries_, [](const std::unique_ptr<Entry>& entry) {
    if (entry->data) return false;
    allow(entry->block);
    entry->block.trim();
    forbid(entry->block);
    if (entry->block.used() > 0) return false;
    allow(entry->block);
    return true;
  });
}

void BlockPool::clear() noexcept {
  std::erase_if(entries_, [](const std::unique_ptr<Entry>& entry) {
    if (entry->data) return false;
    allow(entry->block);
    return true;
  });
}

int64_t BlockPool::used() const noexcept {
  int64_t bytes = 0;
  for (const auto& entry : entries_) bytes += entry->block.used();
  return bytes;
}

Immortal<SharedBlocks> shared_blocks;

void* SharedBlocks::take(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  return blocks_.take(bytes);
}

void SharedBlocks::give(void* data) noexcept {
  const std::lock_guard lock(mutex_);
  blocks_.give(data);
}

void SharedBlocks::join() noexcept {
  const std::lock_guard lock(mutex_);
  ++users_;
}

void SharedBlocks::leave() noexcept {
  const std::lock_guard lock(mutex_);
  if (--users_ == 0) blocks_.clear();
}

void SharedBlocks::trim(int64_t* asked) noexcept {
  const std::lock_guard lock(mutex_);
  if (std::exchange(*asked, period_) != period_) return;
  ++period_;
  blocks_.trim();
}

}  // namespace ral
