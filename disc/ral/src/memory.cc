#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "bytes.h"

namespace ral {

namespace {
constexpr int64_t kHugePage = 2 << 20;                 // bytes, x86-64
constexpr int64_t kHugePageThreshold = 2 * kHugePage;  // below, alignment would waste more than it saves
constexpr int64_t kLargest = int64_t{1} << 47;         // the user address space of x86-64
constexpr int64_t kPage = 4096;
constexpr int64_t kIdleBytes = 256 << 20;  // of all blocks that wait for another result

struct IdleBlock {
  void* data = nullptr;
  int64_t capacity = 0;
  int64_t number = 0;  // in the order in which they came
};

int64_t round_up_to(int64_t bytes, int64_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

// Zeroed pages, or null; large ones start on a huge page.
void* map(int64_t bytes) noexcept {
  const bool huge = bytes >= kHugePageThreshold;
  const auto size = static_cast<size_t>(bytes), spare = huge ? static_cast<size_t>(kHugePage) : 0;
  void* mapped = mmap(nullptr, size + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char* begin = static_cast<char*>(mapped);
  if (!huge) return begin;
  const size_t before = -reinterpret_cast<uintptr_t>(begin) % spare;
  if (before) munmap(begin, before);
  if (before < spare) munmap(begin + before + size, spare - before);
  madvise(begin + before, size, MADV_HUGEPAGE);  // only a hint: without huge pages the memory is as good
  return begin + before;
}

// The large blocks that nobody uses.
class Idle {
 public:
  // The smallest that holds `bytes` without leaving most of itself empty; {} when there is none.
  IdleBlock take(int64_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    IdleBlock* best = nullptr;
    for (IdleBlock& each : blocks_) {
      if (each.capacity >= bytes && each.capacity / 2 <= bytes && (!best || each.capacity < best->capacity)) best = &each;
    }
    return best ? std::exchange(*best, {}) : IdleBlock{};
  }

  // Holds a block, in place of the oldest ones where there are too many; whatever is not held goes back to the system.
  void give(IdleBlock block) noexcept {
    const std::lock_guard lock(mutex_);
    if (block.capacity > kIdleBytes) return unmap(block);
    block.number = ++given_;
    IdleBlock* place = nullptr;
    int64_t total = block.capacity;
    for (IdleBlock& each : blocks_) total += each.capacity;
    while (!(place = empty()) || total > kIdleBytes) {
      IdleBlock& oldest = *std::min_element(blocks_.begin(), blocks_.end(), [](const IdleBlock& one, const IdleBlock& other) {
        return (one.data ? one.number : INT64_MAX) < (other.data ? other.number : INT64_MAX);
      });
      total -= oldest.capacity;
      unmap(oldest);
    }
    *place = block;
  }

  void age() noexcept {
    const std::lock_guard lock(mutex_);
    for (IdleBlock& each : blocks_) {
      if (each.data && each.number <= given_before_) unmap(each);
    }
    given_before_ = given_;
  }

 private:
  IdleBlock* empty() noexcept {
    const auto found = std::find_if(blocks_.begin(), blocks_.end(), [](const IdleBlock& each) { return !each.data; });
    return found == blocks_.end() ? nullptr : &*found;
  }

  static void unmap(IdleBlock& block) noexcept {
    munmap(block.data, static_cast<size_t>(block.capacity));
    block = {};
  }

  std::mutex mutex_;
  std::array<IdleBlock, 16> blocks_{};
  int64_t given_ = 0;         // blocks that ever were
  int64_t given_before_ = 0;  // the same when `age` was called last
};

Idle& idle() noexcept {
  static Idle blocks;
  return blocks;
}
}  // namespace

void* acquire_block(int64_t bytes, int64_t* capacity) noexcept {
  *capacity = 0;
  if (bytes < kHugePageThreshold || bytes > kLargest) return allocate(bytes);
  const IdleBlock found = idle().take(bytes);
  *capacity = found.data ? found.capacity : round_up_to(bytes, kHugePage);
  return found.data ? found.data : map(*capacity);
}

void release_block(void* block, int64_t capacity) noexcept {
  if (!capacity) return std::free(block);
  idle().give({block, capacity, 0});
}

void age_blocks() noexcept { idle().age(); }

void* allocate(int64_t bytes) noexcept {
  if (bytes < 0 || bytes > kLargest) return nullptr;
  const bool huge = bytes >= kHugePageThreshold;
  const int64_t alignment = huge ? kHugePage : kAlignment;
  void* pointer = nullptr;
  if (posix_memalign(&pointer, static_cast<size_t>(alignment), static_cast<size_t>(bytes > 0 ? bytes : kAlignment)) != 0) return nullptr;
  // Only a hint: without huge pages the memory is as good, so its result does not matter.
  if (huge) madvise(pointer, static_cast<size_t>(bytes / kHugePage * kHugePage), MADV_HUGEPAGE);
  return pointer;
}

Block::~Block() {
  if (data_) munmap(data_, static_cast<size_t>(capacity_));
}

void* Block::reserve(int64_t bytes) noexcept {
  if (bytes < 0 || bytes > kLargest) return nullptr;
  const int64_t pages = round_up_to(std::max<int64_t>(bytes, 1), kPage);
  if (pages > capacity_) {
    // First, so that the old and the new pages never exist together.
    if (data_) munmap(data_, static_cast<size_t>(capacity_));
    data_ = nullptr;
    used_ = 0;
    // Half as much again: addresses cost nothing until they are used, and sizes that grow slowly seldom need a new block.
    capacity_ = std::min(pages + pages / 2, kLargest) / kPage * kPage;
    data_ = map(capacity_);
    if (!data_) data_ = map(capacity_ = pages);
    if (!data_) capacity_ = 0;
    if (!data_) return nullptr;
  }
  used_ = std::max(used_, pages);
  wanted_ = std::max(wanted_, pages);
  return data_;
}

void Block::trim() noexcept {
  if (wanted_ < used_ / 2) {
    // A huge page that is in use in part stays whole.
    const int64_t kept = round_up_to(wanted_, used_ >= kHugePageThreshold ? kHugePage : kPage);
    if (kept < used_ && madvise(static_cast<char*>(data_) + kept, static_cast<size_t>(used_ - kept), MADV_DONTNEED) == 0) used_ = kept;
  }
  wanted_ = 0;
}

}  // namespace ral
