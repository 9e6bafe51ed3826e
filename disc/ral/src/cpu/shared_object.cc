#include "cpu/shared_object.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace ral {

namespace {

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U  // Linux 6.3
#endif

int make_memory_file() {
  const int fd = memfd_create("disc-code", MFD_CLOEXEC | MFD_EXEC);
  return fd < 0 && errno == EINVAL ? memfd_create("disc-code", MFD_CLOEXEC) : fd;  // an older kernel does not know MFD_EXEC
}

bool write_all(int fd, std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace

SharedObject::~SharedObject() {
  if (library_) dlclose(library_);
  if (fd_ >= 0) close(fd_);
}

// The descriptor stays open as long as the library: the dynamic linker knows libraries by path, and a reused descriptor number
// would make it hand out this library for another one's code.
Status SharedObject::load(const std::string& what, std::span<const uint8_t> bytes) {
  fd_ = make_memory_file();
  if (fd_ < 0) return error(RAL_ERROR_MEMORY, what + ": memfd_create: " + strerror(errno));
  if (!write_all(fd_, bytes)) return error(RAL_ERROR_MEMORY, what + ": cannot be copied to memory: " + strerror(errno));
  library_ = dlopen(("/proc/self/fd/" + std::to_string(fd_)).c_str(), RTLD_NOW | RTLD_LOCAL);
  return library_ ? Status{} : error(RAL_ERROR_ARTIFACT, what + ": cannot be loaded: " + dlerror());
}

void* SharedObject::symbol(const char* name) const { return dlsym(library_, name); }

}  // namespace ral
