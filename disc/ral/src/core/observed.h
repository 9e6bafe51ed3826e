// How a call tells of its launches as they are made.
#pragma once

#include <string>

#include "core/exec.h"

namespace ral {

constexpr int32_t kTraced = 2;  // of ral_set_profile

// Tells the observer of a launch, if there is one, as long as it lives.
class Observed {
 public:
  Observed(const Observer& observer, const std::string& name, int64_t kernel) : observer_(observer), kernel_(kernel) {
    if (observer_.function) observer_.function(observer_.state, name.c_str(), kernel);
  }
  Observed(const Observed&) = delete;
  Observed& operator=(const Observed&) = delete;
  ~Observed() {
    if (observer_.function) observer_.function(observer_.state, nullptr, kernel_);
  }

 private:
  const Observer& observer_;
  const int64_t kernel_;
};

}  // namespace ral
