// Custom functions of programs that are written in Python.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "ral.h"

namespace ral::python {

namespace nb = nanobind;

// From now on a function that a program names, and that is not registered, is what `find(name)` returns: called with lists of the operands,
// of the results to be filled, and of the numbers (ral_function_call). Tensors are of the kind of its attribute `like`, and lent for the call.
void set_finder(const nb::object& find);

// Raises CustomOpError with this message for a call that failed with RAL_ERROR_FUNCTION: from the exception that the function raised, if it did.
// What is no `Exception` (KeyboardInterrupt, SystemExit) goes on as it is.
[[noreturn]] void raise_failed_function(const std::string& message);

}  // namespace ral::python
