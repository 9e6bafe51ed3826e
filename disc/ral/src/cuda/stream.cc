#include "cuda/stream.h"

#include <algorithm>
#include <cstring>

#include "core/bytes.h"
#include "core/signature.h"
#include "cuda/strided_copy.h"

namespace ral::cuda {

namespace {

constexpr int64_t kMostAlong = 65535;  // blocks along y and z; along x it is INT32_MAX
constexpr int32_t kProductVersion = 3;  // of ral_gpu_product, which begins with it as a ral_gpu_kernel begins with its own
constexpr int64_t kPinnedBytes = 1 << 20;  // of a block: while the GPU copies one, the next is filled
constexpr size_t kMostPinned = 64;        // blocks of a call; what is more is copied by the driver's own means
constexpr size_t kMostProducts = 1024;  // whose descriptions are kept: some kilobytes each

std::string grid_text(const std::array<uint32_t, 3>& grid) {
  return std::to_string(grid[0]) + " x " + std::to_string(grid[1]) + " x " + std::to_string(grid[2]);
}

// Of memory that a launch alone uses; "" for none.
std::string scratch_text(int64_t bytes) { return bytes ? ", " + std::to_string(bytes) + " bytes of scratch memory" : ""; }

}  // namespace

GpuStream::~GpuStream() {
  most_filled_ = 0;
  trim();
  if (own_) gpu_.give_stream(own_);
}

bool GpuStream::begin(void* caller, bool waits, Status* failure) {
  if (Status status = gpu_.check_alive(); !status.ok()) {
    *failure = std::move(status);
    return false;
  }
  current_.emplace(gpu_.driver, gpu_.context());
  if (!done(current_->failed(), "making its context current", failure)) return false;
  check_ = -1;
  waits_ = waits;
  stream_ = caller;
  if (waits) {
    if (!own_ && !done(gpu_.take_stream(&own_), "making a stream", failure)) return false;
    stream_ = own_;
    return true;
  }
  ContextHandle context = nullptr;
  const bool is_default = reinterpret_cast<uintptr_t>(caller) <= 2;  // the legacy one, or the thread's
  if (is_default) return true;
  if (!done(driver_.stream_context(caller, &context), "looking at the stream that was given", failure)) return false;
  if (context == gpu_.context()) return true;
  *failure = error(RAL_ERROR_DEVICE, "the stream that was given belongs to another device than " + gpu_.text() + ", where the tensors lie");
  return false;
}

void* GpuStream::allocate(int64_t bytes, Status* failure) {
  if (recorder_) return recorder_->allocate(bytes);
  blocks_.reserve(blocks_.size() + 1);
  Address place = 0;
  const int32_t failed = reserve(bytes, &place);
  if (failed && failed != kOutOfMemory) check(failed, "allocating " + std::to_string(bytes) + " bytes", failure);
  if (failed) return nullptr;
  blocks_.push_back(reinterpret_cast<void*>(place));
  return blocks_.back();
}

bool GpuStream::free(void* block) noexcept {
  if (recorder_) return recorder_->free(block);
  const auto place = std::find(blocks_.begin(), blocks_.end(), block);
  if (place == blocks_.end()) return false;
  *place = blocks_.back();
  blocks_.pop_back();
  driver_.free_async(reinterpret_cast<Address>(block), stream_);
  return true;
}

// Memory of this process that is not pinned has been read when the driver returns.
bool GpuStream::copy(void* to, const void* from, int64_t bytes, Status* failure) {
  if (recorder_) return recorder_->copy(to, from, bytes);
  const int32_t failed =
      driver_.copy_async(reinterpret_cast<Address>(to), reinterpret_cast<Address>(from), static_cast<size_t>(bytes), stream_);
  return done(failed, "a copy", failure);
}

// Room for some of so many bytes, at least one, until the stream has been waited for; null where there is none.
char* GpuStream::pinned(int64_t bytes, int64_t* found) {
  if (used_ == kPinnedBytes) ++filled_, used_ = 0;
  if (filled_ == pinned_.size()) {
    if (filled_ == kMostPinned) return nullptr;
    void* block = nullptr;
    pinned_.reserve(pinned_.size() + 1);
    if (driver_.allocate_host(&block, kPinnedBytes, kPortable)) return nullptr;
    pinned_.push_back(static_cast<char*>(block));
  }
  most_filled_ = std::max(most_filled_, filled_ + 1);
  char* place = pinned_[filled_] + used_;
  *found = std::min(bytes, kPinnedBytes - used_);
  used_ = std::min(round_up(used_ + *found), kPinnedBytes);
  return place;
}

// In a call that waits for its stream what lies in pinned memory stays there as long as it is read.
bool GpuStream::upload(void* to, const void* from, int64_t bytes, Status* failure) {
  auto* target = static_cast<char*>(to);
  const auto* source = static_cast<const char*>(from);
  for (int64_t part = 0; bytes > 0; target += part, source += part, bytes -= part) {
    char* place = waits_ ? pinned(bytes, &part) : nullptr;
    if (!place) return copy(target, source, bytes, failure);
    std::memcpy(place, source, static_cast<size_t>(part));
    if (!copy(target, place, part, failure)) return false;
  }
  return true;
}

bool GpuStream::download(void* to, const void* from, int64_t bytes, Status* failure) {
  auto* target = static_cast<char*>(to);
  const auto* source = static_cast<const char*>(from);
  for (int64_t part = 0; bytes > 0; target += part, source += part, bytes -= part) {
    char* place = waits_ ? pinned(bytes, &part) : nullptr;
    if (!place) return copy(target, source, bytes, failure);
    if (!copy(place, source, part, failure)) return false;
    returning_.push_back({target, place, static_cast<size_t>(part)});
  }
  return true;
}

void GpuStream::trim() noexcept {
  if (pinned_.size() > most_filled_ && !forked()) {
    const Current here = gpu_.current();
    if (filled_ || used_) {  // a wait has failed: copies may still be under way
      if (driver_.synchronize_context()) return;
      filled_ = 0, used_ = 0;
    }
    for (size_t i = most_filled_; i < pinned_.size(); ++i) driver_.free_host(pinned_[i]);
    pinned_.resize(most_filled_);
  }
  most_filled_ = 0;
}

int64_t GpuStream::held_bytes() const noexcept { return static_cast<int64_t>(pinned_.size()) * kPinnedBytes; }

bool GpuStream::fill(void* to, int64_t bytes, int32_t value, Status* failure) {
  if (recorder_) return recorder_->fill(to, bytes, value);
  return done(driver_.fill_async(reinterpret_cast<Address>(to), static_cast<uint8_t>(value), static_cast<size_t>(bytes), stream_), "a fill",
              failure);
}

bool GpuStream::gather(void* to, const ral_tensor& from, Status* failure) {
  return copy_strided(from, dtype_size(from.dtype), to, [&](const ral_gpu_kernel& kernel, const int64_t* slots) {
    const auto address = reinterpret_cast<ral_kernel>(reinterpret_cast<uintptr_t>(&kernel));
    return launch({"copy of an input that is not contiguous", address, slots, 1, 0}, 0, 1, nullptr, failure);
  });
}

// A place for what a launch reports under a check; null where there is no memory.
Slot* GpuStream::watch_launch(int64_t check, const char* name, Status* failure) {
  watched_.reserve(watched_.size() + 1);
  Slot* slot = program_.take_slot();
  if (slot) watched_.push_back({slot, check});
  else *failure = error(RAL_ERROR_MEMORY, "cannot allocate pinned memory for what '" + std::string(name) + "' reports");
  return slot;
}

FunctionHandle GpuStream::find(const ral_gpu_kernel& kernel, const char* name, Status* failure) {
  if (const auto found = functions_.find(&kernel); found != functions_.end()) return found->second;
  FunctionHandle function = nullptr;
  Status status = program_.load(kernel, name, &function);
  if (!status.ok()) {
    *failure = std::move(status);
    return nullptr;
  }
  functions_[&kernel] = function;
  return function;
}

bool GpuStream::launch(const ral_launch& launch, int64_t, int32_t, int64_t* nanoseconds, Status* failure) {
  const auto description = reinterpret_cast<uintptr_t>(launch.kernel);
  if (*reinterpret_cast<const int32_t*>(description) == kProductVersion) {
    return launch_product(*reinterpret_cast<const ral_gpu_product*>(description), launch, nanoseconds, failure);
  }
  const auto& kernel = *reinterpret_cast<const ral_gpu_kernel*>(description);
  const int64_t check = std::exchange(check_, -1);
  const FunctionHandle function = find(kernel, launch.name, failure);  // checks the description
  if (!function) return false;
  const int64_t* grid = launch.args + kernel.parameter_count;
  if (grid[0] <= 0 || grid[1] <= 0 || grid[2] <= 0) return true;
  int64_t bytes = int64_t{kernel.scratch} * kernel.cluster;  // of scratch memory
  const bool too_large = grid[0] > INT32_MAX / kernel.cluster || grid[1] > kMostAlong || grid[2] > kMostAlong ||
                         std::any_of(grid, grid + 3, [&](int64_t size) { return __builtin_mul_overflow(bytes, size, &bytes); });
  const std::string_view wrong = too_large ? "too large a grid" : kernel.fault >= 0 && check < 0 ? "no check to report under" : "";
  if (!wrong.empty()) {
    *failure = error(RAL_ERROR_INTERNAL, "kernel '" + std::string(launch.name) + "' has " + std::string(wrong) + ": grid " +
                                             std::to_string(grid[0]) + " x " + std::to_string(grid[1]) + " x " + std::to_string(grid[2]) +
                                             " (compiler bug)");
    return false;
  }
  LaunchConfig config{{static_cast<uint32_t>(grid[0] * kernel.cluster), static_cast<uint32_t>(grid[1]), static_cast<uint32_t>(grid[2])},
                      {static_cast<uint32_t>(kernel.threads), 1, 1},
                      static_cast<uint32_t>(kernel.shared),
                      stream_,
                      nullptr,
                      0};
  LaunchAttribute cluster{kClusterDimension, {}, {{static_cast<uint32_t>(kernel.cluster), 1, 1}}};
  if (kernel.cluster > 1) config.attributes = &cluster, config.attribute_count = 1;
  if (recorder_) return recorder_->launch(kernel, launch.name, config, function, launch.args, bytes, check);
  Slot* slot = kernel.fault >= 0 ? watch_launch(check, launch.name, failure) : nullptr;
  if (kernel.fault >= 0 && !slot) return false;
  recent_[recent_count_++ % recent_.size()] = {launch.name, {config.grid[0], config.grid[1], config.grid[2]}};
  const auto submitted = [&] { return submit(kernel, config, function, launch.args, bytes, slot); };
  const int32_t failed = nanoseconds ? timed(submitted, nanoseconds) : submitted();
  if (!failed) return true;
  return this->check(failed,
                     "launch of kernel '" + std::string(launch.name) + "' (grid " +
                         grid_text({config.grid[0], config.grid[1], config.grid[2]}) + ", " + std::to_string(kernel.threads) +
                         " threads, " + std::to_string(kernel.shared) + " bytes of shared memory" + scratch_text(bytes) + ")",
                     failure);
}

// Memory that a launch alone uses, the same for all of a call, which run one after the other: tensor maps, workspaces of products.
int32_t GpuStream::scratch(int64_t bytes, Address* place) {
  if (bytes > scratch_bytes_) {
    drop_scratch();
    if (const int32_t failed = gpu_.allocate(bytes, stream_, &scratch_)) return failed;
    scratch_bytes_ = bytes;
  }
  *place = scratch_;
  return kSuccess;
}

// Whether there was any. What was asked for before may still use it.
bool GpuStream::drop_scratch() noexcept {
  const bool there = scratch_ != 0;
  if (there) driver_.free_async(scratch_, stream_);
  scratch_ = 0, scratch_bytes_ = 0;
  return there;
}

bool GpuStream::give_back() noexcept {
  drop_scratch();
  gpu_.give_back();
  return true;
}

int32_t GpuStream::reserve(int64_t bytes, Address* place) {
  const int32_t failed = gpu_.allocate(bytes, stream_, place);
  return failed == kOutOfMemory && drop_scratch() ? gpu_.allocate(bytes, stream_, place) : failed;
}

// bytes: of scratch memory. The parameters are read before the driver returns.
int32_t GpuStream::submit(const ral_gpu_kernel& kernel, const LaunchConfig& config, FunctionHandle function, const int64_t* args,
                          int64_t bytes, Slot* slot) {
  Address own = 0, no_profile = 0;
  if (bytes > 0) {
    if (const int32_t failed = scratch(bytes, &own)) return failed;
  }
  void* parameters[kMostParameters + 2];
  const auto count = static_cast<size_t>(kernel.parameter_count);
  for (size_t i = 0; i < count; ++i) parameters[i] = const_cast<int64_t*>(args + i);
  if (slot) parameters[kernel.fault] = &slot;
  parameters[count] = &own;
  parameters[count + 1] = &no_profile;
  return gpu_.with_memory([&] { return driver_.launch(&config, function, parameters, nullptr); });
}

bool GpuStream::launch_product(const ral_gpu_product& product, const ral_launch& launch, int64_t* nanoseconds, Status* failure) {
  const std::string name = "kernel '" + std::string(launch.name) + "'";
  if (const std::string_view wrong = flaw(product); !wrong.empty()) {
    *failure = error(RAL_ERROR_ARTIFACT, name + " is described with wrong " + std::string(wrong));
    return false;
  }
  const int64_t* numbers = launch.args + product.parameter_count;
  const ProductSizes sizes{numbers[0], numbers[1], numbers[2], numbers[4],  numbers[5],
                           numbers[6], numbers[7], numbers[8], numbers[9], numbers[10]};
  if (sizes.m <= 0 || sizes.n <= 0 || sizes.batch <= 0) return true;
  const auto what = [&](size_t workspace) {
    return "the product of " + name + " (" + std::to_string(sizes.batch) + " of " + std::to_string(sizes.m) + " x " +
           std::to_string(sizes.n) + ", " + std::to_string(sizes.k) + " values of k" + scratch_text(static_cast<int64_t>(workspace)) +
           ") by cuBLASLt";
  };
  if (!are_sizes(product, sizes)) {
    *failure = error(RAL_ERROR_INTERNAL, what(0) + " has sizes that do not fit each other (compiler bug)");
    return false;
  }
  if (!gpu_.products()) {
    *failure = error(RAL_ERROR_TARGET, what(0) + " was asked for, and there is no such library");
    return false;
  }
  const auto address = [&](int32_t parameter) { return static_cast<Address>(launch.args[parameter]); };
  const ProductPlaces places{address(product.left), address(product.right), product.bias < 0 ? 0 : address(product.bias),
                             address(product.result)};
  int32_t failed = kSuccess;
  if (recorder_) {
    auto own = make_product(product, sizes, &failed);  // graphs are launched by any threads
    return own && recorder_->product(std::move(own), launch.name, sizes, places);
  }
  if (products_.size() >= kMostProducts) products_.clear();  // descriptions of sizes that come no more do not pile up
  auto& known = products_[{&product, sizes}];
  if (!known) known = make_product(product, sizes, &failed);
  Product* const prepared = known.get();
  if (!prepared) products_.erase({&product, sizes});
  recent_[recent_count_++ % recent_.size()] = {
      launch.name, {static_cast<uint32_t>(sizes.m), static_cast<uint32_t>(sizes.n), static_cast<uint32_t>(sizes.batch)}};
  const auto submitted = [&] { return submit_product(prepared, places); };
  if (!failed) failed = nanoseconds ? timed(submitted, nanoseconds) : submitted();
  return !failed || check(failed, what(prepared ? prepared->workspace() : 0), failure);
}

// Null where it failed.
std::unique_ptr<Product> GpuStream::make_product(const ral_gpu_product& product, const ProductSizes& sizes, int32_t* failed) {
  auto made = std::make_unique<Product>(*gpu_.products());
  const int32_t status = made->prepare(product, sizes);
  if (status) *failed = kProductStatus + status;
  if (status) return nullptr;
  return made;
}

int32_t GpuStream::submit_product(Product* product, const ProductPlaces& places) {
  Address workspace = 0;
  if (product->workspace() > 0) {
    const int32_t failed = scratch(static_cast<int64_t>(product->workspace()), &workspace);
    if (failed) return failed;
  }
  const int32_t status = product->run(places, workspace, stream_);
  return status ? kProductStatus + status : kSuccess;
}

// What `submit` asks for, with the time that it takes, for which this waits.
template <typename Submit>
int32_t GpuStream::timed(Submit submit, int64_t* nanoseconds) {
  EventHandle events[2] = {nullptr, nullptr};
  float milliseconds = 0;
  int32_t failed = driver_.create_event(&events[0], 0);
  if (!failed) failed = driver_.create_event(&events[1], 0);
  if (!failed) failed = driver_.record_event(events[0], stream_);
  if (!failed) failed = submit();
  if (!failed) failed = driver_.record_event(events[1], stream_);
  if (!failed) failed = driver_.synchronize_event(events[1]);
  if (!failed) failed = driver_.elapsed(&milliseconds, events[0], events[1]);
  for (EventHandle event : events) {
    if (event) driver_.destroy_event(event);
  }
  *nanoseconds += static_cast<int64_t>(1e6 * static_cast<double>(milliseconds));
  return failed;
}

bool GpuStream::synchronize(Status* failure) {
  const bool good = done(driver_.synchronize_stream(stream_), "waiting for kernels", failure);
  for (const Returning& each : returning_) {
    if (good) std::memcpy(each.to, each.from, each.bytes);
  }
  returning_.clear();
  if (good) filled_ = 0, used_ = 0;
  return good;
}

// What the next call must not find of this one, also where memory for a message runs out.
struct GpuStream::Ending {
  GpuStream& stream;
  ~Ending() {
    stream.recorder_.reset();
    stream.returning_.clear();
    stream.watched_.clear();
    stream.current_.reset();
  }
};

bool GpuStream::finish(Status* failure, Fault* fault) {
  if (!current_) return true;
  const Ending ending{*this};
  for (void* block : blocks_) driver_.free_async(reinterpret_cast<Address>(block), stream_);
  blocks_.clear();
  drop_scratch();
  bool good = true;
  if (waits_) good = synchronize(failure);
  if (!watched_.empty() && waits_ && good) program_.read_slots(&watched_, fault);
  if (!watched_.empty() && !waits_) good = done(program_.post_slots(&watched_, stream_), "recording an event", failure);
  return good;
}

bool GpuStream::begin_recording() {
  recorder_ = std::make_unique<GpuGraph>(gpu_);
  return true;
}

std::unique_ptr<Recording> GpuStream::end_recording(bool complete, std::span<void* const> places) {
  auto graph = std::move(recorder_);
  check_ = -1;
  if (!complete) return nullptr;
  const int32_t failed = graph->build(places);
  if (is_fatal(failed)) static_cast<void>(gpu_.failure("making a graph", failed));
  if (failed) return nullptr;
  return graph;
}

bool GpuStream::replay(const Recording& recording, std::span<void* const> places, Status* failure) {
  const auto& graph = static_cast<const GpuGraph&>(recording);
  slots_.clear();
  for (const int64_t check : graph.checks()) {
    Slot* slot = watch_launch(check, "graph", failure);
    if (!slot) return false;
    slots_.push_back(slot);
  }
  for (const GpuGraph::Launched& each : graph.last_launches(recent_.size())) {
    recent_[recent_count_++ % recent_.size()] = {each.name, {each.grid[0], each.grid[1], each.grid[2]}};
  }
  return done(graph.launch(stream_, places, slots_), "launching a graph", failure);
}

bool GpuStream::check(int32_t failed, const std::string& what, Status* failure) {
  *failure = gpu_.failure(what, failed);
  if (is_fatal(failed) && recent_count_ > 0) {
    failure->message +=
        "; the last launches, of which an earlier one may be to blame (CUDA_LAUNCH_BLOCKING=1 tells which): " + recent_text();
  }
  return false;
}

std::string GpuStream::recent_text() const {
  std::string text;
  for (size_t i = recent_count_ - std::min(recent_count_, recent_.size()); i < recent_count_; ++i) {
    const Recent& each = recent_[i % recent_.size()];
    text += (text.empty() ? "'" : ", '") + std::string(each.name) + "' (grid " + grid_text(each.grid) + ")";
  }
  return text;
}

}  // namespace ral::cuda
