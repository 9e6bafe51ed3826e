#include "core/functions.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <system_error>
#include <vector>

#include "core/bytes.h"
#include "core/fork.h"
#include "core/layout.h"
#include "core/sha256.h"
#include "core/signature.h"
#include "cpu/cpu.h"
#include "cpu/shared_object.h"

namespace ral {

namespace {

// "op:mylib::scale@<digest>:<symbol>": how signatures name functions of users' libraries.
constexpr std::string_view kPrefix = "op:";

struct CustomName {
  std::string op, digest, symbol;

  std::string text() const { return std::string(kPrefix) + op + "@" + digest + ":" + symbol; }
};

bool read_name(const std::string& text, CustomName* name) {
  if (!text.starts_with(kPrefix)) return false;
  const size_t at = text.find('@'), colon = text.find(':', at == std::string::npos ? text.size() : at);
  if (at == std::string::npos || colon == std::string::npos) return false;
  *name = {text.substr(kPrefix.size(), at - kPrefix.size()), text.substr(at + 1, colon - at - 1), text.substr(colon + 1)};
  return true;
}

std::string hex(const Digest& digest) {
  std::string text;
  for (const uint8_t byte : digest) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    text += digits;
  }
  return text;
}

// False, with errno, where the file cannot be read. A folder opens as a file does, and throws when it is read.
bool read_bytes(const std::string& path, std::vector<uint8_t>* bytes) {
  std::error_code unknown;
  if (std::filesystem::is_directory(path, unknown)) {
    errno = EISDIR;
    return false;
  }
  std::ifstream file(path, std::ios::binary);
  bytes->assign(std::istreambuf_iterator<char>(file), {});
  return file.is_open() && !file.bad();
}

class Registry final : ForkAware {
 public:
  void add(const CustomName& name, ral_function function) {
    const std::lock_guard lock(mutex_);
    functions_[name.text()] = function;
    last_[name.op] = name;
  }

  ral_function find(const std::string& name) {
    const std::lock_guard lock(mutex_);
    const auto found = functions_.find(name);
    return found == functions_.end() ? nullptr : found->second;
  }

  // What was registered last for an op; false where nothing was.
  bool last(const std::string& op, CustomName* name) {
    const std::lock_guard lock(mutex_);
    const auto found = last_.find(op);
    if (found == last_.end()) return false;
    *name = found->second;
    return true;
  }

  std::atomic<ral_find_function> finder{nullptr};

 private:
  void before_fork() noexcept override { mutex_.lock(); }
  void after_fork(bool) noexcept override { mutex_.unlock(); }

  std::mutex mutex_;  // guards these two
  std::map<std::string, ral_function> functions_;
  std::map<std::string, CustomName> last_;
  ForkRegistration registration_{*this};
};

Immortal<Registry> registry;

Status missing(const CustomName& wanted) {
  const auto library = [](const CustomName& name) { return "'" + name.symbol + "' of a library with SHA-256 " + name.digest; };
  const std::string needs = "the program needs the custom op '" + wanted.op + "', compiled for the function " + library(wanted);
  CustomName other;
  if (registry->last(wanted.op, &other)) return error(RAL_ERROR_ARTIFACT, needs + "; what is registered is " + library(other));
  return error(RAL_ERROR_ARTIFACT, needs + "; nothing is registered for it: register it before loading, by disc.register_op, --op of the "
                                           "command line, or ral_register_function");
}

LibraryCall& own(const ral_function_call* call) { return *static_cast<LibraryCall*>(call->own); }

void fail(const ral_function_call* call, const char* reason) { own(call).fail(reason, RAL_ERROR_FUNCTION); }

void* memory(const ral_function_call* call, int64_t bytes) { return own(call).memory(std::max<int64_t>(bytes, 1)); }

int32_t parallel(const ral_function_call* call, ral_kernel body, const int64_t* args, int64_t tasks, int64_t cost, int64_t scratch_bytes) {
  const bool done = own(call).launch(body, args, tasks, cost, scratch_bytes);
  own(call).leave_threads();
  return done ? 0 : 1;
}

// The results of a custom function, all with memory; the first are the new values of operands, which it finds the old ones in. numbers:
// how many these are, and which operands; then the function's own.
bool prepare(LibraryCall& call, std::vector<ral_tensor>* results, size_t written) {
  results->assign(call.results.begin(), call.results.end());
  for (size_t i = 0; i < results->size(); ++i) {
    ral_tensor& result = (*results)[i];
    const int64_t bytes = bytes_of(result);
    if (!result.data) result.data = call.memory(std::max<int64_t>(bytes, 1));
    if (!result.data) return false;
    if (i < written && bytes > 0) std::memcpy(result.data, call.operands[static_cast<size_t>(call.numbers[1 + i])].data, static_cast<size_t>(bytes));
  }
  return true;
}

bool are_valid(const LibraryCall& call) {
  if (call.numbers.empty() || call.numbers[0] < 0 || call.numbers[0] > static_cast<int64_t>(call.results.size())) return false;
  const auto written = static_cast<size_t>(call.numbers[0]);
  if (call.numbers.size() < 1 + written) return false;
  for (size_t i = 0; i < written; ++i) {
    const int64_t operand = call.numbers[1 + i];
    if (operand < 0 || operand >= static_cast<int64_t>(call.operands.size())) return false;
    if (bytes_of(call.operands[static_cast<size_t>(operand)]) != bytes_of(call.results[i])) return false;
  }
  return true;
}

}  // namespace

