// Fourier transforms along one dim, f32 and f64, by pocketfft (third_party/pocketfft). Lines are tasks, as many at once as a vector has lanes.
// A plan is made in every call and shared by all lines: nothing is kept that a fork would have to take care of.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <memory>

#define POCKETFFT_NO_MULTITHREADING
#define POCKETFFT_CACHE_SIZE 0
#include "pocketfft/pocketfft_hdronly.h"

#include "library/functions.h"

namespace ral {

namespace {

namespace pocket = pocketfft::detail;

constexpr int64_t kLongest = int64_t{1} << 15;  // a longer line is transformed alone: several of them leave the caches

// The lines of a tensor along a dim: `count` of them, of `length` elements that lie `inner` elements apart.
struct Lines {
  int64_t count, length, inner;

  // past: the number of dims, without the last where it holds the two parts of complex numbers.
  Lines(const ral_tensor& tensor, int64_t dim, int64_t past) : count(1), length(tensor.dims[dim]), inner(1) {
    for (int64_t i = 0; i < past; ++i) count *= i == dim ? 1 : tensor.dims[i];
    for (int64_t i = dim + 1; i < past; ++i) inner *= tensor.dims[i];
  }
  int64_t begin(int64_t line) const { return line / inner * length * inner + line % inner; }
};

// What sums over n elements are multiplied by. norm: 0 = 1, 1 = the root of 1 / n, 2 = 1 / n.
double factor_of(int64_t norm, int64_t n) {
  const double whole = 1 / static_cast<double>(n);
  return norm == 0 ? 1 : norm == 1 ? std::sqrt(whole) : whole;
}

// Runs `transform(first, count, buffer)` for lines [first, first + count), with a buffer of `numbers` vectors of T, or of so many T where lines
// are transformed one by one.
template <typename T, typename Transform>
void over_lines(LibraryCall& call, const Lines& lines, int64_t numbers, const Transform& transform) {
  constexpr auto kLanes = static_cast<int64_t>(pocket::VLEN<T>::val);
  const int64_t together = lines.count >= kLanes && lines.length <= kLongest ? kLanes : 1;
  const double steps = static_cast<double>(lines.length * together) * (1 + std::log2(static_cast<double>(lines.length)));
  const auto cost = static_cast<int64_t>(steps * RAL_COST_PER_NANOSECOND / 4) + 1;
  std::atomic<bool> exhausted{false};  // pocketfft throws where it gets no memory
  call.parallel((lines.count + together - 1) / together, cost, numbers * together * static_cast<int64_t>(sizeof(T)),
                [&](int64_t begin, int64_t end, char* scratch) {
                  try {
                    for (int64_t task = begin; task < end; ++task) {
                      const int64_t first = task * together, count = std::min(together, lines.count - first);
                      if (together == 1) {
                        transform(first, count, reinterpret_cast<T*>(scratch));
                      } else {
                        transform(first, count, reinterpret_cast<pocket::vtype_t<T>*>(scratch));
                      }
                    }
                  } catch (const std::exception&) {
                    exhausted.store(true, std::memory_order_relaxed);
                  }
                });
  if (exhausted.load(std::memory_order_relaxed)) call.fail("there is no memory for the transform", RAL_ERROR_MEMORY);
}

// Lane `place` of a number or vector.
template <typename T, typename V>
T& lane(V* value, int64_t place) {
  return reinterpret_cast<T*>(value)[place];
}

template <typename T, typename V>
constexpr int64_t kLanesOf = sizeof(V) / sizeof(T);

// Null where there is none, and the call has failed.
template <typename Plan>
std::unique_ptr<Plan> plan_of(LibraryCall& call, int64_t length) {
  if (length == 0) {
    call.fail("a Fourier transform of no elements", RAL_ERROR_SHAPE);
    return nullptr;
  }
  try {
    return std::make_unique<Plan>(static_cast<size_t>(length));
  } catch (const std::exception&) {
    call.fail("there is no memory for a transform of " + std::to_string(length) + " elements", RAL_ERROR_MEMORY);
    return nullptr;
  }
}

template <typename T>
void complex_transform(LibraryCall& call) {
  const ral_tensor& x = call.operands[0];
  const Lines lines(x, call.numbers[0], x.rank - 1);
  const bool forward = call.numbers[1] == 0;
  if (lines.count == 0) return;
  const auto plan = plan_of<pocket::pocketfft_c<T>>(call, lines.length);
  if (!plan) return;
  const auto* source = static_cast<const T*>(x.data);
  auto* result = static_cast<T*>(call.results[0].data);
  const auto scale = static_cast<T>(factor_of(call.numbers[2], lines.length));
  over_lines<T>(call, lines, 2 * lines.length, [&]<typename V>(int64_t first, int64_t count, V* buffer) {
    for (int64_t place = 0; place < kLanesOf<T, V>; ++place) {
      const T* from = source + 2 * lines.begin(first + std::min(place, count - 1));
      for (int64_t i = 0; i < lines.length; ++i) {
        lane<T>(buffer + 2 * i, place) = from[2 * i * lines.inner];
        lane<T>(buffer + 2 * i + 1, place) = from[2 * i * lines.inner + 1];
      }
    }
    plan->exec(reinterpret_cast<pocket::cmplx<V>*>(buffer), scale, forward);
    for (int64_t place = 0; place < count; ++place) {
      T* to = result + 2 * lines.begin(first + place);
      for (int64_t i = 0; i < lines.length; ++i) {
        to[2 * i * lines.inner] = lane<T>(buffer + 2 * i, place);
        to[2 * i * lines.inner + 1] = lane<T>(buffer + 2 * i + 1, place);
      }
    }
  });
}

// pocketfft's order of the spectrum of a real line: the real part of frequency 0, then both parts of 1, 2, ..., and of an even line the real part
// of the last.
template <typename T>
void real_transform(LibraryCall& call) {
  const ral_tensor& x = call.operands[0];
  const Lines lines(x, call.numbers[0], x.rank), spectra(call.results[0], call.numbers[0], x.rank);
  if (lines.count == 0) return;
  const auto plan = plan_of<pocket::pocketfft_r<T>>(call, lines.length);
  if (!plan) return;
  const auto* source = static_cast<const T*>(x.data);
  auto* result = static_cast<T*>(call.results[0].data);
  const auto scale = static_cast<T>(factor_of(call.numbers[1], lines.length));
  over_lines<T>(call, lines, lines.length, [&]<typename V>(int64_t first, int64_t count, V* buffer) {
    for (int64_t place = 0; place < kLanesOf<T, V>; ++place) {
      const T* from = source + lines.begin(first + std::min(place, count - 1));
      for (int64_t i = 0; i < lines.length; ++i) lane<T>(buffer + i, place) = from[i * lines.inner];
    }
    plan->exec(buffer, scale, true);
    for (int64_t place = 0; place < count; ++place) {
      T* to = result + 2 * spectra.begin(first + place);
      for (int64_t i = 0; i < spectra.length; ++i) {
        to[2 * i * lines.inner] = lane<T>(buffer + (i == 0 ? 0 : 2 * i - 1), place);
        to[2 * i * lines.inner + 1] = i == 0 || 2 * i == lines.length ? T{0} : lane<T>(buffer + 2 * i, place);
      }
    }
  });
}

template <typename T>
void inverse_real_transform(LibraryCall& call) {
  const ral_tensor &x = call.operands[0], &y = call.results[0];
  const Lines spectra(x, call.numbers[0], x.rank - 1), lines(y, call.numbers[0], y.rank);
  if (lines.count == 0) return;
  const auto plan = plan_of<pocket::pocketfft_r<T>>(call, lines.length);
  if (!plan) return;
  if (spectra.length != lines.length / 2 + 1) {
    return call.fail("a spectrum of " + std::to_string(spectra.length) + " frequencies is none of " + std::to_string(lines.length) +
                         " real elements",
                     RAL_ERROR_SHAPE);
  }
  const auto* source = static_cast<const T*>(x.data);
  auto* result = static_cast<T*>(y.data);
  const auto scale = static_cast<T>(factor_of(call.numbers[1], lines.length));
  over_lines<T>(call, lines, lines.length, [&]<typename V>(int64_t first, int64_t count, V* buffer) {
    for (int64_t place = 0; place < kLanesOf<T, V>; ++place) {
      const T* from = source + 2 * spectra.begin(first + std::min(place, count - 1));
      lane<T>(buffer, place) = from[0];
      for (int64_t i = 1; i < spectra.length; ++i) {
        lane<T>(buffer + 2 * i - 1, place) = from[2 * i * lines.inner];
        if (2 * i < lines.length) lane<T>(buffer + 2 * i, place) = from[2 * i * lines.inner + 1];
      }
    }
    plan->exec(buffer, scale, false);
    for (int64_t place = 0; place < count; ++place) {
      T* to = result + lines.begin(first + place);
      for (int64_t i = 0; i < lines.length; ++i) to[i * lines.inner] = lane<T>(buffer + i, place);
    }
  });
}

// Whether the operand of rank at least `least` has the dim, the result has `rank` dims, and both are of f32 or f64: programs may be written by
// hand.
bool is_transform(LibraryCall& call, int32_t least, int32_t rank) {
  const ral_tensor &x = call.operands[0], &y = call.results[0];
  const int64_t dims = std::min(x.rank, y.rank) - (x.rank == y.rank ? 1 : 0);
  const int64_t dim = call.numbers[0];
  bool fits = x.rank >= least && y.rank == rank && dim >= 0 && dim < dims && x.dtype == y.dtype && (x.dtype == RAL_F32 || x.dtype == RAL_F64);
  for (int64_t i = 0; fits && i < dims; ++i) fits = i == dim || x.dims[i] == y.dims[i];
  for (const ral_tensor* each : {&x, &y}) fits = fits && (each->rank == dims || each->dims[dims] == 2);
  if (fits && x.rank == y.rank) fits = x.dims[dim] == y.dims[dim];
  if (fits && x.rank < y.rank) fits = y.dims[dim] == x.dims[dim] / 2 + 1;
  if (!fits) call.fail("operand, result and dim are none of a Fourier transform", RAL_ERROR_SHAPE);
  return fits && y.data;
}

}  // namespace

void fft(LibraryCall& call) {
  if (!is_transform(call, 2, call.operands[0].rank)) return;
  call.operands[0].dtype == RAL_F32 ? complex_transform<float>(call) : complex_transform<double>(call);
}

void rfft(LibraryCall& call) {
  if (!is_transform(call, 1, call.operands[0].rank + 1)) return;
  call.operands[0].dtype == RAL_F32 ? real_transform<float>(call) : real_transform<double>(call);
}

void irfft(LibraryCall& call) {
  if (!is_transform(call, 2, call.operands[0].rank - 1)) return;
  call.operands[0].dtype == RAL_F32 ? inverse_real_transform<float>(call) : inverse_real_transform<double>(call);
}

}  // namespace ral
