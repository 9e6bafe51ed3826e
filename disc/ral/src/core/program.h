// What was loaded: code, weights and what they are called with. Read-only but for the settings, which calls read as they begin.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/file.h"
#include "core/functions.h"
#include "core/graphs.h"
#include "core/signature.h"
#include "core/status.h"
#include "core/trace.h"
#include "core/weights_check.h"
#include "cpu/code.h"
#include "ral.h"

namespace ral {

// The counts of one call, or the sum of all calls.
struct Counts {
  int64_t calls = 0;
  int64_t copied_inputs = 0;
  int64_t copied_bytes = 0;
  int64_t graph_records = 0, graph_replays = 0, graph_evictions = 0, graph_refusals = 0;
  int64_t fetches = 0, fetched_bytes = 0;
  std::vector<int64_t> counters;
  std::vector<int64_t> launches;     // per kernel
  std::vector<int64_t> nanoseconds;  // per kernel, while profiling

  explicit Counts(const Signature& signature);
  void clear();
  void add(const Counts& other);
};

// What ral_options.isa asks for: code, or any of a device; id: which GPU, -1 = none that there is.
struct Wanted {
  std::string name;
  int32_t id = 0;
};
Wanted parse_wanted(const char* text);

// The last of these ISAs that this CPU and its devices can run, code for the CPU before that for GPUs, of which the best one; or what is
// wanted (null: any). The message of a failure names what is missing.
Status choose_code(const std::vector<std::string>& isas, const char* wanted, size_t* chosen);

struct Program {
  Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  Status load_file(const char* path, const ral_options& options);
  Status load_memory(const ral_program& program, const ral_options& options);
  // Waits for the check of a loaded file's weights.
  Status verify();

  Signature signature;
  std::string manifest;
  ArtifactFile file;
  Code code;
  Device* device = nullptr;                  // that the code makes launches on
  std::unique_ptr<DeviceProgram> on_device;  // behind the code, in which its kernels lie
  std::vector<Function> functions;   // those of the signature
  std::vector<const void*> weights;  // where the device reads them
  int32_t default_threads = 1;

  std::atomic<int32_t> threads{1};
  std::atomic<int32_t> profile{0};  // as ral_set_profile has it
  mutable Trace trace;
  std::atomic<int64_t> forced_choice{-1};

  const std::unique_ptr<Graphs> graphs = std::make_unique<Graphs>();  // before the device's program, to which they belong

 protected:
  ~Program();

 private:
  Status find_weights(std::vector<const void*>* found) const;
  Status find_functions();
  Status finish_load(const ral_options& options, const std::string& isa, std::span<const uint8_t> shared_object,
                     const std::vector<const void*>& found);

  std::atomic<bool> verified_{false};
  std::unique_ptr<WeightsCheck> weights_check_;  // null for a program from memory
  std::string path_;                             // of a loaded file
};

}  // namespace ral
