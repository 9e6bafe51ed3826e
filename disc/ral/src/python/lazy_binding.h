// What the sizes of a run are in a compiled trace: the values of its symbols.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include "python/lazy_run.h"

namespace ral::python {

class Binding {
 public:
  // inputs, scalars: for each input its dims, for each call its numbers: (symbol or -1, the number that it always is). made: numbers of the
  // values that the trace's program computes.
  Binding(const nb::list& inputs, const nb::list& scalars, size_t symbols, const std::vector<size_t>& made);

  // As `bound`, and null too if somebody holds a value that the program does not compute.
  const Bound* fitting(Run& run) const;
  // What a run has come to; null if its sizes are not those of the trace.
  const Bound* bound(Run& run) const;

 private:
  // A size of an input, or a number among a call's arguments: a symbol, or always the same.
  struct Size {
    int32_t symbol;  // -1 = none
    Number number;
  };

  static Size size_of(nb::handle given);
  static std::vector<std::vector<Size>> all_sizes(const nb::list& given);
  static bool take(Bound& bound, const Size& mine, const Number& given);
  bool advance(Bound& bound, const Run& run) const;

  std::vector<std::vector<Size>> inputs_, scalars_;
  size_t symbols_;
  std::vector<bool> made_;  // by the number of the value
  uint64_t number_;         // another one for each: others come to lie where one was that served no run
};

// The addresses of an input (result: -1) or a result; none where it has no elements.
struct Extent {
  uintptr_t begin, end;
  int64_t result;
};

void add_extent(std::vector<Extent>& extents, nb::handle tensor, int64_t result);

// The numbers of results whose memory overlaps that of an input, or of another result.
std::vector<int64_t> overlapping(std::vector<Extent> extents);

}  // namespace ral::python
