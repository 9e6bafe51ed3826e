// What names a call of one of the user's functions, so that its result may be used again.
#pragma once

#include <nanobind/nanobind.h>

namespace ral::python {

void bind_call_keys(nanobind::module_& module);

}  // namespace ral::python
