// What the C++ tests of the runtime share.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "ral.h"

using Bytes = std::vector<uint8_t>;

#define CHECK(condition) ((condition) ? void() : failed_check(#condition, __FILE__, __LINE__))

inline void failed_check(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: %s is false; last error: %s\n", file, line, condition, ral_last_error());
  std::exit(1);
}

inline Bytes read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

template <typename T>
void put(Bytes& bytes, T value) {
  const auto* data = reinterpret_cast<const uint8_t*>(&value);
  bytes.insert(bytes.end(), data, data + sizeof value);
}

inline void put_text(Bytes& bytes, const std::string& text) {
  put<uint32_t>(bytes, static_cast<uint32_t>(text.size()));
  bytes.insert(bytes.end(), text.begin(), text.end());
}

inline void put_texts(Bytes& bytes, const std::vector<std::string>& texts) {
  put<uint32_t>(bytes, static_cast<uint32_t>(texts.size()));
  for (const std::string& text : texts) put_text(bytes, text);
}

// An input or output of a signature; dims: of an input, -1 = dynamic.
inline void put_value(Bytes& bytes, const std::string& name, ral_dtype dtype, uint32_t rank, const std::vector<int64_t>& dims) {
  put_text(bytes, name);
  put<uint32_t>(bytes, dtype);
  put<uint32_t>(bytes, rank);
  for (const int64_t dim : dims) put(bytes, dim);
}
