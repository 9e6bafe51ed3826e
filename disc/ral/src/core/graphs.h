// What calls with the same sizes ask a GPU for, recorded as one request. Kept for as many different calls as `ral_set_graphs` says, those
// that were used last.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/device.h"

namespace ral {

// A recorded call. recording: null where it cannot be recorded, such as one that reads numbers from the device.
struct Graph {
  struct Result {
    std::vector<int64_t> dims;
    uintptr_t low;  // bits of its address
  };
  std::unique_ptr<Recording> recording;
  std::vector<Result> results;
  std::vector<int64_t> counters, launches;  // what a call adds to the counts
};

// Thread-safe. Graphs live on as long as a call uses them.
class Graphs {
 public:
  struct Found {
    bool again = false;                  // a call with this key came before
    std::shared_ptr<const Graph> graph;  // null: not recorded yet
    int64_t evicted = 0;                 // graphs that were dropped
  };

  int32_t most() const noexcept { return most_.load(std::memory_order_relaxed); }
  // From now on this many are kept; 0 = nothing is recorded.
  void set_most(int32_t most);

  // What is known of calls with this key, of which this is one more.
  Found find(std::string_view key);
  // Keeps the graph of such calls, unless another thread was faster. Returns how many were dropped for it.
  int64_t keep(std::string_view key, std::shared_ptr<const Graph> graph);

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const Graph> graph;
  };
  using Dropped = std::vector<std::shared_ptr<const Graph>>;

  // Gives up the entries that were used longest ago; they end behind the lock, as the GPU is waited for.
  Dropped trim();

  std::atomic<int32_t> most_{0};
  std::mutex mutex_;  // guards the rest
  std::list<Entry> entries_;  // the one that was used last comes first
  std::unordered_map<std::string_view, std::list<Entry>::iterator> places_;
  size_t recorded_ = 0;  // entries whose graphs hold recordings
};

}  // namespace ral
