#include "core/graphs.h"

#include <algorithm>

namespace ral {

namespace {

constexpr size_t kKeysPerGraph = 8;  // calls that are known, also where they came once only

bool holds(const std::shared_ptr<const Graph>& graph) { return graph && graph->recording; }

}  // namespace

void Graphs::set_most(int32_t most) {
  Dropped dropped;
  const std::lock_guard lock(mutex_);
  most_.store(std::max(most, 0), std::memory_order_relaxed);
  dropped = trim();
}

Graphs::Found Graphs::find(std::string_view key) {
  Dropped dropped;
  Found found;
  const std::lock_guard lock(mutex_);
  if (const auto place = places_.find(key); place != places_.end()) {
    entries_.splice(entries_.begin(), entries_, place->second);
    found.again = true;
    found.graph = place->second->graph;
    return found;
  }
  std::list<Entry> made;  // so that nothing has changed where memory runs out
  made.push_front({std::string(key), nullptr});
  places_.emplace(made.front().key, made.begin());
  entries_.splice(entries_.begin(), made);
  dropped = trim();
  found.evicted = static_cast<int64_t>(dropped.size());
  return found;
}

int64_t Graphs::keep(std::string_view key, std::shared_ptr<const Graph> graph) {
  Dropped dropped;
  const std::lock_guard lock(mutex_);
  const auto place = places_.find(key);
  if (place == places_.end() || place->second->graph) return 0;
  recorded_ += holds(graph);
  place->second->graph = std::move(graph);
  dropped = trim();
  return static_cast<int64_t>(dropped.size());
}

Graphs::Dropped Graphs::trim() {
  Dropped dropped;
  const auto most = static_cast<size_t>(this->most());
  for (auto entry = entries_.end(); entry != entries_.begin() && (recorded_ > most || entries_.size() > most * kKeysPerGraph);) {
    --entry;
    const bool held = holds(entry->graph);
    if (!held && entries_.size() <= most * kKeysPerGraph) continue;
    dropped.reserve(dropped.size() + held);
    if (held) dropped.push_back(std::move(entry->graph));
    recorded_ -= held;
    places_.erase(entry->key);
    entry = entries_.erase(entry);
  }
  return dropped;
}

}  // namespace ral
