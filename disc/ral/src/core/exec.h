// One call in progress: its memory, its error, its counts. Kept by the context and reused by later calls.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/program.h"
#include "core/status.h"
#include "cpu/memory.h"
#include "ral.h"

namespace ral {
// Whom the calls of this thread tell of the launches on a CPU.
struct Observer {
  void (*function)(void* state, const char* name, int64_t kernel) = nullptr;
  void* state = nullptr;
};
Observer& thread_observer();
}  // namespace ral

struct ral_exec {
  explicit ral_exec(const ral::Program& program);
  ral_exec(const ral_exec&) = delete;
  ral_exec& operator=(const ral_exec&) = delete;
  ~ral_exec();

  // stream: of a GPU, for tensors that lie there. replacing: as of ral_call_replacing.
  ral::Status run(const ral_tensor* inputs, int32_t input_count, const ral_tensor* given, ral_tensor* outputs, int32_t output_count,
                  void* stream, bool replacing);
  int64_t held_bytes() const { return stream_->held_bytes() + copies_.used(); }

  // The host API; see ral_host_api.
  void* alloc(int64_t bytes);
  void* output(int64_t index, const int64_t* dims);
  int32_t launch(int64_t kernel_id, ral_kernel kernel, const int64_t* args, int64_t tasks, int64_t cost, int64_t scratch_bytes);
  int32_t fail(int64_t check_id, int64_t actual, int64_t expected);
  int64_t choose(const int64_t* nodes, int64_t* features, int64_t count) const;
  int32_t free(void* block);
  int32_t copy(void* to, const void* from, int64_t bytes);
  int32_t fill(void* to, int64_t bytes, int32_t value);
  int32_t read(const void* from, int64_t* value);
  int32_t watch(int64_t check_id);
  int32_t library(int64_t kernel_id, int64_t check_id, int64_t function, const int64_t* layout, const int64_t* args);

  // Keeps the first error of the call; returns what tells the entry that there is one.
  int32_t record(ral_status code, std::string message);

  ral::Counts counts;

 private:
  // An input in this process's memory, copied to the device.
  struct Placed {
    const char* there;
    const char* here;
    int64_t bytes;
    size_t input;
  };

  struct Output {
    ral_tensor tensor;  // data == null until made
    bool made;
    void* place;  // where the code writes it
  };

  template <typename Name>
  ral::Status check_device(const ral_tensor& tensor, Name name) const;
  ral::Status check_inputs(const ral_tensor* inputs, int32_t count) const;
  ral::Status check_written(const ral_tensor* inputs) const;
  void find_replaced(const ral_tensor* inputs);
  ral::Status check_given(const ral_tensor* inputs, const ral_tensor* given) const;
  ral::Status prepare_inputs(const ral_tensor* inputs);
  // Where an error of the device belongs: only the first of a call is heard of.
  ral::Status* failure() { return status_.ok() ? &status_ : &later_; }
  ral::Status enter(void* stream);
  // Of calls of a GPU (gpu_calls.cc).
  ral::Status reported_fault();
  bool place_inputs();
  bool place_strided();
  ral::Status stage_output(size_t index);
  bool return_results();
  void name_inputs();
  std::string where() const { return on_gpu_ ? " on " + program_.device->text() : std::string(); }
  // Of library functions (library.cc), which run on the CPU: whose memory and threads they have.
  ral::Stream* here() const { return on_gpu_ ? host_stream_.get() : stream_.get(); }
  bool run_library(const ral::Function& function, size_t kernel, size_t check, const int64_t* layout, const int64_t* args);
  bool run_here(const ral::Function& function, size_t kernel, size_t check, const int64_t* layout, const int64_t* args);
  bool run_on_copies(const ral::Function& function, size_t kernel, size_t check, const int64_t* layout, const int64_t* args);
  bool is_cancelled();
  void count_fetch(int64_t bytes) { counts.fetches += 1, counts.fetched_bytes += bytes; }
  ral::Status make_output(size_t index, const int64_t* dims);
  int64_t* acquire_output(ral::Device& device, size_t index, const ral_tensor& wanted, int64_t bytes, void** data, int64_t* capacity);
  void release_outputs();
  void trim();
  int32_t run_entry();
  // Of calls that may be recorded (graph_calls.cc).
  class Attempt;
  int32_t run_or_replay();
  int32_t find_and_run();
  void write_key();
  bool replay(const ral::Graph& graph);
  std::shared_ptr<ral::Graph> record_call();
  void* note_output(size_t index, const int64_t* dims);
  friend class ral::LibraryCall;

  const ral::Program& program_;
  ral::Status status_, later_;
  std::unique_ptr<ral::Stream> stream_;
  std::unique_ptr<ral::DeviceProgram> host_program_;  // of a call of a GPU: what library functions use here; made when one is called
  std::unique_ptr<ral::Stream> host_stream_;
  ral::Block copies_;  // of inputs that are not row-major
  int32_t calls_until_trim_ = 0;
  int32_t profile_ = 0;  // as ral_set_profile has it
  ral::Observer observer_;
  std::vector<ral_tensor> inputs_;  // as the entry sees them
  std::vector<int64_t> strides_;    // of all inputs
  std::vector<Output> outputs_;
  std::vector<bool> replaced_;  // of the inputs: whether a result is computed in its memory
  const ral_tensor* given_ = nullptr;
  const bool on_gpu_;
  bool staged_ = false;  // all tensors of a call of a GPU lie in this process's memory
  std::vector<Placed> placed_;
  std::vector<std::pair<size_t, ral_tensor>> strided_;  // inputs on the GPU that are copied there, with their numbers
  std::string key_;                        // of the call, among those that are recorded
  const ral::Graph* recording_ = nullptr;  // of the call, as long as its requests are noted
  std::vector<void*> places_;
  bool launched_ = false;  // whether this call has begun to run kernels
  int64_t asks_at_ = 0;  // nanoseconds of the coarse clock; 0: nothing was read yet
};

namespace ral {
// Whom the calls of this thread ask whether to go on.
struct Stop {
  int32_t (*function)(void* state) = nullptr;
  void* state = nullptr;
};
Stop& thread_stop();

// Who lends the calls of this thread memory for results on a GPU.
struct Lender {
  int32_t (*lend)(void* state, const ral_tensor* wanted, ral_lent* lent) = nullptr;
  void* state = nullptr;
  int32_t count = 0;  // of the first outputs
};
Lender& thread_lender();

extern const ral_host_api kHostApi;
// What a call ends with when run-time check `check_id` has failed.
Status failed_check(const Signature& signature, int64_t check_id, int64_t actual, int64_t expected);
// Whether all of them lie in this process's memory.
bool are_here(const ral_tensor* tensors, int32_t count);
void release_output(ral_tensor* output);
}  // namespace ral
