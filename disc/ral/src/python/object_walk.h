// From Python objects that refer to each other to the flat arrays of ral_structure.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <vector>

namespace ral::python {

namespace nb = nanobind;

// A question about an object: whether an attribute is true, or is None. yes, no: the next question, or ~kind where the kind is found.
struct Question {
  nb::object attribute;  // interned
  bool is_none;
  int32_t yes, no;
};

// What is read of objects of one kind: the attribute of each field that holds a child, and of each column.
struct KindAttributes {
  std::vector<std::pair<int32_t, nb::object>> fields;
  std::vector<std::pair<int32_t, nb::object>> columns;
};

// Asks `check`, which raises, about the type of every object whose attributes are read: once for as long as the type is not changed.
// Without `check` all types are taken.
class TypeCheck {
 public:
  explicit TypeCheck(nb::object check) : check_(std::move(check)) {}
  void operator()(PyTypeObject* type);

 private:
  struct Known {
    nb::object type;
    unsigned int version;  // CPython's tag of what the type holds
  };

  nb::object check_;
  std::vector<Known> known_;
};

struct FlatStructure {
  std::vector<int64_t> kinds;
  std::vector<std::vector<int64_t>> children;  // of each field
  std::vector<std::vector<int64_t>> columns;
  std::vector<int64_t> roots;
};

// Walks from every root, with a stack of its own; an object that is reached twice is one node. Children come before their parents.
// Raises StructureError for a cycle, with its path, and for an attribute that is no integer; what attributes and `check` raise goes on as
// it is.
FlatStructure walk_objects(const nb::list& roots, const std::vector<Question>& questions, const std::vector<KindAttributes>& kinds,
                           size_t fields, size_t columns, TypeCheck& check);

}  // namespace ral::python
