#include "python/lazy_program.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "python/host_functions.h"
#include "python/python_tensor.h"

namespace ral::python {

namespace {

// As a program's caller sees it: the exception of the function itself.
[[noreturn]] void raise_of_function() try {
  raise_failed_function(ral_last_error());
} catch (nb::python_error& error) {
  const nb::object cause = nb::steal(PyException_GetCause(error.value().ptr()));
  if (!cause.is_valid() || !error.matches(PyExc_Exception)) throw;
  PyErr_SetObject(cause.type().ptr(), cause.ptr());
  nb::raise_python_error();
}

nb::object copied(const nb::object& tensor) {
  PyObject* made = PyObject_CallMethod(tensor.ptr(), "clone", nullptr);
  if (!made) nb::raise_python_error();
  return nb::steal(made);
}

}  // namespace

LazyProgram::LazyProgram(nb::object binding, nb::object context, std::vector<std::pair<size_t, size_t>> numbers,
                         std::vector<std::pair<size_t, size_t>> values)
    : binding_object_(std::move(binding)),
      context_(std::move(context)),
      binding_(*nb::inst_ptr<Binding>(binding_object_)),
      handle_(static_cast<ral_context*>(nb::cast<nb::capsule>(context_.attr("handle")()).data())),
      numbers_(std::move(numbers)),
      values_(std::move(values)) {}

std::string LazyProgram::key(const Bound& bound) {
  std::string made;
  made.reserve(bound.values.size() * (sizeof(int64_t) + 1));
  for (const auto& [known, number] : bound.values) {
    made.push_back(static_cast<char>(known ? number.kind : -1));
    made.append(reinterpret_cast<const char*>(&number.integer), sizeof number.integer);
  }
  return made;
}

void LazyProgram::admit(Run& run) {
  const Bound* bound = binding_.bound(run);
  if (!bound) throw nb::value_error("the run has other sizes than the trace");
  if (known_.size() >= kMostKnown) known_.clear();
  known_.insert(key(*bound));
}

const Bound* LazyProgram::fits(Run& run) const {
  const Bound* bound = binding_.fitting(run);
  return bound && known_.contains(key(*bound)) ? bound : nullptr;
}

bool LazyProgram::compute(const Run& run, const Bound& bound) const {
  ask_python();
  Borrowed inputs;
  inputs.reserve(run.inputs.size() + numbers_.size());
  std::vector<Extent> extents;
  try {
    for (PyObject* each : run.inputs) add_extent(extents, each, -1);
    for (PyObject* each : run.inputs) inputs.add(each, ral_input_info(handle_, inputs.count()), "argument", false, false);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_Exception)) throw;
    return false;
  } catch (const nb::builtin_exception&) {  // no tensor that can be looked at
    return false;
  }
  for (const auto& [symbol, bytes] : numbers_) inputs.add_number(bound.values[symbol].second, bytes);
  Outputs outputs(static_cast<size_t>(ral_output_count(handle_)));
  const ral_status status = without_gil([&] {
    return ral_call(handle_, inputs.tensors(), inputs.count(), nullptr, outputs.data(), outputs.count());
  });
  if (status == RAL_ERROR_FUNCTION) raise_of_function();
  if (status == RAL_ERROR_CANCELLED && PyErr_Occurred()) nb::raise_python_error();
  if (status != RAL_OK) return false;

  const nb::object like = context_.attr("like");
  const Kind kind = inputs.kind(like);
  std::vector<nb::object> made(static_cast<size_t>(outputs.count()));
  for (const auto& [value, place] : values_) {
    if (made[place].is_valid() || !run.is_live(value)) continue;
    made[place] = results(kind, outputs.all().subspan(place, 1), true);
    add_extent(extents, made[place], static_cast<int64_t>(place));
  }
  for (const int64_t place : overlapping(std::move(extents))) made[static_cast<size_t>(place)] = copied(made[static_cast<size_t>(place)]);
  for (const auto& [value, place] : values_) {
    if (made[place].is_valid()) run.give(value, made[place]);
  }
  return true;
}

void bind_programs(nb::module_& module) {
  nb::class_<LazyProgram>(module, "LazyProgram")
      .def("__init__", [](LazyProgram* self, nb::handle binding, nb::object context, std::vector<std::pair<size_t, size_t>> numbers,
                          std::vector<std::pair<size_t, size_t>> values) {
        if (!nb::isinstance<Binding>(binding)) throw nb::type_error("a program needs its binding");
        new (self) LazyProgram(nb::borrow(binding), std::move(context), std::move(numbers), std::move(values));
      }, nb::arg("binding"), nb::arg("context"), nb::arg("numbers"), nb::arg("values"))
      .def("admit", &LazyProgram::admit, nb::arg("run"));
}

}  // namespace ral::python
