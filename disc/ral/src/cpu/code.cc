#include "cpu/code.h"

namespace ral {

Status Code::load(const std::string& isa, std::span<const uint8_t> shared_object) {
  const std::string section = "section 'code/" + isa + "'";
  isa_ = isa;
  Status status = library_.load(section, shared_object);
  if (!status.ok()) return status;
  entry_ = reinterpret_cast<ral_entry>(library_.symbol("disc_entry"));
  return entry_ ? Status{} : error(RAL_ERROR_ARTIFACT, section + ": has no symbol disc_entry");
}

}  // namespace ral
