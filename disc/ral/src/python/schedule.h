// The Python classes of schedules: ral_run_batches and ral_linearize, and the walk over Python objects that are a structure.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <initializer_list>
#include <vector>

namespace ral::python {

// The numbers as a NumPy array that owns them.
nanobind::object owned(std::vector<int64_t>&& numbers, std::initializer_list<size_t> shape);

void bind_schedules(nanobind::module_& module);

}  // namespace ral::python
