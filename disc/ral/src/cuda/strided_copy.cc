#include "cuda/strided_copy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

namespace ral::cuda {

namespace {

constexpr size_t kAxes = 6;                       // that a kernel takes
constexpr size_t kParameters = 2 + kAxes + kAxes;  // source, target; n and the sizes of all axes but the first; strides
constexpr int32_t kBlock = 128;                   // elements, and threads
constexpr int64_t kMost = int64_t{1} << 30;       // elements of a launch, which counts in 32 bits

const char* const kTexts[] = {
#include "cuda/strided_copy.inc"
};

// For elements of 1, 2, 4 and 8 bytes.
const std::array<ral_gpu_kernel, 4>& kernels() {
  static const auto sizes = [] {
    std::array<uint8_t, kParameters> made;
    made.fill(4);
    std::fill_n(made.begin(), 2, static_cast<uint8_t>(8 + RAL_GPU_ADDRESS));
    std::fill(made.end() - kAxes, made.end(), uint8_t{8});
    return made;
  }();
  static const auto images = [] {
    std::array<ral_gpu_image, 4> made;
    for (size_t i = 0; i < made.size(); ++i) made[i] = {80, 1, kTexts[i], static_cast<int64_t>(std::strlen(kTexts[i])) + 1};
    return made;
  }();
  static const auto all = [] {
    std::array<ral_gpu_kernel, 4> made;
    for (size_t i = 0; i < made.size(); ++i) made[i] = {2, kBlock, 0, 1, 0, -1, 1, kParameters, "kernel", &images[i], sizes.data()};
    return made;
  }();
  return all;
}

class Copy {
 public:
  Copy(int64_t unit, const std::function<bool(const ral_gpu_kernel&, const int64_t*)>& launch)
      : unit_(unit), kernel_(kernels()[static_cast<size_t>(__builtin_ctzll(static_cast<uint64_t>(unit)))]), launch_(launch) {}

  // Along these axes, the innermost last; sizes and strides count units and bytes.
  bool run(std::span<const Axis> axes, const char* from, char* to) const {
    int64_t count = 1;
    for (const Axis& axis : axes) count *= axis.size;
    if (axes.size() <= kAxes && count <= kMost) return launch_one(axes, count, from, to);
    const Axis& first = axes[0];
    const int64_t parts = axes.size() > kAxes ? first.size : 2;  // each index of the outermost axis, or both halves of it
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t begin = first.size * part / parts, end = first.size * (part + 1) / parts;
      std::vector<Axis> rest(axes.begin() + (axes.size() > kAxes), axes.end());
      if (axes.size() <= kAxes) rest[0].size = end - begin;
      if (!run(rest, from + begin * first.stride, to + begin * (count / first.size) * unit_)) return false;
    }
    return true;
  }

 private:
  bool launch_one(std::span<const Axis> axes, int64_t count, const char* from, char* to) const {
    std::array<int64_t, kParameters + 3> slots{};
    slots[0] = reinterpret_cast<int64_t>(from);
    slots[1] = reinterpret_cast<int64_t>(to);
    slots[2] = count;
    const size_t unused = kAxes - axes.size();  // outer axes of size 1
    for (size_t i = 1; i < kAxes; ++i) slots[2 + i] = i < unused ? 1 : axes[i - unused].size;
    for (size_t i = unused; i < kAxes; ++i) slots[2 + kAxes + i] = axes[i - unused].stride / unit_;
    slots[kParameters] = (count + kBlock - 1) / kBlock;
    slots[kParameters + 1] = slots[kParameters + 2] = 1;
    return launch_(kernel_, slots.data());
  }

  int64_t unit_;
  const ral_gpu_kernel& kernel_;
  const std::function<bool(const ral_gpu_kernel&, const int64_t*)>& launch_;
};

// The most bytes, 8 at most, of which the address, the element and all strides are multiples.
int64_t unit_of(const void* data, int64_t element, std::span<const Axis> axes) {
  uint64_t bits = reinterpret_cast<uintptr_t>(data) | static_cast<uint64_t>(element) | 8;
  for (const Axis& axis : axes) bits |= static_cast<uint64_t>(axis.stride);
  return static_cast<int64_t>(bits & -bits);
}

}  // namespace

bool copy_strided(const ral_tensor& from, int64_t element, void* to,
                  const std::function<bool(const ral_gpu_kernel&, const int64_t*)>& launch) {
  std::vector<Axis> axes = joined_axes(from, element);
  const int64_t unit = unit_of(from.data, element, axes);
  if (unit < element) axes.push_back({element / unit, unit});
  return Copy(unit, launch).run(axes, static_cast<const char*>(from.data), static_cast<char*>(to));
}

}  // namespace ral::cuda
