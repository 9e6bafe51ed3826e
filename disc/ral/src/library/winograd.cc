// Convolutions in tiles, and the gradients of their kernels: what the op says is asked here, and the work divided; the method is
// winograd.h's.
#include "library/winograd.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/cpu.h"
#include "library/checks.h"
#include "library/elements.h"
#include "library/functions.h"

namespace ral {

namespace {

using winograd::Elements;
using winograd::Shape;

constexpr int64_t kFloatsPerNanosecond = 16;  // multiply-adds
constexpr int64_t kMostParts = 16;    // sums of images apart, which are added at the end
constexpr int64_t kPartTiles = 400;   // of a part at least: then adding it up is a tenth of its products

const winograd::Functions& functions(const Shape& shape) {
  static const bool wide = missing_feature("x86-64-v4").empty();
  return wide ? winograd::for_avx512(shape.patch, shape.window) : winograd::for_avx2(shape.patch, shape.window);
}

template <typename Element>
Elements elements() {
  using Stored = typename Element::Stored;
  const auto widen = [](const char* from, int64_t count, float* to) {
    for (int64_t i = 0; i < count; ++i) to[i] = Element::load(reinterpret_cast<const Stored*>(from)[i]);
  };
  const auto narrow = [](const float* from, int64_t count, char* to) {
    for (int64_t i = 0; i < count; ++i) reinterpret_cast<Stored*>(to)[i] = Element::store(from[i]);
  };
  return {sizeof(Stored), widen, narrow};
}

Elements elements_of(int32_t dtype) {
  return dtype == RAL_BF16 ? elements<Bf16>() : dtype == RAL_F16 ? elements<F16>() : elements<Plain<float>>();
}

// The patch that is to be used: by the sizes alone, so results are the same on every machine.
int64_t patch_of(Shape shape) {
  if (shape.window == 3 || shape.elements.bytes == 4) return winograd::kNearPatch;
  int64_t products[2] = {};
  for (const int64_t patch : {winograd::kNearPatch, winograd::kFarPatch}) {
    shape.patch = patch;
    products[patch == winograd::kFarPatch] = shape.down() * shape.across() * shape.positions();
  }
  return products[1] < products[0] ? winograd::kFarPatch : winograd::kNearPatch;
}

// Elements of a tensor in f32: its own, or a copy; null, and the call failed, where there is no memory.
const float* widened(LibraryCall& call, const Elements& elements, const ral_tensor& tensor, int64_t count) {
  if (elements.bytes == 4) return static_cast<const float*>(tensor.data);
  auto* copy = reinterpret_cast<float*>(call.memory(count * 4));
  if (copy != nullptr) elements.widen(static_cast<const char*>(tensor.data), count, copy);
  return copy;
}

// What the tensors say, of the kernel [o, c, y, x], the source [b, c, h, w] and the result [b, o, h', w'].
bool read_shape(LibraryCall& call, const ral_tensor& source, const ral_tensor& kernel, const ral_tensor& result, Shape* shape) {
  const ral_tensor* all[] = {&source, &kernel, &result};
  for (const ral_tensor* each : all) {
    if (!demand(call, each->rank == 4 && each->dtype == source.dtype)) return false;
  }
  if (!demand(call, source.dtype == RAL_F32 || source.dtype == RAL_BF16 || source.dtype == RAL_F16)) return false;
  const int64_t window = kernel.dims[2];
  *shape = {source.dims[0], source.dims[1], kernel.dims[0], source.dims[2], source.dims[3], result.dims[2], result.dims[3],
            call.numbers[0], call.numbers[1], window, winograd::kNearPatch, elements_of(source.dtype)};
  if (!demand(call, (window == 3 || window == 5) && kernel.dims[3] == window && kernel.dims[1] == shape->channels &&
                        result.dims[0] == shape->images && result.dims[1] == shape->outputs)) {
    return false;
  }
  shape->patch = patch_of(*shape);
  return true;
}

// Of a task of so many tiles.
int64_t cost_of(const Shape& shape, int64_t tiles) {
  return std::max<int64_t>(tiles * shape.positions() * shape.in() * shape.out() / kFloatsPerNanosecond, 1) * RAL_COST_PER_NANOSECOND;
}

// The sums of a kernel's gradient over images, positions and windows: for what is not finite, of which only some has to be so.
float sum_directly(const Shape& shape, const char* source, const char* result, int64_t output, int64_t channel, int64_t at) {
  float sum = 0;
  for (int64_t image = 0; image < shape.images; ++image) {
    const int64_t plane = (image * shape.channels + channel) * shape.height * shape.width;
    const int64_t given = (image * shape.outputs + output) * shape.out_height * shape.out_width;
    for (int64_t y = 0; y < shape.out_height; ++y) {
      const int64_t row = y + at / shape.window - shape.low_y;
      if (row < 0 || row >= shape.height) continue;
      for (int64_t x = 0; x < shape.out_width; ++x) {
        const int64_t column = x + at % shape.window - shape.low_x;
        if (column < 0 || column >= shape.width) continue;
        sum += shape.elements.at(source, plane + row * shape.width + column) * shape.elements.at(result, given + y * shape.out_width + x);
      }
    }
  }
  return sum;
}

}  // namespace

void tiled_convolution(LibraryCall& call) {
  const ral_tensor &source = call.operands[0], &kernel = call.operands[1], &result = call.results[0];
  Shape shape;
  if (!read_shape(call, source, kernel, result, &shape)) return;
  if (shape.images * shape.outputs * shape.out_height * shape.out_width == 0) return;
  const int64_t bands = shape.images * shape.bands();
  const auto* x = static_cast<const char*>(source.data);
  const float* w = widened(call, shape.elements, kernel, shape.outputs * shape.channels * shape.window * shape.window);
  auto* matrices = reinterpret_cast<float*>(call.memory(shape.matrices() * 4));
  if (w == nullptr || matrices == nullptr) return;
  const winograd::Functions& own = functions(shape);
  const int64_t units = shape.out() / winograd::kUnit;
  const bool done =
      call.parallel(units, cost_of(shape, 1), 0, [&](int64_t begin, int64_t end, char*) { own.kernels(shape, w, matrices, begin, end); });
  if (!done) return;
  call.parallel(bands, cost_of(shape, shape.band() * shape.across()), shape.scratch(winograd::kBlock),
                [&](int64_t begin, int64_t end, char* scratch) {
                  own.convolve(shape, x, w, matrices, static_cast<char*>(result.data), begin, end, reinterpret_cast<float*>(scratch));
                });
}

void kernel_gradient(LibraryCall& call) {
  const ral_tensor &source = call.operands[0], &given = call.operands[1], &result = call.results[0];
  Shape shape;
  if (!read_shape(call, source, result, given, &shape)) return;
  const auto *x = static_cast<const char*>(source.data), *dy = static_cast<const char*>(given.data);
  const int64_t tiles = shape.images * shape.down() * shape.across(),
                elements = shape.outputs * shape.channels * shape.window * shape.window;
  if (elements == 0) return;
  if (tiles == 0) return static_cast<void>(std::memset(result.data, 0, elements * shape.elements.bytes));
  const int64_t parts =
      std::clamp<int64_t>(std::min(tiles / kPartTiles, shape.images), 1, kMostParts);  // by the sizes alone: sums are the same
  const bool narrowed = shape.elements.bytes != 4;
  auto* sums = reinterpret_cast<float*>(call.memory(parts * shape.matrices() * 4));
  auto* gradients = static_cast<float*>(narrowed ? static_cast<void*>(call.memory(elements * 4)) : result.data);
  if (sums == nullptr || gradients == nullptr) return;
  const winograd::Functions& own = functions(shape);
  bool done =
      call.parallel(parts, cost_of(shape, tiles / parts), shape.scratch(winograd::kSummed), [&](int64_t begin, int64_t end, char* scratch) {
        for (int64_t part = begin; part < end; ++part) {
          own.gradient(shape, x, dy, sums + part * shape.matrices(), shape.images * part / parts, shape.images * (part + 1) / parts,
                       reinterpret_cast<float*>(scratch));
        }
      });
  if (!done) return;
  const int64_t places = shape.window * shape.window;
  done = call.parallel(shape.channels, cost_of(shape, parts), 0, [&](int64_t begin, int64_t end, char*) {
    own.finish(shape, sums, parts, gradients, begin, end);
    for (int64_t output = 0; output < shape.outputs; ++output) {
      for (int64_t at = begin * places; at < end * places; ++at) {
        float& value = gradients[output * shape.channels * places + at];
        if (!std::isfinite(value)) value = sum_directly(shape, x, dy, output, at / places, at % places);
      }
    }
  });
  if (done && narrowed) shape.elements.narrow(gradients, elements, static_cast<char*>(result.data));
}

}  // namespace ral
