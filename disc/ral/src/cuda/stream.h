// One call of a program on a GPU, as a sequence of requests to a stream of the driver.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/device.h"
#include "cuda/gpu.h"
#include "cuda/graph.h"
#include "cuda/products.h"
#include "cuda/program.h"

namespace ral::cuda {

class GpuStream final : public Stream {
 public:
  explicit GpuStream(GpuProgram& program) : program_(program), gpu_(program.gpu()), driver_(gpu_.driver) {}
  ~GpuStream() override;

  bool begin(void* caller, bool waits, Status* failure) override;
  void* allocate(int64_t bytes, Status* failure) override;
  bool free(void* block) noexcept override;
  bool copy(void* to, const void* from, int64_t bytes, Status* failure) override;
  bool upload(void* to, const void* from, int64_t bytes, Status* failure) override;
  bool download(void* to, const void* from, int64_t bytes, Status* failure) override;
  bool fill(void* to, int64_t bytes, int32_t value, Status* failure) override;
  bool gather(void* to, const ral_tensor& from, Status* failure) override;
  bool launch(const ral_launch& launch, int64_t cost_per_task, int32_t threads, int64_t* nanoseconds, Status* failure) override;
  void watch(int64_t check) override { check_ = check; }
  bool synchronize(Status* failure) override;
  bool finish(Status* failure, Fault* fault) override;
  bool begin_recording() override;
  std::unique_ptr<Recording> end_recording(bool complete, std::span<void* const> places) override;
  bool replay(const Recording& recording, std::span<void* const> places, Status* failure) override;
  void trim() noexcept override;
  int64_t held_bytes() const noexcept override;

  bool give_back() noexcept override;

  StreamHandle handle() const { return stream_; }
  // As Gpu::allocate, on the stream of this call; where there is no memory, once more without what the call keeps for later requests.
  int32_t reserve(int64_t bytes, Address* place);

 private:
  struct Recent {
    const char* name;
    std::array<uint32_t, 3> grid;
  };

  // What comes to this process's memory when the stream has been waited for.
  struct Returning {
    void* to;
    const char* from;
    size_t bytes;
  };

  struct Ending;

  char* pinned(int64_t bytes, int64_t* found);
  Slot* watch_launch(int64_t check, const char* name, Status* failure);
  FunctionHandle find(const ral_gpu_kernel& kernel, const char* name, Status* failure);
  int32_t scratch(int64_t bytes, Address* place);
  bool drop_scratch() noexcept;
  int32_t submit(const ral_gpu_kernel& kernel, const LaunchConfig& config, FunctionHandle function, const int64_t* args, int64_t bytes,
                 Slot* slot);
  bool launch_product(const ral_gpu_product& product, const ral_launch& launch, int64_t* nanoseconds, Status* failure);
  std::unique_ptr<Product> make_product(const ral_gpu_product& product, const ProductSizes& sizes, int32_t* failed);
  int32_t submit_product(Product* product, const ProductPlaces& places);
  template <typename Submit>
  int32_t timed(Submit submit, int64_t* nanoseconds);
  bool check(int32_t failed, const std::string& what, Status* failure);
  bool done(int32_t failed, const char* what, Status* failure) { return !failed || check(failed, what, failure); }
  std::string recent_text() const;

  GpuProgram& program_;
  Gpu& gpu_;
  const Driver& driver_;
  std::optional<Current> current_;
  StreamHandle own_ = nullptr, stream_ = nullptr;
  bool waits_ = false;
  int64_t check_ = -1;
  std::vector<void*> blocks_;
  Address scratch_ = 0;  // of this call
  int64_t scratch_bytes_ = 0;
  std::vector<char*> pinned_;  // blocks of pinned memory that copies from and to this process's memory go through, kept from call to call
  size_t filled_ = 0;          // those of them that this call has used up
  int64_t used_ = 0;           // bytes of the next one
  size_t most_filled_ = 0;     // of the calls since `trim`
  std::vector<Returning> returning_;
  std::vector<Watched> watched_;
  std::vector<Slot*> slots_;  // of a graph's launches
  std::unordered_map<const ral_gpu_kernel*, FunctionHandle> functions_;
  std::map<std::pair<const ral_gpu_product*, ProductSizes>, std::unique_ptr<Product>> products_;  // that calls before had
  std::unique_ptr<GpuGraph> recorder_;  // while requests are noted
  std::array<Recent, 4> recent_{};  // the last launches, the latest at count - 1
  size_t recent_count_ = 0;
};

}  // namespace ral::cuda
