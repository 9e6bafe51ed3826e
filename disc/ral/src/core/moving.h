// Addresses of a recorded call's tensors, which lie elsewhere in every other call: stand-ins that say which tensor it is, and where in it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ral {

// A place in a tensor of a call. offset: bytes behind the last multiple of 64 bytes at or before its start.
struct Moving {
  int64_t tensor = -1;  // -1: an address that stays as it is
  int64_t offset = 0;
};

constexpr uint64_t kMovingMark = uint64_t{1} << 62;  // no memory lies there
constexpr int32_t kMovingShift = 46;
constexpr uint64_t kMovingStart = uint64_t{1} << (kMovingShift - 1);
constexpr size_t kMostMoving = size_t{1} << 16;  // tensors
constexpr uintptr_t kLowBits = 63;               // of an address: all that guards ask about it

inline uintptr_t low_bits(const void* address) { return reinterpret_cast<uintptr_t>(address) & kLowBits; }

// Stands for the start of a tensor whose address ends in these bits.
inline void* moving_address(size_t tensor, uintptr_t low) {
  return reinterpret_cast<void*>(kMovingMark + (uint64_t{tensor} << kMovingShift) + kMovingStart + low);
}

inline Moving read_moving(uint64_t address) {
  if (address < kMovingMark || address >= 2 * kMovingMark) return {};
  const uint64_t within = address & ((uint64_t{1} << kMovingShift) - 1);
  return {static_cast<int64_t>((address - kMovingMark) >> kMovingShift), static_cast<int64_t>(within - kMovingStart)};
}

// The address in a call where the tensor begins at `place`, whose lowest bits are those that were recorded.
inline uint64_t moved_address(const Moving& moving, const void* place) {
  return reinterpret_cast<uintptr_t>(place) - low_bits(place) + static_cast<uint64_t>(moving.offset);
}

}  // namespace ral
