#include "cpu/cpu.h"

#include <cpuid.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace ral {

namespace {

enum Register { kEax, kEbx, kEcx, kEdx };

struct Feature {
  std::string_view name;
  uint32_t leaf;
  uint32_t subleaf;
  Register where;
  uint32_t bit;
  uint64_t saved_state;  // bits of XCR0: the registers that the kernel must save
};

constexpr uint64_t kNone = 0, kAvx = 0x6, kAvx512 = 0xe6, kAmx = 0x60000;

constexpr Feature kFeatures[] = {
    {"sse3", 1, 0, kEcx, 0, kNone},
    {"ssse3", 1, 0, kEcx, 9, kNone},
    {"cx16", 1, 0, kEcx, 13, kNone},
    {"sse4.1", 1, 0, kEcx, 19, kNone},
    {"sse4.2", 1, 0, kEcx, 20, kNone},
    {"movbe", 1, 0, kEcx, 22, kNone},
    {"popcnt", 1, 0, kEcx, 23, kNone},
    {"fma", 1, 0, kEcx, 12, kAvx},
    {"avx", 1, 0, kEcx, 28, kAvx},
    {"f16c", 1, 0, kEcx, 29, kAvx},
    {"bmi", 7, 0, kEbx, 3, kNone},
    {"avx2", 7, 0, kEbx, 5, kAvx},
    {"bmi2", 7, 0, kEbx, 8, kNone},
    {"sha", 7, 0, kEbx, 29, kNone},
    {"avx512f", 7, 0, kEbx, 16, kAvx512},
    {"avx512dq", 7, 0, kEbx, 17, kAvx512},
    {"avx512ifma", 7, 0, kEbx, 21, kAvx512},
    {"avx512cd", 7, 0, kEbx, 28, kAvx512},
    {"avx512bw", 7, 0, kEbx, 30, kAvx512},
    {"avx512vl", 7, 0, kEbx, 31, kAvx512},
    {"avx512vbmi", 7, 0, kEcx, 1, kAvx512},
    {"avx512vbmi2", 7, 0, kEcx, 6, kAvx512},
    {"gfni", 7, 0, kEcx, 8, kNone},
    {"avx512vnni", 7, 0, kEcx, 11, kAvx512},
    {"avx512bitalg", 7, 0, kEcx, 12, kAvx512},
    {"avx512vpopcntdq", 7, 0, kEcx, 14, kAvx512},
    {"amx-bf16", 7, 0, kEdx, 22, kAmx},
    {"avx512fp16", 7, 0, kEdx, 23, kAvx512},
    {"amx-tile", 7, 0, kEdx, 24, kAmx},
    {"amx-int8", 7, 0, kEdx, 25, kAmx},
    {"avxvnni", 7, 1, kEax, 4, kAvx},
    {"avx512bf16", 7, 1, kEax, 5, kAvx512},
    {"sahf", 0x80000001, 0, kEcx, 0, kNone},
    {"lzcnt", 0x80000001, 0, kEcx, 5, kNone},
};

// The levels of the x86-64 psABI; each includes the ones before.
constexpr std::string_view kLevel2[] = {"cx16", "sahf", "popcnt", "sse3", "sse4.1", "sse4.2", "ssse3"};
constexpr std::string_view kLevel3[] = {"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"};
constexpr std::string_view kLevel4[] = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"};

uint64_t saved_registers() {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr uint32_t kOsxsave = 1u << 27;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & kOsxsave)) return 0;
  uint32_t low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

template <size_t N>
void append(std::vector<std::string_view>& list, const std::string_view (&names)[N]) {
  list.insert(list.end(), names, names + N);
}

// The features of a level; an unknown level is taken as a feature, which no CPU has.
std::vector<std::string_view> level_features(std::string_view level) {
  std::vector<std::string_view> features;
  if (level == "x86-64") return features;
  append(features, kLevel2);
  if (level == "x86-64-v2") return features;
  append(features, kLevel3);
  if (level == "x86-64-v3") return features;
  append(features, kLevel4);
  if (level == "x86-64-v4") return features;
  return {level};
}

}  // namespace

bool cpu_has(std::string_view feature) {
  for (const Feature& known : kFeatures) {
    if (known.name != feature) continue;
    std::array<uint32_t, 4> registers{};
    if (!__get_cpuid_count(known.leaf, known.subleaf, &registers[0], &registers[1], &registers[2], &registers[3])) return false;
    return (registers[known.where] >> known.bit & 1) && (saved_registers() & known.saved_state) == known.saved_state;
  }
  return false;
}

std::string missing_feature(std::string_view isa) {
  const size_t plus = isa.find('+');
  for (std::string_view feature : level_features(isa.substr(0, plus))) {
    if (!cpu_has(feature)) return std::string(feature);
  }
  while (isa.find('+') != std::string_view::npos) {
    isa.remove_prefix(isa.find('+') + 1);
    const std::string_view feature = isa.substr(0, isa.find('+'));
    if (!cpu_has(feature)) return std::string(feature);
  }
  return "";
}

int64_t last_level_cache_bytes() {
  constexpr int64_t kUnknown = 32 << 20;
  constexpr uint32_t kIntelCaches = 4, kAmdCaches = 0x8000001d;  // the same fields; a CPU that lacks one of the leaves has zeros there
  constexpr uint32_t kInstructions = 2;
  int64_t largest = 0;
  for (const uint32_t leaf : {kIntelCaches, kAmdCaches}) {
    for (uint32_t cache = 0; cache < 8; ++cache) {
      uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
      if (!__get_cpuid_count(leaf, cache, &eax, &ebx, &ecx, &edx) || (eax & 0x1f) == 0) break;
      const int64_t line = (ebx & 0xfff) + 1, partitions = (ebx >> 12 & 0x3ff) + 1, ways = (ebx >> 22) + 1;
      if ((eax & 0x1f) != kInstructions) largest = std::max(largest, line * partitions * ways * (int64_t{ecx} + 1));
    }
  }
  return largest > 0 ? largest : kUnknown;
}

}  // namespace ral
