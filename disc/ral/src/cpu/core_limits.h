// What one core can do at best.
#pragma once

#include "core/status.h"

namespace ral {

// As ral_measure_limits.
Status measure_limits(double* flops_per_second, double* bytes_per_second);

}  // namespace ral
