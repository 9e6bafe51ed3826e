#include "cpu/cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

namespace ral {

namespace {

// A mounted hierarchy of control groups that can limit CPU time: its group `group` is the folder `point`.
struct Hierarchy {
  std::string group, point;
  bool unified;  // version 2
};

bool lists(std::string_view names, std::string_view wanted) {  // "cpu,cpuacct" lists "cpu"
  while (!names.empty()) {
    const size_t comma = std::min(names.find(','), names.size());
    if (names.substr(0, comma) == wanted) return true;
    names.remove_prefix(std::min(comma + 1, names.size()));
  }
  return false;
}

// See proc_pid_mountinfo(5): id parent device root point options [tags...] - type source superoptions.
std::vector<Hierarchy> hierarchies(const std::string& root) {
  std::vector<Hierarchy> found;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string skipped, group, point, word, type, source, options;
    words >> skipped >> skipped >> skipped >> group >> point;
    while (words >> word && word != "-") continue;
    if (!(words >> type >> source >> options)) continue;
    if (type == "cgroup2" || (type == "cgroup" && lists(options, "cpu"))) found.push_back({group, point, type == "cgroup2"});
  }
  return found;
}

// This process's group in the hierarchy of one version, "" if it has none. See cgroups(7): id:controllers:path.
std::string own_group(const std::string& root, bool unified) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string_view controllers = std::string_view(line).substr(first + 1, second - first - 1);
    if (unified ? controllers.empty() : lists(controllers, "cpu")) return line.substr(second + 1);
  }
  return "";
}

// What one group grants, 0 = no limit: version 2 writes "max" for that, version 1 a negative number, which both fail to be positive.
double group_quota(const std::string& folder, bool unified) {
  double quota = 0, period = 0;
  if (unified) {
    std::ifstream(folder + "/cpu.max") >> quota >> period;
  } else {
    std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;
    std::ifstream(folder + "/cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? quota / period : 0;
}

// The smallest quota of a group and the groups that it is in.
double least_quota(const std::string& root, const Hierarchy& hierarchy) {
  std::string inner = own_group(root, hierarchy.unified);
  // In a container without a namespace of its own for groups, the mounted group is the container's and the path the host's.
  if (hierarchy.group != "/") inner = inner.starts_with(hierarchy.group) ? inner.substr(hierarchy.group.size()) : "";
  double least = 0;
  for (;;) {
    const double quota = group_quota(root + hierarchy.point + inner, hierarchy.unified);
    if (quota > 0 && (least == 0 || quota < least)) least = quota;
    if (inner.empty()) return least;
    inner.resize(inner.rfind('/') == std::string::npos ? 0 : inner.rfind('/'));
  }
}

}  // namespace

int32_t Cores::threads() const {
  const int32_t granted = quota > 0 && quota < allowed ? static_cast<int32_t>(quota) : allowed;
  return std::max(1, granted);
}

Cores find_cores(const std::string& root) {
  Cores cores{static_cast<int32_t>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN))), 0, 0};
  cpu_set_t set;
  cores.allowed = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : cores.online;
  for (const Hierarchy& hierarchy : hierarchies(root)) {
    const double quota = least_quota(root, hierarchy);
    if (quota > 0 && (cores.quota == 0 || quota < cores.quota)) cores.quota = quota;
  }
  return cores;
}

}  // namespace ral
