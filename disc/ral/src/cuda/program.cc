#include "cuda/program.h"

#include <string>

#include "cuda/stream.h"

namespace ral::cuda {

namespace {

constexpr int32_t kDescriptionVersion = 2;  // of ral_gpu_kernel
constexpr size_t kSlotsPerBlock = 128;      // one page
constexpr int32_t kMostThreads = 1024;  // of a block
constexpr int32_t kMostCluster = 16;    // blocks
constexpr int32_t kPlainShared = 48 << 10;  // bytes of shared memory that a kernel has without asking
constexpr int32_t kMostScratch = 1 << 20;   // bytes of a block: a tensor map takes 128

std::string quoted(const char* name) { return "kernel '" + std::string(name) + "'"; }

// What is wrong with a description; "" = nothing.
std::string_view flaw(const ral_gpu_kernel& kernel) {
  if (kernel.threads < 1 || kernel.threads > kMostThreads) return "threads";
  if (kernel.cluster < 1 || kernel.cluster > kMostCluster) return "blocks of a cluster";
  if (kernel.shared < 0) return "bytes of shared memory";
  if (kernel.scratch < 0 || kernel.scratch > kMostScratch) return "bytes of scratch memory";
  if (kernel.parameter_count < 0 || kernel.parameter_count > kMostParameters) return "parameters";
  if (kernel.fault < -1 || kernel.fault >= kernel.parameter_count) return "place of faults";
  if (!kernel.function || !kernel.images || kernel.image_count < 1 || (kernel.parameter_count > 0 && !kernel.parameter_sizes)) return "code";
  return "";
}

bool runs(const ral_gpu_image& image, int32_t gpu) { return image.ptx ? image.architecture <= gpu : suits(image.architecture, gpu) >= 2; }

}  // namespace

GpuProgram::~GpuProgram() {
  if (forked()) return;
  const Current here = gpu_.current();
  gpu_.driver.synchronize_context();  // kernels of calls that are over may still run
  for (const auto& [image, module] : modules_) gpu_.driver.unload_module(module);
  for (const Batch& batch : batches_) gpu_.driver.destroy_event(batch.event);
  for (EventHandle event : idle_events_) gpu_.driver.destroy_event(event);
  for (void* block : pinned_) gpu_.driver.free_host(block);
}

std::unique_ptr<Stream> GpuProgram::open() { return std::make_unique<GpuStream>(*this); }

Status GpuProgram::load(const ral_gpu_kernel& kernel, const char* name, FunctionHandle* function) {
  const std::lock_guard lock(mutex_);
  if (const auto found = functions_.find(&kernel); found != functions_.end()) {
    *function = found->second;
    return {};
  }
  if (kernel.abi != kDescriptionVersion) {
    return error(RAL_ERROR_ARTIFACT, quoted(name) + " is described in version " + std::to_string(kernel.abi) + ", this library knows " +
                                         std::to_string(kDescriptionVersion));
  }
  if (const std::string_view wrong = flaw(kernel); !wrong.empty()) {
    return error(RAL_ERROR_ARTIFACT, quoted(name) + " is described with wrong " + std::string(wrong));
  }
  if (kernel.shared > gpu_.shared_per_block()) {
    return error(RAL_ERROR_TARGET, quoted(name) + " needs " + std::to_string(kernel.shared) + " bytes of shared memory per block, " +
                                       gpu_.text() + " has " + std::to_string(gpu_.shared_per_block()));
  }
  ModuleHandle module = nullptr;
  Status status = load_module(kernel, name, &module);
  if (!status.ok()) return status;
  int32_t failed = gpu_.driver.find_kernel(function, module, kernel.function);
  if (!failed && kernel.shared > kPlainShared) failed = gpu_.driver.set_attribute(*function, kMaxDynamicShared, kernel.shared);
  if (failed) return gpu_.failure("preparing " + quoted(name), failed);
  functions_[&kernel] = *function;
  return {};
}

Status GpuProgram::load_module(const ral_gpu_kernel& kernel, const char* name, ModuleHandle* module) {
  const ral_gpu_image* image = nullptr;
  for (int32_t i = kernel.image_count; i-- > 0;) {
    if (runs(kernel.images[i], gpu_.architecture())) image = &kernel.images[i];
  }
  if (!image) {
    return error(RAL_ERROR_TARGET, quoted(name) + " has no code for " + gpu_.text() + ", which is sm_" + std::to_string(gpu_.architecture()));
  }
  ModuleHandle& known = modules_[image->data];
  if (!known) {
    const int32_t failed = gpu_.with_memory([&] { return gpu_.driver.load_module(&known, image->data, 0, nullptr, nullptr); });
    if (failed) modules_.erase(image->data);
    if (failed == kUnsupportedPtx || failed == kNoBinaryForGpu || failed == kInvalidImage) {
      return error(RAL_ERROR_TARGET, gpu_.failure("loading " + quoted(name), failed).message + "; the driver may be too old for the code");
    }
    if (failed) return gpu_.failure("loading " + quoted(name), failed);
  }
  *module = known;
  return {};
}

Slot* GpuProgram::take_slot() {
  const std::lock_guard lock(mutex_);
  if (idle_slots_.empty()) {
    void* block = nullptr;
    pinned_.reserve(pinned_.size() + 1);
    idle_slots_.reserve((pinned_.size() + 1) * kSlotsPerBlock);
    if (gpu_.driver.allocate_host(&block, kSlotsPerBlock * sizeof(Slot), kPortable | kMapped)) return nullptr;
    pinned_.push_back(block);
    for (size_t i = 0; i < kSlotsPerBlock; ++i) idle_slots_.push_back(static_cast<Slot*>(block) + i);
  }
  Slot* slot = idle_slots_.back();
  idle_slots_.pop_back();
  slot->flag = 0;
  return slot;
}

bool GpuProgram::read_slots(std::vector<Watched>* watched, Fault* fault) {
  const std::lock_guard lock(mutex_);
  return read_locked(watched, fault);
}

bool GpuProgram::read_locked(std::vector<Watched>* watched, Fault* fault) {
  bool found = false;
  for (const Watched& each : *watched) {
    if (each.slot->flag && !found) {
      *fault = {each.check, each.slot->index, each.slot->size};
      found = true;
    }
    idle_slots_.push_back(each.slot);
  }
  watched->clear();
  return found;
}

int32_t GpuProgram::post_slots(std::vector<Watched>* watched, StreamHandle stream) {
  const std::lock_guard lock(mutex_);
  if (idle_events_.empty()) {
    idle_events_.reserve(batches_.size() + 1);  // of all events, so that giving one back cannot fail
    EventHandle event = nullptr;
    const int32_t failed = gpu_.driver.create_event(&event, kWithoutTiming);
    if (failed) return failed;  // the places stay taken: the GPU may still write there
    idle_events_.push_back(event);
  }
  batches_.push_back({idle_events_.back(), {}});
  const int32_t failed = gpu_.driver.record_event(idle_events_.back(), stream);
  if (failed) batches_.pop_back();
  if (failed) return failed;
  idle_events_.pop_back();
  batches_.back().watched.swap(*watched);
  batch_count_.store(batches_.size(), std::memory_order_relaxed);
  return failed;
}

bool GpuProgram::take_fault(Fault* fault) {
  if (batch_count_.load(std::memory_order_relaxed) == 0) return false;
  const std::lock_guard lock(mutex_);
  const Current here = gpu_.current();
  bool found = false;
  for (size_t i = 0; i < batches_.size() && !found;) {
    if (gpu_.driver.query_event(batches_[i].event) != kSuccess) {
      ++i;
      continue;
    }
    found = read_locked(&batches_[i].watched, fault);
    idle_events_.push_back(batches_[i].event);
    batches_.erase(batches_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  batch_count_.store(batches_.size(), std::memory_order_relaxed);
  return found;
}

}  // namespace ral::cuda
