// Launches on the threads of an OpenMP library that the caller computes with as well.
#pragma once

#include <memory>
#include <span>

#include "cpu/pool.h"
#include "cpu/worker.h"
#include "ral.h"

namespace ral {

// The OpenMP threads of the calling thread, as workers of one call. An OpenMP library keeps its threads awake for some milliseconds after
// each of its parallel regions, and workers of another pool would share the cores with them for as long. So a call is a parallel region
// itself, from its first launch that is worth it to its end. The region has as many threads as the library's other ones, since a library may
// end the threads that the next region does without, and make them anew.
class Team {
 public:
  explicit Team(const ral_team& library) : library_(library) {}
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  ~Team() { dismiss(); }

  // Whether it has `helpers` threads beside the caller's. False without a library, and in a forked child, in which an OpenMP library would
  // wait for the threads of its parent.
  bool is_usable(int32_t helpers) const {
    return library_.start && !is_forked() && (!workers_.empty() || library_.threads() > helpers);
  }
  // Workers for `helpers` threads, which may not have come yet; once a call has some, those.
  std::span<Worker> gather(int32_t helpers);
  // Those that the call in progress has.
  std::span<Worker> workers() const { return workers_; }
  // Of all calls in progress, if each has as many.
  int32_t threads() const { return static_cast<int32_t>(workers_.size()) * calls(); }
  // By the thread that gathered it: ends the region.
  void dismiss() noexcept;

 private:
  void serve();

  const ral_team library_;
  std::unique_ptr<Worker[]> places_;
  size_t capacity_ = 0;
  std::span<Worker> workers_;
  std::atomic<size_t> arrived_{0};
};

}  // namespace ral
