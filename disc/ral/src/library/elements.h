// Elements as numbers of C++.
#pragma once

#include <cstdint>
#include <cstring>

#include "ral.h"

namespace ral {

// Where a type is stored in fewer bits than it is computed in: `load` widens, `store` rounds to the nearest, ties to even.
template <typename T>
struct Plain {
  using Stored = T;
  using Number = T;
  static Number load(Stored value) { return value; }
  static Stored store(Number value) { return value; }
};

struct Bf16 {
  using Stored = uint16_t;
  using Number = float;
  static Number load(Stored bits) {
    const uint32_t wide = uint32_t{bits} << 16;
    Number value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
  }
  static Stored store(Number value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<Stored>(bits >> 16 | 0x40);
    return static_cast<Stored>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
};

struct F16 {
  using Stored = uint16_t;
  using Number = float;
  static Number load(Stored bits) {
    // The exponent is moved up; what is subnormal is exact in f32, and found by subtracting the implicit one.
    const uint32_t sign = uint32_t{bits & 0x8000u} << 16, magnitude = bits & 0x7fffu;
    uint32_t wide;
    Number value;
    if (magnitude >= 0x7c00) {
      wide = sign | 0x7f800000 | magnitude << 13;
    } else if (magnitude >= 0x400) {
      wide = sign | ((magnitude << 13) + (112u << 23));
    } else {
      value = static_cast<Number>(magnitude) * 0x1p-24f;
      std::memcpy(&wide, &value, sizeof wide);
      wide |= sign;
    }
    std::memcpy(&value, &wide, sizeof value);
    return value;
  }
  static Stored store(Number value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const auto sign = static_cast<Stored>(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return static_cast<Stored>(sign | 0x7e00);
    if (bits >= 0x477ff000) return static_cast<Stored>(sign | 0x7c00);  // what rounds to more than 65504
    if (bits < 0x38800000) {                                           // subnormal: the sum has the right last bit
      Number small;
      std::memcpy(&small, &bits, sizeof small);
      small += 0.5f;
      std::memcpy(&bits, &small, sizeof bits);
      return static_cast<Stored>(sign | (bits - 0x3f000000));
    }
    bits += 0xfff + (bits >> 13 & 1);
    return static_cast<Stored>(sign | (bits - (112u << 23)) >> 13);
  }
};

// Calls `body` with the element type of a dtype: `Plain<float>{}`, ...
template <typename Body>
void with_element(int32_t dtype, const Body& body) {
  switch (dtype) {
    case RAL_I1:
    case RAL_UI8: return body(Plain<uint8_t>{});
    case RAL_UI16: return body(Plain<uint16_t>{});
    case RAL_UI32: return body(Plain<uint32_t>{});
    case RAL_UI64: return body(Plain<uint64_t>{});
    case RAL_I8: return body(Plain<int8_t>{});
    case RAL_I16: return body(Plain<int16_t>{});
    case RAL_I32: return body(Plain<int32_t>{});
    case RAL_I64: return body(Plain<int64_t>{});
    case RAL_F16: return body(F16{});
    case RAL_BF16: return body(Bf16{});
    case RAL_F32: return body(Plain<float>{});
    case RAL_F64: return body(Plain<double>{});
    default: break;
  }
}

// Element `place` of a tensor of i32 or i64.
inline int64_t integer_at(const ral_tensor& tensor, int64_t place) {
  if (tensor.dtype == RAL_I32) return static_cast<const int32_t*>(tensor.data)[place];
  return static_cast<const int64_t*>(tensor.data)[place];
}

inline int64_t element_count(const ral_tensor& tensor) {
  int64_t count = 1;
  for (int32_t i = 0; i < tensor.rank; ++i) count *= tensor.dims[i];
  return count;
}

}  // namespace ral
