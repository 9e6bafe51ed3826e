// What compiled blocks rely on: objects that Python code could change.
#pragma once

#include <nanobind/nanobind.h>

namespace ral::python {

void bind_facts(nanobind::module_& module);

}  // namespace ral::python
