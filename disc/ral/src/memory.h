// Owned, aligned memory.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>

namespace ral {

// 64-byte aligned memory, or null. Large blocks are aligned to and advised for huge pages: first-touch faults are what they cost.
void* allocate(int64_t bytes) noexcept;

// A block that grows and is reused.
class Block {
 public:
  // At least `bytes` bytes, or null. Contents are lost when the block grows.
  void* reserve(int64_t bytes) noexcept;
  int64_t capacity() const { return capacity_; }

 private:
  struct Free {
    void operator()(void* pointer) const { std::free(pointer); }
  };
  std::unique_ptr<void, Free> data_;
  int64_t capacity_ = 0;
};

}  // namespace ral
