// Copies of tensors whose elements do not lie one behind the other, by kernels of our own.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/layout.h"
#include "ral.h"

namespace ral::cuda {

// Makes the launches that write the elements of `from`, on a GPU, to `to`, row-major. launch: gets the kernel and the slots of its arguments and
// grid, and says whether that went well; the first failure ends it.
bool copy_strided(const ral_tensor& from, int64_t element, void* to, const std::function<bool(const ral_gpu_kernel&, const int64_t*)>& launch);

}  // namespace ral::cuda
