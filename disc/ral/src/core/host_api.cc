// The table that generated code gets.
#include <cstddef>
#include <new>

#include "core/exec.h"
#include "cpu/cpu.h"

namespace {

// What code sections of older artifacts were generated for.
static_assert(sizeof(ral_tensor) == 32 && offsetof(ral_tensor, dims) == 8 && offsetof(ral_tensor, strides) == 16 &&
              offsetof(ral_tensor, rank) == 24 && offsetof(ral_tensor, dtype) == 28);
static_assert(offsetof(ral_host_api, alloc) == 0 && offsetof(ral_host_api, output) == 8 && offsetof(ral_host_api, launch) == 16 &&
              offsetof(ral_host_api, fail) == 24 && offsetof(ral_host_api, choose) == 32 && offsetof(ral_host_api, cache_bytes) == 40);
static_assert(RAL_FEATURE_THREADS == 4 && RAL_FEATURE_COUNT == 5 && RAL_FEATURE_PRODUCTS == 5);

// Runs `body` for generated code, which cannot pass on an exception.
template <typename Result, typename Body>
Result guarded(ral_exec* exec, Result failed, Body body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    exec->record(RAL_ERROR_MEMORY, "");  // no memory for a message
    return failed;
  }
}

void* host_alloc(ral_exec* exec, int64_t bytes) {
  return guarded<void*>(exec, nullptr, [&] { return exec->alloc(bytes); });
}
void* host_output(ral_exec* exec, int64_t index, const int64_t* dims) {
  return guarded<void*>(exec, nullptr, [&] { return exec->output(index, dims); });
}
int32_t host_launch(ral_exec* exec, int64_t id, ral_kernel kernel, const int64_t* args, int64_t tasks, int64_t cost, int64_t scratch) {
  return guarded<int32_t>(exec, 1, [&] { return exec->launch(id, kernel, args, tasks, cost, scratch); });
}
int32_t host_fail(ral_exec* exec, int64_t check_id, int64_t actual, int64_t expected) {
  return guarded<int32_t>(exec, 1, [&] { return exec->fail(check_id, actual, expected); });
}
int64_t host_choose(ral_exec* exec, const int64_t* nodes, int64_t* features, int64_t count) { return exec->choose(nodes, features, count); }
int32_t host_free(ral_exec* exec, void* pointer) {
  return guarded<int32_t>(exec, 1, [&] { return exec->free(pointer); });
}
int32_t host_copy(ral_exec* exec, void* to, const void* from, int64_t bytes) {
  return guarded<int32_t>(exec, 1, [&] { return exec->copy(to, from, bytes); });
}
int32_t host_fill(ral_exec* exec, void* to, int64_t bytes, int32_t value) {
  return guarded<int32_t>(exec, 1, [&] { return exec->fill(to, bytes, value); });
}
int32_t host_read(ral_exec* exec, const void* from, int64_t* value) {
  return guarded<int32_t>(exec, 1, [&] { return exec->read(from, value); });
}
int32_t host_watch(ral_exec* exec, int64_t check_id) {
  return guarded<int32_t>(exec, 1, [&] { return exec->watch(check_id); });
}
int32_t host_library(ral_exec* exec, int64_t id, int64_t check_id, int64_t function, const int64_t* layout, const int64_t* args) {
  return guarded<int32_t>(exec, 1, [&] { return exec->library(id, check_id, function, layout, args); });
}

}  // namespace

namespace ral {
const ral_host_api kHostApi = {host_alloc,  host_output, host_launch, host_fail, host_choose, last_level_cache_bytes(),
                               host_free,   host_copy,   host_fill,   host_read, host_library, host_watch};
}  // namespace ral
