// The result of an operation inside the library. Exceptions other than std::bad_alloc do not occur; api.cc turns that one into a status.
#pragma once

#include <string>
#include <utility>

#include "ral.h"

namespace ral {

struct [[nodiscard]] Status {
  ral_status code = RAL_OK;
  std::string message;

  bool ok() const { return code == RAL_OK; }
};

inline Status error(ral_status code, std::string message) { return {code, std::move(message)}; }

}  // namespace ral
