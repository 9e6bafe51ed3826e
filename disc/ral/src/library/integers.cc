// Functions of two integers that take iterations, element by element.
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "library/checks.h"
#include "library/elements.h"
#include "library/functions.h"

namespace ral {

namespace {

constexpr int64_t kBlock = 256;  // elements of a task
constexpr int64_t kCostPerElement = 30 * RAL_COST_PER_NANOSECOND;

// Of the lowest number, which has no magnitude, itself.
template <typename T>
T magnitude(T value) {
  if constexpr (std::is_unsigned_v<T>) return value;
  return value < 0 ? static_cast<T>(0 - static_cast<std::make_unsigned_t<T>>(value)) : value;
}

// By which no number is divided: the quotient of the lowest one has no place in the type.
template <typename T>
bool is_minus_one(T value) {
  return std::is_signed_v<T> && value == static_cast<T>(-1);
}

// Euclid's algorithm. The lowest number stays negative, and so may the result: as in eager.
template <typename T>
T common_divisor(T left, T right) {
  left = magnitude(left);
  right = magnitude(right);
  while (left != 0) {
    const T rest = is_minus_one(left) ? T{0} : static_cast<T>(right % left);
    right = left;
    left = rest;
  }
  return right;
}

// The product wraps in the type that C++ computes it in, and then in its own.
template <typename T>
T common_multiple(T left, T right) {
  const T divisor = common_divisor(left, right);
  if (divisor == 0) return 0;
  using Wide = decltype(left * right);
  using Bits = std::make_unsigned_t<Wide>;
  const Bits factor = is_minus_one(divisor) ? Bits{0} - static_cast<Bits>(left) : static_cast<Bits>(Wide{left} / Wide{divisor});
  return static_cast<T>(magnitude(static_cast<Wide>(factor * static_cast<Bits>(right))));
}

template <typename Function>
void over_integers(LibraryCall& call, const Function& function) {
  const ral_tensor &left = call.operands[0], &right = call.operands[1], &result = call.results[0];
  if (!demand(call, is_like(right, left, left.dtype) && is_like(result, left, left.dtype))) return;
  const int64_t count = element_count(left);
  with_element(left.dtype, [&](auto element) {
    using T = typename decltype(element)::Stored;
    if constexpr (std::is_same_v<decltype(element), Plain<T>> && std::is_integral_v<T>) {
      call.parallel((count + kBlock - 1) / kBlock, kBlock * kCostPerElement, 0, [&](int64_t begin, int64_t end, char*) {
        for (int64_t i = begin * kBlock; i < std::min(count, end * kBlock); ++i) {
          static_cast<T*>(result.data)[i] = function(static_cast<const T*>(left.data)[i], static_cast<const T*>(right.data)[i]);
        }
      });
    } else {
      call.fail("is computed of integers alone", RAL_ERROR_DTYPE);
    }
  });
}

}  // namespace

void gcd(LibraryCall& call) {
  over_integers(call, [](auto left, auto right) { return common_divisor(left, right); });
}

void lcm(LibraryCall& call) {
  over_integers(call, [](auto left, auto right) { return common_multiple(left, right); });
}

}  // namespace ral
