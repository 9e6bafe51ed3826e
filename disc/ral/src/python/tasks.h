// The Python class of skeletons: models that decide by values, without their Python.
#pragma once

#include <nanobind/nanobind.h>

namespace ral::python {

void bind_tasks(nanobind::module_& module);

}  // namespace ral::python
