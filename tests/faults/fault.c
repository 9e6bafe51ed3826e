/* Preloaded into a process, makes one of its calls that change files fail, or kills the process there: before it, in its middle, or after.
 * Counted from the moment of `fault_arm`; 64-bit names are those that glibc's users call on x86-64 too. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { BEFORE = 0, MIDDLE = 1, AFTER = 2, ERROR = 3, ERROR_FROM_HERE = 4 };

static long place = -1; /* of the call that is struck; -1: none */
static long count;
static int mode, error_number;

void fault_arm(long at, int how, int number) {
  place = at;
  count = 0;
  mode = how;
  error_number = number;
}

long fault_count(void) { return count; }

static void die(void) { kill(getpid(), SIGKILL); }

/* True when the call is to fail. */
static int strikes(int* here) {
  *here = place >= 0 && count == place;
  const int beyond = place >= 0 && count >= place;
  ++count;
  if (*here && mode == BEFORE) die();
  if ((*here && mode == ERROR) || (beyond && mode == ERROR_FROM_HERE)) {
    errno = error_number;
    return 1;
  }
  return 0;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define WRAP(type, name, parameters, arguments)   \
  type name parameters {                          \
    int here;                                     \
    if (strikes(&here)) return -1;                \
    const type result = NEXT(name) arguments;     \
    if (here && mode <= AFTER) die();             \
    return result;                                \
  }

WRAP(int, fsync, (int fd), (fd))
WRAP(int, rename, (const char* from, const char* to), (from, to))
WRAP(int, unlink, (const char* path), (path))
WRAP(int, mkdir, (const char* path, mode_t bits), (path, bits))
WRAP(int, chmod, (const char* path, mode_t bits), (path, bits))
WRAP(int, utimensat, (int folder, const char* path, const struct timespec times[2], int flags), (folder, path, times, flags))

ssize_t write(int fd, const void* data, size_t size) {
  int here;
  if (strikes(&here)) return -1;
  if (here && mode == MIDDLE) {
    NEXT(write)(fd, data, size / 2);
    die();
  }
  const ssize_t written = NEXT(write)(fd, data, size);
  if (here && mode <= AFTER) die();
  return written;
}

static int opened(const char* path, int flags, mode_t bits, int (*next)(const char*, int, ...)) {
  int here = 0;
  if ((flags & O_ACCMODE) != O_RDONLY && strikes(&here)) return -1;
  const int fd = next(path, flags, bits);
  if (here && mode <= AFTER) die();
  return fd;
}

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t bits = va_arg(rest, mode_t);
  va_end(rest);
  return opened(path, flags, bits, NEXT(open));
}

int open64(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t bits = va_arg(rest, mode_t);
  va_end(rest);
  return opened(path, flags, bits, NEXT(open64));
}
