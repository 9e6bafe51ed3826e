#include "python/lazy_binding.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "python/lazy_program.h"
#include "python/python_tensor.h"

namespace ral::python {

namespace {

// PyTorch refuses larger numbers beside tensors of f32.
bool in_range(const Number& number) {
  return number.kind == Number::kInteger || !(std::fabs(number.real) > std::numeric_limits<float>::max()) || std::isinf(number.real);
}

// The values of the symbols, None for others; None if there is no such run.
nb::object values_of(const Bound* bound) {
  if (!bound) return nb::none();
  nb::object found = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(bound->values.size())));
  for (size_t i = 0; i < bound->values.size(); ++i) {
    const auto& [known, number] = bound->values[i];
    PyObject* value = !known ? Py_NewRef(Py_None)
                      : number.kind == Number::kReal ? PyFloat_FromDouble(number.real) : PyLong_FromLongLong(number.integer);
    PyTuple_SET_ITEM(found.ptr(), static_cast<Py_ssize_t>(i), value);
  }
  return found;
}

std::vector<int64_t> overlapping_tensors(const nb::list& inputs, const nb::list& results) {
  std::vector<Extent> extents;
  for (const nb::handle each : inputs) add_extent(extents, each, -1);
  int64_t number = 0;
  for (const nb::handle each : results) add_extent(extents, each, number++);
  return overlapping(std::move(extents));
}

}  // namespace

Binding::Binding(const nb::list& inputs, const nb::list& scalars, size_t symbols, const std::vector<size_t>& made)
    : inputs_(all_sizes(inputs)), scalars_(all_sizes(scalars)), symbols_(symbols) {
  static uint64_t made_so_far = 0;
  number_ = made_so_far++;
  for (const size_t number : made) {
    if (made_.size() <= number) made_.resize(number + 1);
    made_[number] = true;
  }
}

const Bound* Binding::fitting(Run& run) const {
  for (size_t i = 0; i < run.proxies.size(); ++i) {
    if ((i >= made_.size() || !made_[i]) && run.is_live(i)) return nullptr;
  }
  return bound(run);
}

const Bound* Binding::bound(Run& run) const {
  Bound& bound = run.bounds[number_];
  bound.values.resize(symbols_, {false, Number::of(int64_t{0})});
  if (bound.fits) bound.fits = advance(bound, run);
  return bound.fits ? &bound : nullptr;
}

Binding::Size Binding::size_of(nb::handle given) {
  const nb::tuple pair = nb::borrow<nb::tuple>(given);
  const auto symbol = nb::cast<int32_t>(pair[0]);
  if (PyFloat_CheckExact(pair[1].ptr())) return {symbol, Number::of(nb::cast<double>(pair[1]))};
  return {symbol, Number::of(nb::cast<int64_t>(pair[1]))};
}

std::vector<std::vector<Binding::Size>> Binding::all_sizes(const nb::list& given) {
  std::vector<std::vector<Size>> found;
  for (const nb::handle each : given) {
    auto& sizes = found.emplace_back();
    for (const nb::handle size : each) sizes.push_back(size_of(size));
  }
  return found;
}

bool Binding::advance(Bound& bound, const Run& run) const {
  for (; bound.inputs < run.inputs.size(); ++bound.inputs) {
    const std::optional<DLTensor> tensor = dl_tensor(run.inputs[bound.inputs]);
    if (bound.inputs >= inputs_.size() || !tensor) return false;
    const std::vector<Size>& sizes = inputs_[bound.inputs];
    if (sizes.size() != static_cast<size_t>(tensor->ndim)) return false;
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (!take(bound, sizes[i], Number::of(tensor->shape[i]))) return false;
    }
  }
  for (; bound.calls < run.ends.size(); ++bound.calls) {
    const size_t begin = bound.calls ? run.ends[bound.calls - 1] : 0, count = run.ends[bound.calls] - begin;
    if (bound.calls >= scalars_.size() || scalars_[bound.calls].size() != count) return false;
    for (size_t i = 0; i < count; ++i) {
      if (!take(bound, scalars_[bound.calls][i], run.scalars[begin + i])) return false;
    }
  }
  return true;
}

bool Binding::take(Bound& bound, const Size& mine, const Number& given) {
  if (mine.symbol < 0) return mine.number.kind == given.kind && mine.number.same(given);
  auto& [known, value] = bound.values[static_cast<size_t>(mine.symbol)];
  if (known) return value.kind == given.kind && value.same(given);
  known = true;
  value = given;
  return in_range(given);
}

void add_extent(std::vector<Extent>& extents, nb::handle tensor, int64_t result) {
  const std::optional<DLTensor> memory = dl_tensor(tensor);
  if (!memory) throw nb::type_error("not a tensor that can be looked at");
  const auto [begin, end] = extent_of(*memory);
  if (begin != end) extents.push_back({begin, end, result});
}

std::vector<int64_t> overlapping(std::vector<Extent> extents) {
  std::sort(extents.begin(), extents.end(), [](const Extent& one, const Extent& other) { return one.begin < other.begin; });
  std::vector<int64_t> found;
  size_t reached = 0;  // which of those before ends last
  for (size_t i = 1; i < extents.size(); ++i) {
    const Extent &before = extents[reached], &each = extents[i];
    if (each.begin < before.end) {
      for (const int64_t result : {each.result, before.result}) {
        if (result >= 0) found.push_back(result);
      }
    }
    if (each.end > before.end) reached = i;
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

void bind_bindings(nb::module_& module) {
  nb::class_<Binding>(module, "LazyBinding")
      .def(nb::init<const nb::list&, const nb::list&, size_t, const std::vector<size_t>&>(), nb::arg("inputs"), nb::arg("scalars"),
           nb::arg("symbols"), nb::arg("made"))
      .def("fitting", [](const Binding& binding, Run& run) { return values_of(binding.fitting(run)); }, nb::arg("run"))
      .def("values", [](const Binding& binding, Run& run) { return values_of(binding.bound(run)); }, nb::arg("run"));
  module.def("overlapping", &overlapping_tensors, nb::arg("inputs"), nb::arg("results"));
  bind_programs(module);
}

}  // namespace ral::python
