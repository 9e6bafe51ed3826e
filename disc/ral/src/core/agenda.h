// Which calls of blocks run together: see ral_order_calls in ral.h.
#pragma once

#include "core/status.h"
#include "ral.h"

namespace ral {

Status order_calls(const ral_calls& calls, int32_t policy, int64_t* order, int64_t* ends, int64_t* batch_count);

}  // namespace ral
