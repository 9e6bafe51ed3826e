// A code section, loaded. Each load is a library of its own: two contexts never share its data.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/status.h"

namespace ral {

class Code {
 public:
  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code();

  Status load(const std::string& isa, std::span<const uint8_t> shared_object);
  ral_entry entry() const { return entry_; }
  const std::string& isa() const { return isa_; }

 private:
  std::string isa_;
  ral_entry entry_ = nullptr;
  void* library_ = nullptr;
  int fd_ = -1;
};

}  // namespace ral
