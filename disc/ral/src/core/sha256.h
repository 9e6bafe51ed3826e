// SHA-256 (FIPS 180-4), with the CPU's SHA instructions where it has them.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace ral {

using Digest = std::array<uint8_t, 32>;

Digest sha256(std::span<const uint8_t> bytes);
Digest sha256_portable(std::span<const uint8_t> bytes);

}  // namespace ral
