#include "core/status.h"

#include <cstdint>
#include <cstdio>

namespace ral {

namespace {

// The bytes of the well-formed UTF-8 sequence that begins at `at`, and its code point; 0 when there is none.
size_t decode(const std::string& text, size_t at, uint32_t* point) {
  const auto byte = [&](size_t offset) -> uint32_t { return at + offset < text.size() ? static_cast<uint8_t>(text[at + offset]) : 0; };
  const uint32_t lead = byte(0);
  const size_t length = lead < 0x80 ? 1 : lead >> 5 == 6 ? 2 : lead >> 4 == 14 ? 3 : lead >> 3 == 30 ? 4 : 0;
  if (length == 0) return 0;
  *point = length == 1 ? lead : lead & (0x7f >> length);
  for (size_t i = 1; i < length; ++i) {
    if (byte(i) >> 6 != 2) return 0;
    *point = *point << 6 | (byte(i) & 0x3f);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = *point >= 0xd800 && *point < 0xe000;
  return *point < kLeast[length] || *point > 0x10ffff || surrogate ? 0 : length;
}

bool is_shown(uint32_t point) {
  const bool control = point < 0x20 || (point >= 0x7f && point < 0xa0);
  const bool mark = (point >= 0x200b && point <= 0x200f) || (point >= 0x2028 && point <= 0x202e) || (point >= 0x2060 && point <= 0x2069);
  return !control && !mark && point != 0xfeff;
}

}  // namespace

std::string printable(const std::string& text) {
  std::string shown;
  shown.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    uint32_t point = 0;
    const size_t length = decode(text, at, &point);
    if (length > 0 && is_shown(point)) {
      shown.append(text, at, length);
    } else {
      char escaped[8];
      const auto value = length > 0 ? point : static_cast<uint32_t>(static_cast<uint8_t>(text[at]));
      std::snprintf(escaped, sizeof escaped, value > 0xff ? "\\u%04x" : "\\x%02x", value);
      shown += escaped;
    }
    at += length > 0 ? length : 1;
  }
  return shown;
}

}  // namespace ral
