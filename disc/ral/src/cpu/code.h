// A code section, loaded.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/status.h"
#include "cpu/shared_object.h"

namespace ral {

class Code {
 public:
  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;

  Status load(const std::string& isa, std::span<const uint8_t> shared_object);
  ral_entry entry() const { return entry_; }
  const std::string& isa() const { return isa_; }

 private:
  std::string isa_;
  ral_entry entry_ = nullptr;
  SharedObject library_;
};

}  // namespace ral
