// From Python objects that refer to each other to the flat arrays of ral_structure.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
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

// Asks `check`, which raises, about the type of every object whose attributes are read: once for as long as neither the type nor the code of
// its properties is changed. `check` returns these: name → (function, code, attribute or None, whether with `is not`), with an attribute where
// all that the property tells is whether that is None. Without `check` all types are taken.
class TypeCheck {
 public:
  explicit TypeCheck(nb::object check) : check_(std::move(check)) {}
  // The questions as objects of the type answer them: of the attribute itself in the place of such a property. Null: as they are.
  std::shared_ptr<const std::vector<Question>> operator()(PyTypeObject* type, const std::vector<Question>& questions);

 private:
  struct Known {
    nb::object type;
    unsigned int version;  // CPython's tag of what the type holds
    std::vector<std::pair<nb::object, nb::object>> getters;  // functions of properties, and their code
    std::shared_ptr<const std::vector<Question>> questions;

    bool holds(unsigned int now) const;
    void add(const nb::object& name, const nb::tuple& getter, std::vector<Question>& own);
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
