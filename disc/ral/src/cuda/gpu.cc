#include "cuda/gpu.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <new>

#include "core/bytes.h"
#include "core/fork.h"
#include "cpu/memory.h"
#include "cuda/program.h"
#include "cuda/stream.h"

namespace ral::cuda {

namespace {

constexpr int32_t kMostGpus = 64;
constexpr int32_t kPortableArchitecture = 80;

// The memory of a result, which is freed in the order of the stream on which it was made. That stream lives as long as the result.
struct Owned {
  int64_t capacity;  // of the head
  StreamHandle stream;
  bool lasts;        // instead: waits for all streams
  ral_lent lent{};   // instead, where it has `release`: given back to who lent it
};

class Gpus final : ForkAware {
 public:
  Status find(int32_t id, Gpu** found) {
    const Driver* driver = nullptr;
    Status status = cuda::driver(&driver);
    if (!status.ok()) return status;
    const std::lock_guard lock(mutex_);
    if (id < 0 || id >= std::min(driver->devices, kMostGpus)) {
      const std::string count = driver->devices == 1 ? "one GPU" : std::to_string(driver->devices) + " GPUs";
      return error(RAL_ERROR_TARGET, "there is no GPU cuda:" + std::to_string(id) + ": the NVIDIA driver finds " + count);
    }
    auto& place = gpus_[static_cast<size_t>(id)];
    Gpu* gpu = place.load(std::memory_order_relaxed);
    if (!gpu) {
      auto made = std::make_unique<Gpu>(*driver, id);
      status = made->open();
      if (!status.ok()) return status;
      place.store(gpu = made.release(), std::memory_order_release);
    }
    *found = gpu;
    return {};
  }

  Gpu* opened(int32_t id) noexcept {
    return id < 0 || id >= kMostGpus ? nullptr : gpus_[static_cast<size_t>(id)].load(std::memory_order_acquire);
  }

 private:
  void before_fork() noexcept override { mutex_.lock(); }
  void after_fork(bool) noexcept override { mutex_.unlock(); }

