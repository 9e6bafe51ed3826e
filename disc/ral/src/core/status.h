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

// `text` as it may be shown: what a file says can hold control characters, which terminals obey, and bytes that are no UTF-8. Those, and
// the marks that turn the direction of text, come out as "\x1b".
std::string printable(const std::string& text);

inline Status error(ral_status code, std::string message) { return {code, std::move(message)}; }

}  // namespace ral
