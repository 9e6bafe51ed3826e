// Library functions: what whole tensors are computed by where no code is generated. The table of them is library/table.cc.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "ral.h"

struct ral_exec;

namespace ral {

// One call of a library function: its tensors, row-major and in the order of the op's operands and results, and its numbers. Data of results
// that nothing reads is null. Lives on the stack of the call's thread; its functions may be used by that thread alone.
class LibraryCall {
 public:
  LibraryCall(ral_exec* exec, size_t kernel, size_t check, const int64_t* layout, const int64_t* args);
  LibraryCall(const LibraryCall&) = delete;
  LibraryCall& operator=(const LibraryCall&) = delete;
  ~LibraryCall();

  std::span<const ral_tensor> operands, results;
  std::span<const int64_t> numbers;

  // Makes the program's call fail; the message is the user's line and `reason`, with the values that are to blame. The function then returns.
  // code: what kind of fault it is: of the values in operands, unless another one is named.
  void fail(const std::string& reason, ral_status code = RAL_ERROR_VALUE);
  bool failed() const { return failed_; }

  // 64-byte aligned memory until the function returns; null where there is none, and the call has failed.
  char* memory(int64_t bytes);

  // How many threads `parallel` may use.
  int32_t threads() const;
  // Before code that may compute with threads of its own: after `parallel`, too.
  void leave_threads() noexcept;

  // Runs `body(begin, end, scratch)` over parts of [0, tasks), on several threads where tasks * cost is worth it, and all of it done on
  // return. cost: of a task, in units of RAL_COST_PER_NANOSECOND. scratch: this thread's own `scratch_bytes`. `body` must not throw. False
  // where the call has failed.
  template <typename Body>
  bool parallel(int64_t tasks, int64_t cost, int64_t scratch_bytes, const Body& body) {
    static_assert(std::is_invocable_v<const Body&, int64_t, int64_t, char*>);
    const ral_kernel kernel = [](const int64_t* args, int64_t begin, int64_t end, void* scratch) {
      (*reinterpret_cast<const Body*>(args))(begin, end, static_cast<char*>(scratch));
    };
    return launch(kernel, reinterpret_cast<const int64_t*>(&body), tasks, cost, scratch_bytes);
  }

  // The same for a kernel with its arguments.
  bool launch(ral_kernel kernel, const int64_t* args, int64_t tasks, int64_t cost, int64_t scratch_bytes);

 private:
  ral_exec* exec_;
  size_t kernel_, check_;
  std::vector<ral_tensor> tensors_;
  std::vector<void*> blocks_;
  bool failed_ = false;
};

using LibraryFunction = void (*)(LibraryCall&);

// Null where there is none of this name.
LibraryFunction find_function(std::string_view name) noexcept;

}  // namespace ral
