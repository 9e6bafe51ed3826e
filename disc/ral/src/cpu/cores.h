// How many cores this process may keep busy.
#pragma once

#include <cstdint>
#include <string>

namespace ral {

struct Cores {
  int32_t online;   // CPUs that run
  int32_t allowed;  // those in the affinity mask of the calling thread
  double quota;     // CPUs' worth of time that the control groups grant, 0 = no limit

  // Threads that never wait for time they are not granted: a quota is rounded down, since one stopped thread holds up all of a launch.
  int32_t threads() const;
};

// Reads /proc/self/mountinfo, /proc/self/cgroup and the groups' quotas (version 1 and 2) below the folder `root`, "" for this machine.
Cores find_cores(const std::string& root);

}  // namespace ral
