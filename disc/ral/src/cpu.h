// What this CPU and kernel can run, by the names LLVM uses for features.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ral {

bool cpu_has(std::string_view feature);  // false for a name that is not known

// The first feature of `isa` ("x86-64-v4+avx512bf16": a level, then features) that this CPU lacks, "" if it lacks none.
// A level or feature that is not known counts as lacking.
std::string missing_feature(std::string_view isa);

}  // namespace ral