  std::mutex mutex_;  // of those who open
  std::array<std::atomic<Gpu*>, kMostGpus> gpus_{};  // never freed: results of programs belong to them
  ForkRegistration registration_{*this};
};

Immortal<Gpus> gpus;

}  // namespace

Status find_gpu(int32_t id, Gpu** found) { return gpus->find(id, found); }
Status describe_gpu(int32_t id, ral_gpu* gpu) {
  const Driver* driver = nullptr;
  Status status = cuda::driver(&driver);
  if (!status.ok()) return status;
  int32_t device = 0, major = 0, minor = 0;
  size_t memory = 0;
  *gpu = {};
  int32_t failed = driver->device(&device, id);
  if (!failed) failed = driver->device_name(gpu->name, sizeof gpu->name - 1, device);
  if (!failed) failed = driver->device_attribute(&major, kMajor, device);
  if (!failed) failed = driver->device_attribute(&minor, kMinor, device);
  if (!failed) failed = driver->device_attribute(&gpu->processors, kProcessors, device);
  if (!failed) failed = driver->device_memory(&memory, device);
  if (failed) return error(RAL_ERROR_TARGET, "there is no GPU cuda:" + std::to_string(id) + ": " + driver->text(failed));
  gpu->architecture = 10 * major + minor;
  gpu->memory = static_cast<int64_t>(memory);
  return {};
}

Gpu* opened_gpu(int32_t id) noexcept { return gpus->opened(id); }

int32_t suits(int32_t code, int32_t gpu) noexcept {
  if (code == gpu) return 3;
  const bool forward = code < 90;  // later code of Triton's is for its chip alone ("sm_90a")
  if (forward && code / 10 == gpu / 10 && code < gpu) return 2;
  return code == kPortableArchitecture && code < gpu ? 1 : 0;
}

int32_t split_architecture(std::string_view isa, std::string_view* host) noexcept {
  const size_t place = isa.rfind("+sm_");
  if (place == std::string_view::npos) return 0;
  *host = isa.substr(0, place);
  const std::string_view digits = isa.substr(place + 4);
  int32_t number = 0;
  const auto [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return failed == std::errc() && end == digits.data() + digits.size() && number > 0 ? number : 0;
}

Status Gpu::open() {
  int32_t device = 0, major = 0, minor = 0, pools = 0;
  int32_t failed = driver.device(&device, id());
  const auto ask = [&](int32_t attribute, int32_t* value) {
    if (!failed) failed = driver.device_attribute(value, attribute, device);
  };
  ask(kMajor, &major);
  ask(kMinor, &minor);
  ask(kProcessors, &processors_);
  ask(kSharedPerBlock, &shared_);
  ask(kMemoryPools, &pools);
  if (failed) return failure("reading its properties", failed);
  if (!pools) return error(RAL_ERROR_TARGET, text() + " has no memory pools");
  architecture_ = 10 * major + minor;
  failed = driver.retain_context(&context_, device);
  if (failed) return failure("opening its context", failed);
  const Current here = current();
  const PoolProperties properties{1, 0, 1, device, nullptr, 0, {}};
  uint64_t all = UINT64_MAX;  // memory that was freed stays with the pool: the system's costs a wait
  if (!failed) failed = here.failed();
  if (!failed) failed = driver.create_pool(&pool_, &properties);
  if (!failed) failed = driver.set_pool(pool_, kReleaseThreshold, &all);
  return failed ? failure("making a pool of memory", failed) : Status{};
}

std::unique_ptr<DeviceProgram> Gpu::open_program() { return std::make_unique<GpuProgram>(*this); }

int32_t Gpu::allocate(int64_t bytes, StreamHandle stream, Address* place) {
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  return with_memory([&] { return driver.allocate_async(place, size, pool_, stream); });
}

void Gpu::give_back() noexcept {
  driver.synchronize_context();
  driver.trim_pool(pool_, 0);
}

void* Gpu::acquire(Stream& stream, int64_t head, int64_t bytes, void** data, int64_t* capacity) {
  auto& own = static_cast<GpuStream&>(stream);
  auto result = std::make_unique<Owned>(Owned{0, own.handle(), false, {}});
  void* block = acquire_block(head, &result->capacity);
  if (!block) return nullptr;
  Address place = 0;
  if (own.reserve(bytes, &place)) {
    release_block(block, result->capacity);
    return nullptr;
  }
  *data = reinterpret_cast<void*>(place);
  *capacity = reinterpret_cast<int64_t>(result.release());
  return block;
}

void* Gpu::adopt(int64_t head, const ral_lent& lent, int64_t* capacity) noexcept {
  std::unique_ptr<Owned> result(new (std::nothrow) Owned{0, nullptr, false, lent});
  void* block = result ? acquire_block(head, &result->capacity) : nullptr;
  if (block) *capacity = reinterpret_cast<int64_t>(result.release());
  return block;
}

void* Gpu::acquire_lasting(int64_t head, int64_t bytes, void** data, int64_t* capacity) {
  auto result = std::make_unique<Owned>(Owned{0, nullptr, true, {}});
  void* block = acquire_block(head, &result->capacity);
  if (!block) return nullptr;
  const Current here = current();
  Address place = 0;
  if (with_memory([&] { return driver.allocate(&place, static_cast<size_t>(std::max<int64_t>(bytes, 1))); })) {
    release_block(block, result->capacity);
    return nullptr;
  }
  *data = reinterpret_cast<void*>(place);
  *capacity = reinterpret_cast<int64_t>(result.release());
  return block;
}

void Gpu::release(void* head, void* data, int64_t capacity) noexcept {
  auto* result = reinterpret_cast<Owned*>(capacity);
  if (result->lent.release) {
    result->lent.release(result->lent.owner);
  } else if (!forked()) {
    const Current here = current();
    if (result->lasts) driver.free(reinterpret_cast<Address>(data));
    else driver.free_async(reinterpret_cast<Address>(data), result->stream);
  }
  const int64_t own = result->capacity;
  delete result;
  release_block(head, own);
}

Status Gpu::place_weight(const void* from, int64_t bytes, const void** placed) {
  if (Status status = check_alive(); !status.ok()) return status;
  const Current here = current();
  Address place = 0;
  int32_t failed = with_memory([&] { return driver.allocate(&place, static_cast<size_t>(std::max<int64_t>(bytes, 1))); });
  if (failed == kOutOfMemory) return error(RAL_ERROR_MEMORY, "cannot allocate " + std::to_string(bytes) + " bytes on " + text());
  if (failed) return failure("allocating a weight", failed);
  *placed = reinterpret_cast<const void*>(place);
  if (bytes > 0) failed = driver.copy_async(place, reinterpret_cast<Address>(from), static_cast<size_t>(bytes), nullptr);
  if (!failed) failed = driver.synchronize_stream(nullptr);
  return failed ? failure("copying a weight", failed) : Status{};
}

void Gpu::drop_weight(const void* placed) noexcept {
  if (forked()) return;
  const Current here = current();
  driver.free(reinterpret_cast<Address>(placed));  // waits for what still reads it
}

Status Gpu::synchronize() {
  if (Status status = check_alive(); !status.ok()) return status;
  const Current here = current();
  const int32_t failed = driver.synchronize_context();
  return failed ? failure("waiting", failed) : Status{};
}

int32_t Gpu::take_stream(StreamHandle* stream) {
  const std::lock_guard lock(mutex_);
  if (!idle_streams_.empty()) {
    *stream = idle_streams_.back();
    idle_streams_.pop_back();
    return kSuccess;
  }
  idle_streams_.reserve(streams_ + 1);  // of all streams, so that giving one back cannot fail
  const int32_t failed = driver.create_stream(stream, kNonBlocking);
  if (!failed) ++streams_;
  return failed;
}

void Gpu::give_stream(StreamHandle stream) noexcept {
  const std::lock_guard lock(mutex_);
  idle_streams_.push_back(stream);
}

const Products* Gpu::products() {
  if (!knows_products_.load(std::memory_order_acquire)) {
    const std::lock_guard lock(mutex_);
    const Current here = current();
    if (!knows_products_.load(std::memory_order_relaxed)) products_ = Products::load();
    knows_products_.store(true, std::memory_order_release);
  }
  return products_.get();
}

Status Gpu::failure(const std::string& what, int32_t result) {
  const bool of_products = result >= kProductStatus;
  const std::string reason = of_products ? products()->text(result - kProductStatus) : driver.text(result);
  std::string message = "device " + text() + ": " + what + " failed: " + reason;
  if (result == kOutOfMemory || result == kProductStatus + kProductNoMemory) return error(RAL_ERROR_MEMORY, std::move(message));
  if (is_fatal(result)) {
    const std::lock_guard lock(mutex_);
    if (lost_.empty()) lost_ = message;
    is_lost_.store(true, std::memory_order_release);
    message += "; the GPU is lost to this process, which has to be started again";
  }
  return error(RAL_ERROR_DEVICE, std::move(message));
}

Status Gpu::check_alive() {
  if (forked()) {
    const Driver* none = nullptr;
    return cuda::driver(&none);
  }
  if (!is_lost_.load(std::memory_order_acquire)) return {};
  const std::lock_guard lock(mutex_);
  return error(RAL_ERROR_DEVICE, "the GPU is lost to this process since an earlier call, and the process has to be started again: " + lost_);
}

}  // namespace ral::cuda
