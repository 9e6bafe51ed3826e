// The memory that calls ask for: each block goes from one request to the next, in a call and from call to call.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cpu/memory.h"

namespace ral {

// As many blocks as were ever in use at once, each as large as its largest request; used by one thread at a time.
class BlockPool {
 public:
  BlockPool() = default;
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;
  ~BlockPool();

  // At least `bytes` bytes on a page boundary until `give`, or null: of the smallest free block that is large enough, or else the largest,
  // which grows.
  void* take(int64_t bytes);
  // False for what is no block in use.
  bool give(void* data) noexcept;
  void give_all() noexcept;

  // Gives back what no request since the last trim needed. Every block is free then.
  void trim() noexcept;

  // Bytes that may be resident.
  int64_t used() const noexcept;

 private:
  struct Entry {
    Block block;
    void* data = nullptr;  // null = free
  };

  Entry* find(int64_t bytes) noexcept;

  std::vector<std::unique_ptr<Entry>> entries_;
};

}  // namespace ral
