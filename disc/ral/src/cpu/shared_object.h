// A shared library that is loaded from bytes. Each load is a library of its own: two of the same bytes never share data.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/status.h"

namespace ral {

class SharedObject {
 public:
  SharedObject() = default;
  SharedObject(const SharedObject&) = delete;
  SharedObject& operator=(const SharedObject&) = delete;
  ~SharedObject();

  // what: of which the bytes are, for messages.
  Status load(const std::string& what, std::span<const uint8_t> bytes);
  // Null where there is no such symbol.
  void* symbol(const char* name) const;

 private:
  void* library_ = nullptr;
  int fd_ = -1;
};

}  // namespace ral
