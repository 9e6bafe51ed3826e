// What is recorded of a batch of instances, as Python objects whose fields C++ reads and writes: calls of blocks (launches), the kinds of
// these, and rows, which stand for their results. Python's classes derive from Row and Kind (disc/frontend/batched/).
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

namespace ral::python {

namespace nb = nanobind;

struct KindObject {
  PyObject_HEAD
  PyObject* results;  // tuple with the class of each result
  PyObject* outputs;  // (rows of the results, rows given, arguments) -> what the region returns
  PyObject* views;    // None, or an object with `given` and `made`: places of rows that share memory
  PyObject* targets;  // tuple with the number of the table of each result, where slot >= 0
  double cost;        // of a launch, whatever its rows
  long long calls;    // how often it was called
  int number;         // among all kinds
  int slot;           // its block in the schedule; -1 = it is in none
  char consumed;      // another block has read a result
  char plain;         // what the region returns is the tuple of the results
};

struct RowObject {
  PyObject_HEAD
  PyObject* kind;
  PyObject* launch;  // a LaunchObject; None or null for a tensor that was given
  PyObject* value;   // the tensor; None or null before there is one
  Py_ssize_t place;  // in its table; -1 = it has none
  long long version;
  int depth;
  char shared;
};

struct LaunchObject {
  PyObject_VAR_HEAD
  PyObject* recorder;
  PyObject* kind;
  PyObject* rows;     // tuple of RowObject
  PyObject* results;  // tuple of RowObject
  PyObject* error;
  unsigned long long mark;  // of the last search that found it
  int64_t index;            // among the launches that this search found
  int depth;
  char done;
  int64_t values[1];  // Py_SIZE of them
};

extern PyTypeObject* kind_type;
extern PyTypeObject* row_type;
extern PyTypeObject* launch_type;

inline LaunchObject* launch_of(const RowObject* row) {
  return row->launch && Py_TYPE(row->launch) == launch_type ? reinterpret_cast<LaunchObject*>(row->launch) : nullptr;
}

inline bool is_given(const PyObject* field) { return field && field != Py_None; }

inline RowObject* row_at(PyObject* tuple, Py_ssize_t place) { return reinterpret_cast<RowObject*>(PyTuple_GET_ITEM(tuple, place)); }

// A new launch with rows for its results, of `made`, a class that derives from Row; null with Python's error set. It marks the kinds of the
// launches whose rows it reads as consumed.
LaunchObject* new_launch(PyObject* recorder, KindObject* kind, PyTypeObject* made, RowObject* const* rows, size_t row_count,
                         const int64_t* values, size_t value_count);

// Forgets what a launch that ran was given and made, so that no circles of rows and launches are left to the collector.
void settle(LaunchObject* launch);

void bind_recorded(nb::module_& module);

}  // namespace ral::python
