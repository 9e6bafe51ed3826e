// One GPU: its context, its memory, and what may be said of its errors.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/status.h"
#include "cuda/driver.h"
#include "cuda/products.h"

namespace ral::cuda {

// Makes the GPU's context the calling thread's, as long as it lives; the thread's own comes back then.
class Current {
 public:
  Current(const Driver& driver, ContextHandle context) : driver_(driver), failed_(driver.push_context(context)) {}
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  ~Current() {
    ContextHandle popped = nullptr;
    if (!failed_) driver_.pop_context(&popped);
  }
  int32_t failed() const { return failed_; }

 private:
  const Driver& driver_;
  int32_t failed_;
};

class Gpu final : public Device {
 public:
  Gpu(const Driver& driver, int32_t id) : Device("cuda", RAL_CUDA, static_cast<uint8_t>(id)), driver(driver) {}

  // Retains the primary context, which the process's other users of the GPU share. Once.
  Status open();

  std::unique_ptr<DeviceProgram> open_program() override;
  void* acquire(Stream& stream, int64_t head, int64_t bytes, void** data, int64_t* capacity) override;
  void* adopt(int64_t head, const ral_lent& lent, int64_t* capacity) noexcept override;
  void* acquire_lasting(int64_t head, int64_t bytes, void** data, int64_t* capacity) override;
  void release(void* head, void* data, int64_t capacity) noexcept override;
  Status place_weight(const void* from, int64_t bytes, const void** placed) override;
  void drop_weight(const void* placed) noexcept override;
  Status synchronize() override;
  bool has_products() override { return products() != nullptr; }
  int32_t units() const noexcept override { return processors_; }

  Current current() const { return {driver, context_}; }
  ContextHandle context() const { return context_; }
  int32_t architecture() const { return architecture_; }  // 90 = compute capability 9.0
  int32_t shared_per_block() const { return shared_; }
  // The library of products, loaded when it is first asked for; null where there is none.
  const Products* products();

  // Memory in the order of a stream.
  int32_t allocate(int64_t bytes, StreamHandle stream, Address* place);

  // Makes a request that needs memory of the GPU; where there is none, once more when what was freed before on any stream is free.
  template <typename Request>
  int32_t with_memory(Request request) {
    const int32_t failed = request();
    if (failed != kOutOfMemory) return failed;
    give_back();
    return request();
  }
  // Waits for all work, and gives back what the pool keeps for later calls.
  void give_back() noexcept;

  // Streams of our own, which outlive programs: memory of results is freed on them.
  int32_t take_stream(StreamHandle* stream);
  void give_stream(StreamHandle stream) noexcept;

  // The status of a failed call of the driver, or of the library of products (kProductStatus): "cuda:0: copy failed: ...". After a fatal one every later `check_alive` fails, too.
  Status failure(const std::string& what, int32_t result);
  Status check_alive();

  const Driver& driver;

 private:
  std::mutex mutex_;  // guards what follows
  ContextHandle context_ = nullptr;
  PoolHandle pool_ = nullptr;
  int32_t architecture_ = 0, processors_ = 0, shared_ = 0;  // constant once open
  std::vector<StreamHandle> idle_streams_;
  size_t streams_ = 0;  // that there are, idle or not
  std::unique_ptr<Products> products_;
  std::string lost_;
  std::atomic<bool> is_lost_{false};
  std::atomic<bool> knows_products_{false};
};

// The GPU of this number, opened; RAL_ERROR_TARGET where there is none.
Status find_gpu(int32_t id, Gpu** found);

// As ral_get_gpu. Opens no context.
Status describe_gpu(int32_t id, ral_gpu* gpu);

// As find_gpu, of one that was opened before: of tensors that lie on it. Null for others.
Gpu* opened_gpu(int32_t id) noexcept;

// How well code of an architecture ("sm_90") suits a GPU: 3 its own, 2 a lower one of its generation, 1 portable (PTX for sm_80), 0 not at
// all.
int32_t suits(int32_t code, int32_t gpu) noexcept;

// The architecture of "x86-64-v3+sm_90", and the rest of it; 0 where there is none.
int32_t split_architecture(std::string_view isa, std::string_view* host) noexcept;

}  // namespace ral::cuda
