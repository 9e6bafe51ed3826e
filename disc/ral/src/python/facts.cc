#include "python/facts.h"

#include <utility>
#include <vector>

namespace ral::python {

namespace {

namespace nb = nanobind;

// Objects as they were when this was made, looked at by identity: some 10 ns for each. It holds what it compares with, so that no other
// object gets its address.
class Facts {
 public:
  Facts() : version_(nb::steal(PyUnicode_InternFromString("_version"))), address_(nb::steal(PyUnicode_InternFromString("data_ptr"))) {}

  // The dict has the keys that it has now, the same objects in the same order; and, of those in `keys`, the same values.
  void add_dict(const nb::dict& dict, const nb::set& keys) {
    Dict made{dict, {}};
    for (const auto& [key, value] : dict) {
      const bool compared = PySet_Contains(keys.ptr(), key.ptr()) == 1;
      made.items.emplace_back(nb::borrow(key), compared ? nb::borrow(value) : nb::object());
    }
    dicts_.push_back(std::move(made));
  }

  // The value of a key, or that there is none.
  void add_item(const nb::dict& dict, const nb::str& key) {
    PyObject* value = PyDict_GetItemWithError(dict.ptr(), key.ptr());
    if (!value && PyErr_Occurred()) nb::raise_python_error();
    items_.push_back({dict, key, value ? nb::borrow(value) : nb::object()});
  }

  void add_sequence(const nb::object& sequence) {
    if (!PyList_Check(sequence.ptr()) && !PyTuple_Check(sequence.ptr())) throw nb::type_error("a list or a tuple");
    Sequence made{sequence, {}};
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence.ptr()); ++i)
      made.elements.push_back(nb::borrow(PySequence_Fast_GET_ITEM(sequence.ptr(), i)));
    sequences_.push_back(std::move(made));
  }

  // What a closure's cell holds.
  void add_cell(const nb::object& cell) {
    if (!PyCell_Check(cell.ptr())) throw nb::type_error("a cell");
    PyObject* value = PyCell_GET(cell.ptr());
    cells_.emplace_back(cell, value ? nb::borrow(value) : nb::object());
  }

  // What an attribute of an object is.
  void add_attribute(const nb::object& object, const nb::str& name) {
    attributes_.push_back({object, name, nb::steal(PyObject_GetAttr(object.ptr(), name.ptr()))});
    if (!attributes_.back().value.is_valid()) nb::raise_python_error();
  }

  // Its elements are those that it has now: writes are counted, and what is put in the place of `.data` lies elsewhere.
  void add_tensor(const nb::object& tensor) { tensors_.push_back({tensor, version_of(tensor), address_of(tensor)}); }

  void swap(Facts& other) { std::swap(*this, other); }

  template <typename Visit>
  int visit_all(Visit visit) const {
    for (const Dict& each : dicts_) {
      if (const int result = visit(each.dict.ptr())) return result;
      for (const auto& [key, value] : each.items) {
        if (const int result = visit(key.ptr())) return result;
        if (const int result = value.is_valid() ? visit(value.ptr()) : 0) return result;
      }
    }
    for (const Item& each : items_) {
      if (const int result = visit(each.dict.ptr())) return result;
      if (const int result = each.value.is_valid() ? visit(each.value.ptr()) : 0) return result;
    }
    for (const Sequence& each : sequences_) {
      if (const int result = visit(each.sequence.ptr())) return result;
      for (const nb::object& element : each.elements) {
        if (const int result = visit(element.ptr())) return result;
      }
    }
    for (const auto& [cell, value] : cells_) {
      if (const int result = visit(cell.ptr())) return result;
      if (const int result = value.is_valid() ? visit(value.ptr()) : 0) return result;
    }
    for (const Attribute& each : attributes_) {
      if (const int result = visit(each.object.ptr())) return result;
      if (const int result = visit(each.value.ptr())) return result;
    }
    for (const Tensor& each : tensors_) {
      if (const int result = visit(each.tensor.ptr())) return result;
    }
    return 0;
  }

