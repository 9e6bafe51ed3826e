// The Python classes of schedules: ral_run_batches and ral_linearize, and the walk over Python objects that are a structure.
#pragma once

#include <nanobind/nanobind.h>

namespace ral::python {

void bind_schedules(nanobind::module_& module);

}  // namespace ral::python
