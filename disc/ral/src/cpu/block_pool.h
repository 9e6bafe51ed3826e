// The memory that calls ask for: each block goes from one request to the next, in a call and from call to call.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/fork.h"
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

  // Gives back what no request since the last trim needed, of the free blocks.
  void trim() noexcept;

  // Gives back all free blocks.
  void clear() noexcept;

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

// One pool of the process, for the programs that share it: those whose calls alternate need the memory of the largest alone. Thread-safe.
class SharedBlocks final : ForkAware {
 public:
  // As of BlockPool.
  void* take(int64_t bytes);
  void give(void* data) noexcept;

  // How many use it. When the last one leaves, all memory goes back.
  void join() noexcept;
  void leave() noexcept;

  // Each user calls it after so many calls of its own: the pool is trimmed once one has come twice since it was trimmed last. asked: what the
  // user was told the last time, 0 at first.
  void trim(int64_t* asked) noexcept;

 private:
  void before_fork() noexcept override { mutex_.lock(); }
  void after_fork(bool) noexcept override { mutex_.unlock(); }

  std::mutex mutex_;
  BlockPool blocks_;
  int64_t users_ = 0;
  int64_t period_ = 1;  // of trims
  ForkRegistration registration_{*this};
};

extern Immortal<SharedBlocks> shared_blocks;

}  // namespace ral
