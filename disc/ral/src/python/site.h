// A region of a function, as it is called: which kind a call is of follows from its arguments.
#pragma once

#include <cstddef>
#include <cstdint>

#include "python/recorded.h"

namespace ral::python {

// What one call was given. A token tells apart what makes another kind: the class of a row, the length of a list, the identity of anything
// else.
struct Given {
  static constexpr size_t kMost = 64;

  uintptr_t tokens[kMost];
  RowObject* rows[kMost];
  PyObject* others[kMost];  // that tokens name by identity
  int64_t values[kMost];    // integers that only index, and are no tokens
  size_t token_count = 0, row_count = 0, other_count = 0, value_count = 0;
};

// The kind of a call of the site as it was learnt, borrowed; null where it was not, or for rows that are no instances of `row` itself.
KindObject* find_kind(PyObject* site, PyTypeObject* row, PyObject* arguments, Given& given);

bool is_site(PyObject* object);

void bind_sites(nb::module_& module);

}  // namespace ral::python
