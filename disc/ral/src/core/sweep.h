// Launches of blocks one after the other, forward or backward: see ral_run_sweep in ral.h.
#pragma once

#include "core/status.h"
#include "ral.h"

namespace ral {

Status run_sweep(const ral_sweep& given, bool backwards, int64_t* next, uint8_t* ran);

}  // namespace ral
