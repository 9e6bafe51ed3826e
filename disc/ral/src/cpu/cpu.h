// What this CPU and kernel can run, by the names LLVM uses for features.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ral {

bool cpu_has(std::string_view feature);  // false for a name that is not known

// The first feature of `isa` ("x86-64-v4+avx512bf16": a level, then features) that this CPU lacks, "" if it lacks none.
// A level or feature that is not known counts as lacking.
std::string missing_feature(std::string_view isa);

// Of the largest cache that a core of this CPU has a share of, as the CPU reports it (sysconf adds up all of an AMD socket's); 32 MiB
// where it reports none.
int64_t last_level_cache_bytes();

}  // namespace ral
