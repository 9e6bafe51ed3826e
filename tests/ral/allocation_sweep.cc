// Loads, checks, calls and unloads an artifact of c = a + b again and again, with one allocation more that succeeds each time, until all do:
// `allocation_sweep FILE`. Every failure must end in a status, and leave nothing allocated or mapped. Prints how many allocations there were;
// maps of memory are among them.
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ral.h"

// The allocator of glibc under its own names, so that the usual ones can be taken over here.
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);
}

namespace {

thread_local bool counting = false;  // in the calls of the runtime alone, on the thread that makes them
bool sticky = false;                 // fail all further allocations, not just one
long allocations = 0, limit = -1;
std::atomic<long> live{0};  // on all threads, from the start
long mapped_bytes = 0;      // as `counting`

bool fails() {
  if (!counting) return false;
  const long number = allocations++;
  return limit >= 0 && (sticky ? number >= limit : number == limit);
}

void* counted(void* pointer) {
  if (pointer) ++live;
  return pointer;
}

}  // namespace

extern "C" {
void* malloc(size_t size) { return fails() ? nullptr : counted(__libc_malloc(size)); }
void* calloc(size_t count, size_t size) { return fails() ? nullptr : counted(__libc_calloc(count, size)); }
void* realloc(void* old, size_t size) {
  if (fails()) return nullptr;
  return old ? __libc_realloc(old, size) : counted(__libc_realloc(old, size));
}
void* aligned_alloc(size_t alignment, size_t size) { return fails() ? nullptr : counted(__libc_memalign(alignment, size)); }
int posix_memalign(void** pointer, size_t alignment, size_t size) {
  *pointer = fails() ? nullptr : counted(__libc_memalign(alignment, size));
  return *pointer ? 0 : ENOMEM;
}
void free(void* pointer) {
  if (pointer) --live;
  __libc_free(pointer);
}
void* mmap(void* place, size_t size, int access, int flags, int file, off_t offset) noexcept {
  if (fails()) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  void* mapped = reinterpret_cast<void*>(syscall(SYS_mmap, place, size, access, flags, file, offset));
  if (mapped != MAP_FAILED && counting) mapped_bytes += static_cast<long>(size);
  return mapped;
}
int munmap(void* place, size_t size) noexcept {
  const int failed = static_cast<int>(syscall(SYS_munmap, place, size));
  if (!failed && counting) mapped_bytes -= static_cast<long>(size);
  return failed;
}
}

namespace {

ral_status use(const char* path) {
  static float data[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  static const int64_t dims[2] = {2, 4}, strides[2] = {1, 2};  // not row-major, so that inputs are copied
  const ral_options options{RAL_ABI_VERSION, 1, nullptr};
  ral_context* context = nullptr;
  ral_status status = ral_load_file(path, &options, &context);
  if (status != RAL_OK) return context ? RAL_ERROR_INTERNAL : status;
  status = ral_verify(context);
  if (status == RAL_OK) {
    ral_tensor inputs[2], output;
    for (ral_tensor& input : inputs) input = {data, dims, strides, 2, RAL_F32, RAL_CPU, 0};
    status = ral_call(context, inputs, 2, nullptr, &output, 1);
    if (status == RAL_OK && static_cast<const float*>(output.data)[1] != 4.5f) status = RAL_ERROR_INTERNAL;  // 2 + 2 + 0.5
    if (status == RAL_OK) ral_release(&output);
  }
  ral_unload(context);
  return status;
}

// One use of which allocation number `at` fails.
ral_status struck_use(const char* path, long at) {
  limit = at;
  allocations = 0;
  counting = true;
  const ral_status status = use(path);
  counting = false;
  return status;
}

// The number of allocations after which everything succeeds; -1 after a failure, which is printed.
long sweep(const char* path) {
  for (long at = 0;; ++at) {
    const ral_status status = struck_use(path, at);
    if (allocations <= at) return status == RAL_OK ? at : -1;
    // The dynamic linker cannot always tell that it was memory that lacked.
    const bool told = status == RAL_ERROR_MEMORY || (status == RAL_ERROR_ARTIFACT && std::strstr(ral_last_error(), "cannot be loaded"));
    if (!told && status != RAL_OK) {
      std::printf("allocation %ld: status %d, %s\n", at, status, ral_last_error());
      return -1;
    }
    const long before = live, mapped_before = mapped_bytes;  // the message of the failure, which the thread keeps, is among it
    for (int i = 0; i < 3; ++i) {
      if (struck_use(path, at) != status) std::printf("allocation %ld: another status the next time\n", at);
    }
    if (live != before || mapped_bytes != mapped_before) {
      std::printf("allocation %ld: %ld left, %ld bytes mapped\n", at, live - before, mapped_bytes - mapped_before);
      return -1;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 100;
  for (int i = 0; i < 3; ++i) {
    if (struck_use(argv[1], -1) != RAL_OK) return 1;  // what stays for the life of the process is allocated now
  }
  const long once = sweep(argv[1]);
  sticky = true;
  const long from_there = once < 0 ? -1 : sweep(argv[1]);
  std::printf("%ld %ld\n", once, from_there);
  return once < 0 || from_there < 0;
}
