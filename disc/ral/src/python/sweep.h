// The Python class of sweeps: ral_run_sweep.
#pragma once

#include <nanobind/nanobind.h>

namespace ral::python {

void bind_sweeps(nanobind::module_& module);

}  // namespace ral::python
