// Custom functions: what programs name and the library does not have.
#pragma once

#include <string>
#include <utility>

#include "core/library.h"
#include "core/status.h"
#include "ral.h"

namespace ral {

// A function that a program calls: of the library, or a custom one.
class Function {
 public:
  Function() = default;
  Function(Function&& other) noexcept : own_(other.own_), custom_(std::exchange(other.custom_, {})) {}
  Function& operator=(Function&&) = delete;
  ~Function() {
    if (custom_.release) custom_.release(custom_.state);
  }

  // The function of a name in a signature; the message of a failure says what is missing.
  Status find(const std::string& name);
  void call(LibraryCall& call) const;
  bool is_custom() const { return !own_; }

 private:
  LibraryFunction own_ = nullptr;
  ral_host_function custom_{};
};

// As ral_register_function. digest: is filled in.
Status register_function(const std::string& op, const std::string& library, const std::string& symbol, std::string* digest);

void set_finder(ral_find_function find) noexcept;

}  // namespace ral