  bool hold() const {
    for (const Dict& each : dicts_) {
      if (!holds(each)) return false;
    }
    for (const Item& each : items_) {
      PyObject* value = PyDict_GetItemWithError(each.dict.ptr(), each.key.ptr());
      if (!value && PyErr_Occurred()) nb::raise_python_error();
      if (value != each.value.ptr()) return false;
    }
    for (const Sequence& each : sequences_) {
      if (!holds(each)) return false;
    }
    for (const auto& [cell, value] : cells_) {
      if (PyCell_GET(cell.ptr()) != value.ptr()) return false;
    }
    for (const Attribute& each : attributes_) {
      const nb::object value = nb::steal(PyObject_GetAttr(each.object.ptr(), each.name.ptr()));
      if (!value.is_valid()) nb::raise_python_error();
      if (!value.is(each.value)) return false;
    }
    for (const Tensor& each : tensors_) {
      if (version_of(each.tensor) != each.version || address_of(each.tensor) != each.address) return false;
    }
    return true;
  }

 private:
  struct Dict {
    nb::dict dict;
    std::vector<std::pair<nb::object, nb::object>> items;  // no value = it is not compared
  };
  struct Item {
    nb::dict dict;
    nb::object key, value;
  };
  struct Attribute {
    nb::object object;
    nb::str name;
    nb::object value;
  };
  struct Tensor {
    nb::object tensor;
    long long version, address;
  };

  struct Sequence {
    nb::object sequence;
    std::vector<nb::object> elements;
  };

  static bool holds(const Dict& each) {
    if (PyDict_GET_SIZE(each.dict.ptr()) != static_cast<Py_ssize_t>(each.items.size())) return false;
    PyObject *key = nullptr, *value = nullptr;
    Py_ssize_t at = 0;
    for (const auto& [old_key, old_value] : each.items) {
      if (!PyDict_Next(each.dict.ptr(), &at, &key, &value) || key != old_key.ptr()) return false;
      if (old_value.is_valid() && value != old_value.ptr()) return false;
    }
    return true;
  }

  static bool holds(const Sequence& each) {
    if (PySequence_Fast_GET_SIZE(each.sequence.ptr()) != static_cast<Py_ssize_t>(each.elements.size())) return false;
    for (size_t i = 0; i < each.elements.size(); ++i) {
      if (PySequence_Fast_GET_ITEM(each.sequence.ptr(), static_cast<Py_ssize_t>(i)) != each.elements[i].ptr()) return false;
    }
    return true;
  }

  long long version_of(const nb::object& tensor) const {
    const nb::object version = nb::steal(PyObject_GetAttr(tensor.ptr(), version_.ptr()));
    if (!version.is_valid()) nb::raise_python_error();
    const long long number = PyLong_AsLongLong(version.ptr());
    if (number == -1 && PyErr_Occurred()) nb::raise_python_error();
    return number;
  }

  // 0 for tensors without memory of their own.
  long long address_of(const nb::object& tensor) const {
    const nb::object address = nb::steal(PyObject_CallMethodNoArgs(tensor.ptr(), address_.ptr()));
    if (!address.is_valid()) {
      if (!PyErr_ExceptionMatches(PyExc_RuntimeError)) nb::raise_python_error();
      PyErr_Clear();
      return 0;
    }
    const long long number = PyLong_AsLongLong(address.ptr());
    if (number == -1 && PyErr_Occurred()) nb::raise_python_error();
    return number;
  }

  nb::object version_, address_;
  std::vector<Dict> dicts_;
  std::vector<Item> items_;
  std::vector<Sequence> sequences_;
  std::vector<std::pair<nb::object, nb::object>> cells_;
  std::vector<Attribute> attributes_;
  std::vector<Tensor> tensors_;
};

int facts_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return nb::inst_ready(self) ? nb::inst_ptr<Facts>(self)->visit_all([&](PyObject* each) { return visit(each, arg); }) : 0;
}

int facts_clear(PyObject* self) {
  if (nb::inst_ready(self)) Facts().swap(*nb::inst_ptr<Facts>(self));
  return 0;
}

PyType_Slot facts_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(facts_traverse)},
                             {Py_tp_clear, reinterpret_cast<void*>(facts_clear)},
                             {0, nullptr}};

}  // namespace

void bind_facts(nb::module_& module) {
  nb::class_<Facts>(module, "Facts", nb::type_slots(facts_slots))
      .def(nb::init<>())
      .def("add_dict", &Facts::add_dict, nb::arg("dict"), nb::arg("keys"))
      .def("add_item", &Facts::add_item, nb::arg("dict"), nb::arg("key"))
      .def("add_sequence", &Facts::add_sequence, nb::arg("sequence"))
      .def("add_cell", &Facts::add_cell, nb::arg("cell"))
      .def("add_attribute", &Facts::add_attribute, nb::arg("object"), nb::arg("name"))
      .def("add_tensor", &Facts::add_tensor, nb::arg("tensor"))
      .def("hold", &Facts::hold);
}

}  // namespace ral::python
