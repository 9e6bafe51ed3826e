// The program of a compiled trace that only computes values: it runs without Python.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "python/lazy_binding.h"
#include "ral.h"

namespace ral::python {

class LazyProgram {
 public:
  static constexpr size_t kMostKnown = 256;  // values of the symbols that are kept

  // binding: a Binding; context: the loaded program, which takes a run's inputs and then numbers: (symbol, bytes of the float that it is, 0 for
  // an integer). values: (value of a run, output).
  LazyProgram(nb::object binding, nb::object context, std::vector<std::pair<size_t, size_t>> numbers,
              std::vector<std::pair<size_t, size_t>> values);

  // From now on runs with these values of the symbols fit. Raises where the run's sizes are not those of the trace.
  void admit(Run& run);
  // What the run has come to, if one with the same values has been admitted, and nobody holds a value that the program does not compute.
  const Bound* fits(Run& run) const;
  // Computes the values of a run that fits, and gives them to what stands for them. False: the call is refused, and nothing has been given.
  // Raises what a custom function has raised, or a signal. PyTorch's modes are off.
  bool compute(const Run& run, const Bound& bound) const;

 private:
  static std::string key(const Bound& bound);

  nb::object binding_object_, context_;
  const Binding& binding_;
  ral_context* handle_;
  std::vector<std::pair<size_t, size_t>> numbers_, values_;
  std::unordered_set<std::string> known_;
};

void bind_programs(nb::module_& module);

}  // namespace ral::python
