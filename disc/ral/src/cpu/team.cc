#include "cpu/team.h"

#include <new>

namespace ral {

std::span<Worker> Team::gather(int32_t helpers) {
  if (!workers_.empty() || helpers < 1) return workers_;
  const auto count = static_cast<size_t>(helpers);
  if (count > capacity_) {
    places_ = std::make_unique<Worker[]>(count);
    capacity_ = count;
  }
  for (size_t i = 0; i < count; ++i) new (&places_[i]) Worker;
  arrived_.store(0, std::memory_order_relaxed);
  workers_ = {places_.get(), count};
  library_.start([](void* team) { static_cast<Team*>(team)->serve(); }, this, 0);
  return workers_;
}

// One of the team's threads, for as long as the region lasts. There may be more than there are places, or fewer.
void Team::serve() {
  const size_t place = arrived_.fetch_add(1, std::memory_order_relaxed);
  if (place >= workers_.size()) return;
  while (workers_[place].serve(threads())) {
  }
}

void Team::dismiss() noexcept {
  if (workers_.empty()) return;
  for (Worker& worker : workers_) worker.dismiss();
  if (!is_forked()) library_.end();  // a child that was forked within a call has nobody to wait for
  workers_ = {};
}

}  // namespace ral
