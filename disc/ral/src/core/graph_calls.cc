// Calls of a GPU that are recorded: the first one with its sizes runs, the second runs and is recorded, later ones are one request.
#include <algorithm>
#include <new>

#include "core/exec.h"
#include "core/moving.h"

namespace {

// What a call's requests depend on, besides the program: only these may be asked for again for another call.
void append(std::string* key, int64_t value) { key->append(reinterpret_cast<const char*>(&value), sizeof value); }

}  // namespace

// Takes a call aside while its requests are noted: its inputs, results, counts and errors are as they were afterwards.
class ral_exec::Attempt {
 public:
  Attempt(ral_exec* exec, const ral::Graph* graph)
      : exec_(exec), counts_(exec->program_.signature), inputs_(exec->inputs_), outputs_(exec->outputs_.size()) {
    std::swap(exec_->counts, counts_);
    std::swap(exec_->outputs_, outputs_);
    exec_->recording_ = graph;
    for (size_t i = 0; i < inputs_.size(); ++i) exec_->inputs_[i].data = ral::moving_address(i, ral::low_bits(inputs_[i].data));
  }
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;
  ~Attempt() {
    std::swap(exec_->counts, counts_);
    std::swap(exec_->outputs_, outputs_);
    std::swap(exec_->inputs_, inputs_);
    exec_->recording_ = nullptr;
    exec_->status_ = {};
  }

 private:
  ral_exec* exec_;
  ral::Counts counts_;
  std::vector<ral_tensor> inputs_;
  std::vector<Output> outputs_;
};

void ral_exec::write_key() {
  key_.clear();
  append(&key_, program_.forced_choice.load(std::memory_order_relaxed));
  append(&key_, given_ != nullptr);
  for (const ral_tensor& input : inputs_) {
    for (int32_t i = 0; i < input.rank; ++i) append(&key_, input.dims[i]);
    append(&key_, static_cast<int64_t>(ral::low_bits(input.data)));
  }
  for (size_t i = 0; given_ && i < outputs_.size(); ++i) append(&key_, static_cast<int64_t>(ral::low_bits(given_[i].data)));
}

int32_t ral_exec::run_or_replay() {
  try {
    return find_and_run();
  } catch (const std::bad_alloc&) {
    stream_->end_recording(false, {});
    return record(RAL_ERROR_MEMORY, "");  // no memory for a message
  }
}

int32_t ral_exec::find_and_run() {
  write_key();
  const ral::Graphs::Found found = program_.graphs->find(key_);
  counts.graph_evictions += found.evicted;
  if (found.graph && replay(*found.graph)) return status_.ok() ? 0 : 1;
  const int32_t failed = run_entry();
  if (failed || !found.again || found.graph) return failed;
  auto graph = record_call();
  (graph->recording ? counts.graph_records : counts.graph_refusals) += 1;
  counts.graph_evictions += program_.graphs->keep(key_, std::move(graph));
  return failed;
}

// Asks for what the graph holds. False: it does not fit this call, which has to run.
bool ral_exec::replay(const ral::Graph& graph) {
  if (!graph.recording) return false;
  places_.clear();
  for (const ral_tensor& input : inputs_) places_.push_back(input.data);
  for (size_t i = 0; i < outputs_.size(); ++i) {
    ral::Status status = make_output(i, graph.results[i].dims.data());
    if (!status.ok()) record(status.code, std::move(status.message));
    if (!status_.ok()) return true;
    places_.push_back(outputs_[i].place);
    if (ral::low_bits(outputs_[i].place) == graph.results[i].low) continue;
    release_outputs();
    return false;
  }
  if (!stream_->replay(*graph.recording, places_, failure())) return true;
  for (size_t i = 0; i < graph.counters.size(); ++i) counts.counters[i] += graph.counters[i];
  for (size_t i = 0; i < graph.launches.size(); ++i) counts.launches[i] += graph.launches[i];
  counts.graph_replays += 1;
  return true;
}

// The graph of the call that has just run: its entry runs again, and what it asks for is noted.
std::shared_ptr<ral::Graph> ral_exec::record_call() {
  auto graph = std::make_shared<ral::Graph>();
  places_.clear();
  for (const ral_tensor& input : inputs_) places_.push_back(input.data);
  for (const Output& output : outputs_) {
    if (!output.made) return graph;
    places_.push_back(output.place);
    graph->results.push_back({{output.tensor.dims, output.tensor.dims + output.tensor.rank}, ral::low_bits(output.place)});
  }
  if (inputs_.size() + outputs_.size() >= ral::kMostMoving) return graph;
  const Attempt attempt(this, graph.get());
  const bool complete = stream_->begin_recording() && run_entry() == 0;
  graph->recording = stream_->end_recording(complete, places_);
  graph->counters = counts.counters;
  graph->launches = counts.launches;
  return graph;
}

// Where the code writes a result while its requests are noted; null where it is not as in the call that ran.
void* ral_exec::note_output(size_t index, const int64_t* dims) {
  const ral::Graph::Result& result = recording_->results[index];
  if (!std::equal(result.dims.begin(), result.dims.end(), dims)) return nullptr;
  return ral::moving_address(inputs_.size() + index, result.low);
}