Status Function::find(const std::string& name) {
  own_ = find_function(name);
  if (own_) {
    const std::string feature = missing_feature("x86-64-v3");  // for which they are compiled
    return feature.empty() ? Status{} : error(RAL_ERROR_TARGET, "the library function '" + name + "' needs the CPU feature '" + feature + "'");
  }
  CustomName custom;
  if (read_name(name, &custom)) {
    custom_.run = registry->find(name);
    return custom_.run ? Status{} : missing(custom);
  }
  const ral_find_function finder = registry->finder.load(std::memory_order_acquire);
  if (finder && name.find(':') != std::string::npos) {
    char reason[1024] = "";
    const ral_status status = finder(name.c_str(), &custom_, reason, sizeof reason);
    return status == RAL_OK ? Status{} : error(status, reason);
  }
  return error(RAL_ERROR_ARTIFACT, "the program calls the library function '" + name + "', which this runtime does not have; a newer one may");
}

void Function::call(LibraryCall& call) const {
  if (own_) return own_(call);
  if (!are_valid(call)) return call.fail("malformed numbers (compiler bug)", RAL_ERROR_INTERNAL);
  const auto written = static_cast<size_t>(call.numbers[0]);
  std::vector<ral_tensor> results;
  if (!prepare(call, &results, written)) return;
  const auto count = [](const auto& list) { return static_cast<int32_t>(list.size()); };
  const std::span<const int64_t> numbers = call.numbers.subspan(1 + written);
  const ral_function_call given{RAL_ABI_VERSION, count(call.operands), count(results), count(numbers), call.operands.data(),
                                results.data(), numbers.data(), custom_.state, call.threads(), fail, memory, parallel, &call};
  call.leave_threads();
  custom_.run(&given);
}

Status register_function(const std::string& op, const std::string& library, const std::string& symbol, std::string* digest) {
  const std::string what = "custom op '" + op + "': library '" + library + "'";
  if (op.find("::") == std::string::npos || op.find('@') != std::string::npos) {
    return error(RAL_ERROR_INTERNAL, "'" + op + "' is no name of a custom op, such as mylib::scale");
  }
  std::vector<uint8_t> bytes;
  if (!read_bytes(library, &bytes)) return error(RAL_ERROR_ARTIFACT, what + ": cannot be read: " + strerror(errno));
  auto loaded = std::make_unique<SharedObject>();
  Status status = loaded->load(what, bytes);
  if (!status.ok()) return status;
  const auto function = reinterpret_cast<ral_function>(loaded->symbol(symbol.c_str()));
  if (!function) return error(RAL_ERROR_ARTIFACT, what + ": has no symbol '" + symbol + "'");
  *digest = hex(sha256(bytes));
  registry->add({op, *digest, symbol}, function);
  static_cast<void>(loaded.release());  // stays for the life of the process: programs call it
  return {};
}

void set_finder(ral_find_function find) noexcept { registry->finder.store(find, std::memory_order_release); }

}  // namespace ral
