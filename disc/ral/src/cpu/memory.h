// Owned, aligned memory.
#pragma once

#include <cstdint>

namespace ral {

// 64-byte aligned memory for std::free, or null. Large blocks are aligned to and advised for huge pages: first-touch faults are what they
// cost.
void* allocate(int64_t bytes) noexcept;

// A block that grows and is reused, of pages of its own: what is given back goes to the system, not to an allocator that may keep it.
class Block {
 public:
  Block() = default;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block();

  // At least `bytes` bytes on a page boundary, or null. Contents are lost when the block grows.
  void* reserve(int64_t bytes) noexcept;

  // Gives back the pages that no `reserve` since the last trim asked for, where they are more than half of those in use.
  void trim() noexcept;

  void* data() const { return data_; }          // null before the first `reserve`
  int64_t capacity() const { return capacity_; }  // bytes that need no larger block
  // Bytes that may be resident: the rest of the block was not asked for since it was made or given back.
  int64_t used() const { return used_; }

 private:
  void* data_ = nullptr;
  int64_t capacity_ = 0;  // bytes of addresses
  int64_t used_ = 0;
  int64_t wanted_ = 0;  // the most since the last trim
};

// Memory for results, which the caller of a program frees when it likes. Blocks from 64 KiB on go to the next result of about their size:
// the system would take the pages of each back and zero them for the next, which costs more than computing what is in them.
// At least `bytes` bytes, 64-byte aligned, or null; `capacity` is what `release_block` wants to know.
void* acquire_block(int64_t bytes, int64_t* capacity) noexcept;
void release_block(void* block, int64_t capacity) noexcept;

// Called every so many calls: blocks that no call of the last period asked for go back to the system.
void age_blocks() noexcept;

}  // namespace ral
