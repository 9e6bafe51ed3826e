#include "cuda/graph.h"

#include <algorithm>
#include <iterator>

namespace ral::cuda {

namespace {

constexpr size_t kMostNodes = 1 << 14;
constexpr int32_t kDeviceMemory = 2;  // CU_MEMORYTYPE_DEVICE

CopyParameters copy_parameters(uint64_t to, uint64_t from, int64_t bytes) {
  CopyParameters parameters{};
  parameters.from.kind = parameters.to.kind = kDeviceMemory;
  parameters.from.place = from;
  parameters.to.place = to;
  parameters.width = static_cast<size_t>(bytes);
  parameters.height = parameters.depth = 1;
  return parameters;
}

FillParameters fill_parameters(uint64_t to, int32_t value, int64_t bytes) {
  return {to, 0, static_cast<uint32_t>(value), 1, static_cast<size_t>(bytes), 1};
}

}  // namespace

GpuGraph::~GpuGraph() {
  if (forked()) return;
  const Current here = gpu_.current();
  if (exec_) driver_.synchronize_context();  // launches of calls that are over may still run
  if (exec_) driver_.destroy_graph_exec(exec_);
  if (graph_) driver_.destroy_graph(graph_);
  for (const Block& block : blocks_) driver_.free(block.place);
}

// What was freed before goes to the next that fits: the nodes run one after the other.
void* GpuGraph::allocate(int64_t bytes) {
  const int64_t size = std::max<int64_t>(bytes, 1);
  for (Block& block : blocks_) {
    if (!block.free || block.bytes < size) continue;
    block.free = false;
    return reinterpret_cast<void*>(block.place);
  }
  blocks_.reserve(blocks_.size() + 1);
  Address place = 0;
  if (gpu_.with_memory([&] { return driver_.allocate(&place, static_cast<size_t>(size)); })) return nullptr;
  blocks_.push_back({place, size, false});
  return reinterpret_cast<void*>(place);
}

bool GpuGraph::free(void* block) noexcept {
  const auto found = std::find_if(blocks_.begin(), blocks_.end(),
                                  [&](const Block& each) { return !each.free && each.place == reinterpret_cast<Address>(block); });
  if (found == blocks_.end()) return false;
  found->free = true;
  return true;
}

GpuGraph::Node* GpuGraph::add(Kind kind, std::span<const uint64_t> values) {
  if (nodes_.size() >= kMostNodes) return nullptr;
  Node& node = nodes_.emplace_back();
  node.kind = kind;
  node.values.assign(values.begin(), values.end());
  return &node;
}

bool GpuGraph::copy(void* to, const void* from, int64_t bytes) {
  const uint64_t values[] = {reinterpret_cast<uint64_t>(to), reinterpret_cast<uint64_t>(from)};
  Node* node = add(Kind::kCopy, values);
  if (!node) return false;
  node->bytes = bytes;
  for (size_t i = 0; i < 2; ++i) {
    if (const Moving place = read_moving(values[i]); place.tensor >= 0) node->patches.push_back({i, place, -1});
  }
  return true;
}

bool GpuGraph::fill(void* to, int64_t bytes, int32_t value) {
  const uint64_t values[] = {reinterpret_cast<uint64_t>(to)};
  Node* node = add(Kind::kFill, values);
  if (!node) return false;
  node->bytes = bytes;
  node->value = value;
  if (const Moving place = read_moving(values[0]); place.tensor >= 0) node->patches.push_back({0, place, -1});
  return true;
}

bool GpuGraph::launch(const ral_gpu_kernel& kernel, const char* name, const LaunchConfig& config, FunctionHandle function,
                      const int64_t* args, int64_t scratch, int64_t check) {
  if (kernel.cluster > 1) return false;
  const auto count = static_cast<size_t>(kernel.parameter_count);
  std::vector<uint64_t> values(args, args + count);
  values.insert(values.end(), 2, 0);  // scratch memory, and none for profiles
  if (scratch > 0) {
    values[count] = reinterpret_cast<uint64_t>(allocate(scratch));
    if (!values[count]) return false;
    free(reinterpret_cast<void*>(values[count]));  // for the launches behind this one
  }
  Node* node = add(Kind::kLaunch, values);
  if (!node) return false;
  node->function = function;
  node->launched = {name, {config.grid[0], config.grid[1], config.grid[2]}};
  node->threads = config.block[0];
  node->shared = config.shared;
  for (size_t i = 0; i < count; ++i) {
    if (!(kernel.parameter_sizes[i] & RAL_GPU_ADDRESS)) continue;
    if (const Moving place = read_moving(values[i]); place.tensor >= 0) node->patches.push_back({i, place, -1});
  }
  if (kernel.fault < 0) return true;
  node->patches.push_back({static_cast<size_t>(kernel.fault), {}, static_cast<int64_t>(checks_.size())});
  checks_.push_back(check);
  return true;
}

bool GpuGraph::product(std::unique_ptr<Product> product, const char* name, const ProductSizes& sizes, const ProductPlaces& places) {
  const uint64_t values[] = {places.left, places.right, places.bias, places.result};
  Address workspace = 0;
  if (product->workspace() > 0) {
    workspace = reinterpret_cast<Address>(allocate(static_cast<int64_t>(product->workspace())));
    if (!workspace) return false;
    free(reinterpret_cast<void*>(workspace));  // for the requests behind this one
  }
  Node* node = add(Kind::kProduct, values);
  if (!node) return false;
  node->product = std::move(product);
  node->workspace = workspace;
  node->launched = {name, {static_cast<uint32_t>(sizes.m), static_cast<uint32_t>(sizes.n), static_cast<uint32_t>(sizes.batch)}};
  for (size_t i = 0; i < std::size(values); ++i) {
    if (const Moving place = read_moving(values[i]); place.tensor >= 0) node->patches.push_back({i, place, -1});
  }
  return true;
}

// Calls `use` with a graph of what the library asks for to compute a node's product.
template <typename Use>
int32_t GpuGraph::with_captured(const Node& node, Use use) const {
  StreamHandle stream = nullptr;
  GraphHandle captured = nullptr;
  int32_t failed = gpu_.take_stream(&stream);
  if (failed) return failed;
  failed = driver_.begin_capture(stream, kRelaxed);
  if (!failed) {
    const int32_t status =
        node.product->run({node.values[0], node.values[1], node.values[2], node.values[3]}, node.workspace, stream);
    failed = driver_.end_capture(stream, &captured);
    if (!failed && status) failed = kProductStatus + status;
  }
  if (!failed) failed = use(captured);
  if (captured) driver_.destroy_graph(captured);
  gpu_.give_stream(stream);
  return failed;
}

// The addresses that move are those of the call that was recorded: the driver looks at those of copies and fills.
int32_t GpuGraph::build(std::span<void* const> places) {
  int32_t failed = driver_.create_graph(&graph_, 0);
  const NodeHandle* previous = nullptr;
  for (Node& node : nodes_) {
    if (failed) return failed;
    for (const Patch& patch : node.patches) node.values[patch.value] = patched(patch, places, {});
    for (uint64_t& value : node.values) node.pointers.push_back(&value);
    failed = add_to_graph(&node, previous);
    previous = &node.handle;
  }
  return failed ? failed : driver_.instantiate_graph(&exec_, graph_, 0);
}

uint64_t GpuGraph::patched(const Patch& patch, std::span<void* const> places, std::span<Slot* const> slots) {
  if (patch.slot < 0) return moved_address(patch.place, places[static_cast<size_t>(patch.place.tensor)]);
  return slots.empty() ? 0 : reinterpret_cast<uint64_t>(slots[static_cast<size_t>(patch.slot)]);
}

KernelParameters GpuGraph::kernel_parameters(const Node& node) {
  const auto& grid = node.launched.grid;
  return {node.function, {grid[0], grid[1], grid[2]}, {node.threads, 1, 1}, node.shared, const_cast<void**>(node.pointers.data()),
          nullptr,       nullptr,                     nullptr};
}

int32_t GpuGraph::add_to_graph(Node* node, const NodeHandle* previous) {
  const size_t count = previous ? 1 : 0;
  if (node->kind == Kind::kCopy) {
    const CopyParameters parameters = copy_parameters(node->values[0], node->values[1], node->bytes);
    return driver_.add_copy_node(&node->handle, graph_, previous, count, &parameters, gpu_.context());
  }
  if (node->kind == Kind::kFill) {
    const FillParameters parameters = fill_parameters(node->values[0], node->value, node->bytes);
    return driver_.add_fill_node(&node->handle, graph_, previous, count, &parameters, gpu_.context());
  }
  if (node->kind == Kind::kProduct) {
    return with_captured(
        *node, [&](GraphHandle captured) { return driver_.add_graph_node(&node->handle, graph_, previous, count, captured); });
  }
  const KernelParameters parameters = kernel_parameters(*node);
  return driver_.add_kernel_node(&node->handle, graph_, previous, count, &parameters);
}

int32_t GpuGraph::set_values(const Node& node) const {
  if (node.kind == Kind::kCopy) {
    const CopyParameters parameters = copy_parameters(node.values[0], node.values[1], node.bytes);
    return driver_.set_copy_node(exec_, node.handle, &parameters, gpu_.context());
  }
  if (node.kind == Kind::kFill) {
    const FillParameters parameters = fill_parameters(node.values[0], node.value, node.bytes);
    return driver_.set_fill_node(exec_, node.handle, &parameters, gpu_.context());
  }
  if (node.kind == Kind::kProduct) {
    return with_captured(node, [&](GraphHandle captured) { return driver_.set_graph_node(exec_, node.handle, captured); });
  }
  const KernelParameters parameters = kernel_parameters(node);
  return driver_.set_kernel_node(exec_, node.handle, &parameters);
}

// Launches that were asked for before keep the values that they had.
int32_t GpuGraph::launch(StreamHandle stream, std::span<void* const> places, std::span<Slot* const> slots) const {
  const std::lock_guard lock(mutex_);
  for (Node& node : nodes_) {
    for (const Patch& patch : node.patches) {
      const uint64_t value = patched(patch, places, slots);
      node.stale |= node.values[patch.value] != value;
      node.values[patch.value] = value;
    }
    if (!node.stale) continue;
    if (const int32_t failed = set_values(node)) return failed;
    node.stale = false;
  }
  return driver_.launch_graph(exec_, stream);
}

std::vector<GpuGraph::Launched> GpuGraph::last_launches(size_t most) const {
  std::vector<Launched> found;
  for (auto node = nodes_.rbegin(); node != nodes_.rend() && found.size() < most; ++node) {
    if (node->kind == Kind::kLaunch || node->kind == Kind::kProduct) found.push_back(node->launched);
  }
  std::reverse(found.begin(), found.end());
  return found;
}

}  // namespace ral::cuda
