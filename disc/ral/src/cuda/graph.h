// The requests of one call as a graph of the driver: a chain of nodes, whose addresses of inputs and results are set before each launch.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/device.h"
#include "core/moving.h"
#include "cuda/driver.h"
#include "cuda/gpu.h"
#include "cuda/products.h"
#include "cuda/program.h"
#include "ral.h"

namespace ral::cuda {

// First requests are noted by one thread, then `build` makes the graph, then any threads launch it, one after the other. The driver runs a
// launch behind the one before, whatever their streams, so that all launches share the memory that `allocate` gave.
class GpuGraph final : public Recording {
 public:
  explicit GpuGraph(Gpu& gpu) : gpu_(gpu), driver_(gpu.driver) {}
  ~GpuGraph() override;

  void* allocate(int64_t bytes);
  bool free(void* block) noexcept;
  // False: it cannot be part of a graph.
  bool copy(void* to, const void* from, int64_t bytes);
  bool fill(void* to, int64_t bytes, int32_t value);
  // scratch: bytes of memory for the launch alone. check: that its faults are reported under, -1 = it has none.
  bool launch(const ral_gpu_kernel& kernel, const char* name, const LaunchConfig& config, FunctionHandle function, const int64_t* args,
              int64_t scratch, int64_t check);

  bool product(std::unique_ptr<Product> product, const char* name, const ProductSizes& sizes, const ProductPlaces& places);

  // All has been noted. places: where the tensors of that call lie.
  int32_t build(std::span<void* const> places);

  // The check of each launch that reports faults; `launch` gets a slot for each.
  const std::vector<int64_t>& checks() const { return checks_; }
  // The names and grids of the last launches, for messages.
  struct Launched {
    const char* name;
    uint32_t grid[3];
  };
  std::vector<Launched> last_launches(size_t most) const;

  // places: where the tensors lie that addresses stand for.
  int32_t launch(StreamHandle stream, std::span<void* const> places, std::span<Slot* const> slots) const;

 private:
  enum class Kind { kLaunch, kCopy, kFill, kProduct };

  // A value that is set before each launch: an address in a tensor, or of a slot.
  struct Patch {
    size_t value;
    Moving place;
    int64_t slot;  // -1: of a tensor
  };

  struct Node {
    Kind kind;
    NodeHandle handle = nullptr;
    std::vector<uint64_t> values;  // of a launch its parameters; of a copy to, from; of a fill to; of a product as of ProductPlaces
    std::vector<void*> pointers;   // to the values
    std::vector<Patch> patches;
    bool stale = false;  // the driver has other values
    int64_t bytes = 0;
    int32_t value = 0;
    FunctionHandle function = nullptr;
    Launched launched{};
    uint32_t threads = 0, shared = 0;
    std::unique_ptr<Product> product;
    Address workspace = 0;
  };

  struct Block {
    Address place;
    int64_t bytes;
    bool free;
  };

  static uint64_t patched(const Patch& patch, std::span<void* const> places, std::span<Slot* const> slots);
  static KernelParameters kernel_parameters(const Node& node);
  Node* add(Kind kind, std::span<const uint64_t> values);
  template <typename Use>
  int32_t with_captured(const Node& node, Use use) const;
  int32_t add_to_graph(Node* node, const NodeHandle* previous);
  int32_t set_values(const Node& node) const;

  Gpu& gpu_;
  const Driver& driver_;
  std::vector<Block> blocks_;
  std::vector<int64_t> checks_;
  GraphHandle graph_ = nullptr;
  GraphExecHandle exec_ = nullptr;
  mutable std::mutex mutex_;  // of those who launch: guards the values of the nodes
  mutable std::vector<Node> nodes_;
};

}  // namespace ral::cuda
