#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

#include "bytes.h"

namespace ral {

namespace {
constexpr int64_t kHugePage = 2 << 20;                 // bytes, x86-64
constexpr int64_t kHugePageThreshold = 2 * kHugePage;  // below, alignment would waste more than it saves
constexpr int64_t kLargest = int64_t{1} << 47;         // the user address space of x86-64
constexpr int64_t kPage = 4096;

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
}  // namespace

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
