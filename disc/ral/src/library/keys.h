// Elements as unsigned numbers that are in the order of the elements: what all functions that compare elements compare.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "ral.h"

namespace ral {

// Of an element stored in `Bits`. NaN has the largest key, and both zeros of floats have one key.
template <typename Bits>
struct Unsigned {
  using Key = Bits;
  using Native = Bits;  // what the processor compares in the same order, but for NaN
  static Key key(Bits bits) { return bits; }
  static Bits bits(Key key) { return key; }
  static bool exact(Key) { return true; }
};

template <typename Bits>
struct Signed {
  using Key = Bits;
  using Native = std::make_signed_t<Bits>;
  static constexpr Bits kSign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  static Key key(Bits bits) { return static_cast<Key>(bits ^ kSign); }
  static Bits bits(Key key) { return static_cast<Bits>(key ^ kSign); }
  static bool exact(Key) { return true; }
};

template <typename Bits, Bits kInfinity>
struct Float {
  using Key = Bits;
  using Native = std::conditional_t<sizeof(Bits) == 4, float, std::conditional_t<sizeof(Bits) == 8, double, void>>;  // void: none
  static constexpr Bits kSign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  static constexpr Key kNan = std::numeric_limits<Key>::max();
  static Key key(Bits bits) {
    const Bits magnitude = static_cast<Bits>(bits & ~kSign);
    if (magnitude > kInfinity) return kNan;
    if (magnitude == 0) return kSign;
    return static_cast<Key>(bits & kSign ? ~bits : bits | kSign);
  }
  // What has this key, where `exact`: then it is the only one.
  static Bits bits(Key key) { return static_cast<Bits>(key & kSign ? key ^ kSign : ~key); }
  static bool exact(Key key) { return key != kNan && key != kSign; }
};

// Calls `body` with the order of a dtype's elements: `Unsigned<...>{}`, ...
template <typename Body>
void with_order(int32_t dtype, const Body& body) {
  switch (dtype) {
    case RAL_I1:
    case RAL_UI8: return body(Unsigned<uint8_t>{});
    case RAL_UI16: return body(Unsigned<uint16_t>{});
    case RAL_UI32: return body(Unsigned<uint32_t>{});
    case RAL_UI64: return body(Unsigned<uint64_t>{});
    case RAL_I8: return body(Signed<uint8_t>{});
    case RAL_I16: return body(Signed<uint16_t>{});
    case RAL_I32: return body(Signed<uint32_t>{});
    case RAL_I64: return body(Signed<uint64_t>{});
    case RAL_F16: return body(Float<uint16_t, 0x7c00>{});
    case RAL_BF16: return body(Float<uint16_t, 0x7f80>{});
    case RAL_F32: return body(Float<uint32_t, 0x7f800000>{});
    case RAL_F64: return body(Float<uint64_t, 0x7ff0000000000000>{});
    default: break;
  }
}

// A tensor as lines along one dim: element i of line (o, n) is at (o * size + i) * inner + n.
struct Lines {
  int64_t outer = 1, size = 1, inner = 1;

  Lines(const ral_tensor& tensor, int64_t dim) {
    for (int64_t i = 0; i < tensor.rank; ++i) (i < dim ? outer : i == dim ? size : inner) *= tensor.dims[i];
  }
  int64_t count() const { return outer * inner; }
  int64_t start(int64_t line) const { return line / inner * size * inner + line % inner; }
};

}  // namespace ral
