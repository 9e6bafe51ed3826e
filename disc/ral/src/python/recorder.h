// Records calls of blocks, orders them into launches, and numbers the rows that these read and write.
#pragma once

#include <nanobind/nanobind.h>

namespace ral::python {

void bind_recorder(nanobind::module_& module);

}  // namespace ral::python
