// Convolutions in tiles, and the gradients of their kernels: what the op says is asked here, and the work divided; the method is winograd.h's.
#include "library/winograd.h"

#include <algorithm>
#include <cmath>

#include "cpu/cpu.h"
#include "library/checks.h"
#include "library/functions.h"

namespace ral {

namespace {

using winograd::Shape;

constexpr int64_t kFloatsPerNanosecond = 16;  // multiply-adds
constexpr int64_t kMostParts = 16;    // sums of images apart, which are added at the end
constexpr int64_t kPartTiles = 400;   // of a part at least: then adding it up is a tenth of its products

const winograd::Functions& functions() {
  static const winograd::Functions& own = missing_feature("x86-64-v4").empty() ? winograd::kAvx512 : winograd::kAvx2;
  return own;
}

// What the tensors say, of the kernel [o, c, y, x], the source [b, c, h, w] and the result [b, o, h', w'].
bool read_shape(LibraryCall& call, const ral_tensor& source, const ral_tensor& kernel, const ral_tensor& result, Shape* shape) {
  const ral_tensor* all[] = {&source, &kernel, &result};
  for (const ral_tensor* each : all) {
    if (!demand(call, each->rank == 4 && each->dtype == RAL_F32)) return false;
  }
  const int64_t window = kernel.dims[2];
  *shape = {source.dims[0], source.dims[1], kernel.dims[0], source.dims[2], source.dims[3], result.dims[2], result.dims[3],
            call.numbers[0], call.numbers[1], window};
  return demand(call, (window == 3 || window == 5) && kernel.dims[3] == window && kernel.dims[1] == shape->channels &&
                          result.dims[0] == shape->images && result.dims[1] == shape->outputs);
}

// Of a task of so many tiles.
int64_t cost_of(const Shape& shape, int64_t tiles) {
  return std::max<int64_t>(tiles * winograd::kPositions * shape.in() * shape.out() / kFloatsPerNanosecond, 1) * RAL_COST_PER_NANOSECOND;
}

// The sums of a kernel's gradient over images, positions and windows: for what is not finite, of which only some has to be so.
float sum_directly(const Shape& shape, const float* source, const float* result, int64_t output, int64_t channel, int64_t at) {
  float sum = 0;
  for (int64_t image = 0; image < shape.images; ++image) {
    const float* plane = source + (image * shape.channels + channel) * shape.height * shape.width;
    const float* given = result + (image * shape.outputs + output) * shape.out_height * shape.out_width;
    for (int64_t y = 0; y < shape.out_height; ++y) {
      const int64_t row = y + at / shape.window - shape.low_y;
      if (row < 0 || row >= shape.height) continue;
      for (int64_t x = 0; x < shape.out_width; ++x) {
        const int64_t column = x + at % shape.window - shape.low_x;
        if (column >= 0 && column < shape.width) sum += plane[row * shape.width + column] * given[y * shape.out_width + x];
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
  const auto *x = static_cast<const float*>(source.data), *w = static_cast<const float*>(kernel.data);
  auto* matrices = reinterpret_cast<float*>(call.memory(shape.matrices() * 4));
  if (matrices == nullptr) return;
  const winograd::Functions& own = functions();
  const int64_t units = shape.out() / winograd::kUnit;
  const bool done = call.parallel(units, cost_of(shape, 1), 0, [&](int64_t begin, int64_t end, char*) { own.kernels(shape, w, matrices, begin, end); });
  if (!done) return;
  call.parallel(bands, cost_of(shape, shape.band() * shape.across()), shape.scratch(winograd::kBlock), [&](int64_t begin, int64_t end, char* scratch) {
    own.convolve(shape, x, w, matrices, static_cast<float*>(result.data), begin, end, reinterpret_cast<float*>(scratch));
  });
}

void kernel_gradient(LibraryCall& call) {
  const ral_tensor &source = call.operands[0], &given = call.operands[1], &result = call.results[0];
  Shape shape;
  if (!read_shape(call, source, result, given, &shape)) return;
  const auto *x = static_cast<const float*>(source.data), *dy = static_cast<const float*>(given.data);
  auto* gradients = static_cast<float*>(result.data);
  const int64_t tiles = shape.images * shape.down() * shape.across(), elements = shape.outputs * shape.channels * shape.window * shape.window;
  if (elements == 0) return;
  if (tiles == 0) return static_cast<void>(std::fill(gradients, gradients + elements, 0.0f));
  const int64_t parts = std::clamp<int64_t>(std::min(tiles / kPartTiles, shape.images), 1, kMostParts);  // by the sizes alone: sums are the same
  auto* sums = reinterpret_cast<float*>(call.memory(parts * shape.matrices() * 4));
  if (sums == nullptr) return;
  const winograd::Functions& own = functions();
  bool done = call.parallel(parts, cost_of(shape, tiles / parts), shape.scratch(winograd::kSummed), [&](int64_t begin, int64_t end, char* scratch) {
    for (int64_t part = begin; part < end; ++part) {
      own.gradient(shape, x, dy, sums + part * shape.matrices(), shape.images * part / parts, shape.images * (part + 1) / parts,
                   reinterpret_cast<float*>(scratch));
    }
  });
  if (!done) return;
  const int64_t places = shape.window * shape.window;
  call.parallel(shape.channels, cost_of(shape, parts), 0, [&](int64_t begin, int64_t end, char*) {
    own.finish(shape, sums, parts, gradients, begin, end);
    for (int64_t output = 0; output < shape.outputs; ++output) {
      for (int64_t at = begin * places; at < end * places; ++at) {
        float& value = gradients[output * shape.channels * places + at];
        if (!std::isfinite(value)) value = sum_directly(shape, x, dy, output, at / places, at % places);
      }
    }
  });
}

}  // namespace ral
