#include "memory.h"

#include <sys/mman.h>

#include "bytes.h"

namespace ral {

namespace {
constexpr int64_t kHugePage = 2 << 20;                 // bytes, x86-64
constexpr int64_t kHugePageThreshold = 2 * kHugePage;  // below, alignment would waste more than it saves
constexpr int64_t kLargest = int64_t{1} << 47;         // the user address space of x86-64
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

void* Block::reserve(int64_t bytes) noexcept {
  if (data_ && bytes <= capacity_) return data_.get();
  data_.reset();  // first, so that the old and the new block never exist together
  capacity_ = 0;
  data_.reset(allocate(bytes));
  if (data_) capacity_ = bytes > 0 ? bytes : kAlignment;
  return data_.get();
}

}  // namespace ral
