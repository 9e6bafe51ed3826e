#include "cpu/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "core/bytes.h"
#include "core/fork.h"

namespace ral {

namespace {
constexpr int64_t kHugePage = 2 << 20;                 // bytes, x86-64
constexpr int64_t kHugePageThreshold = 2 * kHugePage;  // below, alignment would waste more than it saves
constexpr int64_t kLargest = int64_t{1} << 47;         // the user address space of x86-64
constexpr int64_t kPage = 4096;
constexpr int64_t kReusedBytes = 64 << 10;  // smaller results come from the allocator, which rarely returns their pages
constexpr int64_t kIdleBytes = 512 << 20;   // of all blocks that wait for another result
constexpr size_t kIdleBlocks = 256;         // of them: the gradients of a model, and few enough to look through

struct IdleBlock {
  void* data;
  int64_t capacity;
  int64_t number;  // in the order in which they came
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

// The blocks that nobody uses.
class Idle final : ForkAware {
 public:
  // The smallest that holds `bytes` without leaving most of itself empty, of several the one that came last: it may still be in a core's
  // cache. {} when there is none.
  IdleBlock take(int64_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    IdleBlock* best = nullptr;
    for (IdleBlock* each = blocks_.data(); each != blocks_.data() + count_; ++each) {
      if (each->capacity < bytes || each->capacity / 2 > bytes) continue;
      if (!best || each->capacity < best->capacity || (each->capacity == best->capacity && each->number > best->number)) best = each;
    }
    return best ? remove(best) : IdleBlock{};
  }

  // Holds a block, in place of the oldest ones where there are too many; whatever is not held goes back to the system.
  void give(IdleBlock block) noexcept {
    Dropped dropped;
    if (block.capacity > kIdleBytes) return dropped.add(block);
    const std::lock_guard lock(mutex_);
    while (count_ == blocks_.size() || bytes_ + block.capacity > kIdleBytes) {
      IdleBlock* oldest = std::min_element(blocks_.data(), blocks_.data() + count_,
                                           [](const IdleBlock& one, const IdleBlock& other) { return one.number < other.number; });
      dropped.add(remove(oldest));
    }
    block.number = ++given_;
    blocks_[count_++] = block;
    bytes_ += block.capacity;
  }

  void age() noexcept {
    Dropped dropped;
    const std::lock_guard lock(mutex_);
    for (size_t i = count_; i-- > 0;) {
      if (blocks_[i].number <= given_before_) dropped.add(remove(&blocks_[i]));
    }
    given_before_ = given_;
  }

 private:
  // Gives blocks back to the system at the end, when the lock is no longer held: that can take long.
  class Dropped {
   public:
    ~Dropped() {
      for (size_t i = 0; i < count_; ++i) munmap(blocks_[i].data, static_cast<size_t>(blocks_[i].capacity));
    }
    void add(const IdleBlock& block) noexcept { blocks_[count_++] = block; }

   private:
    std::array<IdleBlock, kIdleBlocks> blocks_;
    size_t count_ = 0;
  };

  IdleBlock remove(IdleBlock* block) noexcept {
    const IdleBlock removed = *block;
    bytes_ -= removed.capacity;
    *block = blocks_[--count_];
    return removed;
  }

  void before_fork() noexcept override { mutex_.lock(); }
  void after_fork(bool) noexcept override { mutex_.unlock(); }

  std::mutex mutex_;
  std::array<IdleBlock, kIdleBlocks> blocks_;  // the first `count_`, in no order
  size_t count_ = 0;
  int64_t bytes_ = 0;         // of them
  int64_t given_ = 0;         // blocks that ever were
  int64_t given_before_ = 0;  // the same when `age` was called last
  ForkRegistration registration_{*this};
};

Immortal<Idle> idle;

// From the allocator's lists of small blocks, which its aligned functions do not use (60 to 75 ns a block against 10, alone). What it gave
// is noted before the block: it is aligned to 16 bytes at least, so that there is room.
void* acquire_small(int64_t bytes) noexcept {
  char* given = static_cast<char*>(std::malloc(static_cast<size_t>(bytes + kAlignment)));
  if (!given) return nullptr;
  char* block = given + (kAlignment - reinterpret_cast<uintptr_t>(given) % kAlignment);
  std::memcpy(block - sizeof given, &given, sizeof given);
  return block;
}

void release_small(void* block) noexcept {
  if (!block) return;
  char* given = nullptr;
  std::memcpy(&given, static_cast<char*>(block) - sizeof given, sizeof given);
  std::free(given);
}
}  // namespace

void* acquire_block(int64_t bytes, int64_t* capacity) noexcept {
  *capacity = 0;
  if (bytes < 0 || bytes > kLargest) return nullptr;
  if (bytes < kReusedBytes) return acquire_small(bytes);
  const IdleBlock found = idle->take(bytes);
  *capacity = found.data ? found.capacity : round_up_to(bytes, bytes < kHugePageThreshold ? kPage : kHugePage);
  return found.data ? found.data : map(*capacity);
}

void release_block(void* block, int64_t capacity) noexcept {
  if (!capacity) return release_small(block);
  idle->give({block, capacity, 0});
}

void age_blocks() noexcept { idle->age(); }

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
    // Half as much again: addresses cost nothing until they are used, and sizes that grow slowly rarely need a new block.
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
