#include "core/layout.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/bytes.h"
#include "core/signature.h"

namespace ral {

namespace {

bool is_empty(const ral_tensor& tensor) { return std::find(tensor.dims, tensor.dims + tensor.rank, 0) != tensor.dims + tensor.rank; }

}  // namespace

int64_t bytes_of(const ral_tensor& tensor) {
  int64_t bytes = 0;
  return tensor_bytes(tensor.dims, tensor.rank, dtype_size(tensor.dtype), &bytes) ? bytes : 0;
}

std::vector<Axis> joined_axes(const ral_tensor& tensor, int64_t element) {
  std::vector<Axis> axes;
  std::vector<int64_t> strides(static_cast<size_t>(tensor.rank));
  if (tensor.strides) std::copy_n(tensor.strides, tensor.rank, strides.begin());
  else row_major_strides(tensor.dims, tensor.rank, strides.data());
  for (int32_t i = 0; i < tensor.rank; ++i) {
    if (tensor.dims[i] == 1) continue;
    const Axis axis{tensor.dims[i], strides[static_cast<size_t>(i)] * element};
    if (!axes.empty() && axes.back().stride == axis.size * axis.stride) {
      axes.back() = {axes.back().size * axis.size, axis.stride};
    } else {
      axes.push_back(axis);
    }
  }
  if (axes.empty()) axes.push_back({1, element});
  return axes;
}

namespace {

// The innermost axis. `Size` is the element size, so that memcpy becomes one load and one store of any alignment.
template <int64_t Size>
void copy_line(const char* from, Axis axis, char* to) {
  if (axis.stride == Size) {
    std::memcpy(to, from, static_cast<size_t>(axis.size * Size));
    return;
  }
  for (int64_t i = 0; i < axis.size; ++i) std::memcpy(to + i * Size, from + i * axis.stride, Size);
}

template <int64_t Size>
void copy_axes(const std::vector<Axis>& axes, const char* from, char* to) {
  const Axis inner = axes.back();
  std::vector<int64_t> index(axes.size() - 1, 0);
  for (;;) {
    copy_line<Size>(from, inner, to);
    to += inner.size * Size;
    size_t axis = index.size();
    for (; axis > 0; --axis) {
      from += axes[axis - 1].stride;
      if (++index[axis - 1] < axes[axis - 1].size) break;
      from -= axes[axis - 1].stride * axes[axis - 1].size;
      index[axis - 1] = 0;
    }
    if (axis == 0) return;
  }
}

}  // namespace

bool is_row_major(const ral_tensor& tensor, int64_t element) {
  if (is_empty(tensor)) return true;
  if (reinterpret_cast<uintptr_t>(tensor.data) % static_cast<uintptr_t>(element) != 0) return false;
  if (!tensor.strides) return true;
  int64_t expected = 1;
  for (int32_t i = tensor.rank - 1; i >= 0; --i) {
    if (tensor.dims[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.dims[i];
  }
  return true;
}

void copy_row_major(const ral_tensor& from, int64_t element, void* to) {
  if (is_empty(from)) return;
  const std::vector<Axis> axes = joined_axes(from, element);
  const char* data = static_cast<const char*>(from.data);
  char* target = static_cast<char*>(to);
  switch (element) {
    case 1: return copy_axes<1>(axes, data, target);
    case 2: return copy_axes<2>(axes, data, target);
    case 4: return copy_axes<4>(axes, data, target);
    case 16: return copy_axes<16>(axes, data, target);
    default: return copy_axes<8>(axes, data, target);
  }
}

Extent extent(const ral_tensor& tensor, int64_t element) {
  if (is_empty(tensor)) return {};
  int64_t low = 0, high = 1, contiguous = 1;
  for (int32_t i = tensor.rank - 1; i >= 0; --i) {
    const int64_t stride = tensor.strides ? tensor.strides[i] : contiguous;
    const int64_t reach = (tensor.dims[i] - 1) * stride;
    low += std::min<int64_t>(reach, 0);
    high += std::max<int64_t>(reach, 0);
    contiguous *= tensor.dims[i];
  }
  const uintptr_t data = reinterpret_cast<uintptr_t>(tensor.data);
  return {data + static_cast<uintptr_t>(low * element), data + static_cast<uintptr_t>(high * element)};
}

}  // namespace ral
