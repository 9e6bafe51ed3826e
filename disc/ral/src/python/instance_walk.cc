#include "python/instance_walk.h"

#include <algorithm>
#include <utility>

#include "python/object_numbers.h"

namespace ral::python {

namespace {

using tasks::Code;
using tasks::Slot;
using tasks::SlotKind;

struct Refused {
  std::string why;
};

}  // namespace

class InstanceWalk {
 public:
  InstanceWalk(InstanceReader& reader, const Code& code, int64_t most, FlatInstances& to) : reader_(reader), code_(code), most_(most), to_(to) {
    to_.columns.resize(code.slots.size());
    for (size_t i = 0; i < code.slots.size(); ++i) {
      if (code.slots[i].kind == SlotKind::kItems) to_.columns[i].integers.push_back(0);
    }
  }

  void run(const nb::list& instances) {
    for (const nb::handle each : instances) write(code_.root, nb::borrow(each));
    for (size_t at = 0; at < to_.nodes.size(); ++at) node(to_.nodes[at].ptr());  // grows by what each leads to
  }

 private:
  [[noreturn]] static void refuse(PyObject* value, const char* wanted) {
    throw Refused{std::string("an instance has a ") + Py_TYPE(value)->tp_name + " where instances had " + wanted};
  }

  void node(PyObject* object) {
    const InstanceReader::NodeClass& known = class_of(object);
    for (const auto& [name, slot, presence] : known.fields) {
      nb::object found = nb::steal(known.mapping ? PyDict_GetItemWithError(object, name.ptr()) : PyObject_GetAttr(object, name.ptr()));
      if (known.mapping) Py_XINCREF(found.ptr());
      if (!found.is_valid()) {
        const bool missing = known.mapping ? !PyErr_Occurred() : PyErr_ExceptionMatches(PyExc_AttributeError) != 0;
        PyErr_Clear();
        if (!missing || presence < 0) throw Refused{std::string("a ") + Py_TYPE(object)->tp_name + " has no '" + nb::str(name).c_str() + "'"};
        column(presence).truths.push_back(0);
        write_nothing(slot);
        continue;
      }
      if (presence >= 0) column(presence).truths.push_back(1);
      write(slot, std::move(found));
    }
    for (const auto& [name, function] : known.methods) {
      const nb::object found = nb::steal(PyObject_GetAttr(object, name.ptr()));
      if (!found.is_valid()) PyErr_Clear();
      if (!found.is_valid() || !PyMethod_Check(found.ptr()) || PyMethod_GET_FUNCTION(found.ptr()) != function.ptr())
        throw Refused{std::string("a ") + Py_TYPE(object)->tp_name + " has another method '" + nb::str(name).c_str() + "' than it had"};
    }
    for (const int32_t slot : known.without) write_nothing(slot);
    if (code_.kind_slot >= 0) column(code_.kind_slot).integers.push_back(&known - reader_.classes_.data());
  }

  const InstanceReader::NodeClass& class_of(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    if (last_ && last_->type.ptr() == reinterpret_cast<PyObject*>(type)) return *last_;
    const auto& classes = reader_.classes_;
    const auto found = std::find_if(classes.begin(), classes.end(), [&](const auto& each) { return each.type.ptr() == reinterpret_cast<PyObject*>(type); });
    if (found == classes.end()) refuse(object, "nodes of other classes");
    reader_.check_(type, {});
    last_ = &*found;
    return *last_;
  }

  // The number of a node. An object that only its attribute or list holds, besides `object`, cannot be reached again.
  int64_t number_of(nb::object object) {
    if (static_cast<int64_t>(to_.nodes.size()) >= most_) throw Refused{"instances have more than " + std::to_string(most_) + " nodes"};
    const auto next = static_cast<int64_t>(to_.nodes.size());
    if (Py_REFCNT(object.ptr()) > kOwnerAndWalk) {
      int64_t& number = numbers_.at(object.ptr());
      if (number >= 0) {
        to_.shared = true;
        return number;
      }
      number = next;
    }
    to_.nodes.push_back(std::move(object));
    return next;
  }

  FlatInstances::Column& column(int32_t slot) { return to_.columns[static_cast<size_t>(slot)]; }

  static int64_t integer(PyObject* value, const char* wanted) {
    if (!PyLong_CheckExact(value)) refuse(value, wanted);
    int overflow = 0;
    const int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow) throw Refused{"an instance has an integer of more than 64 bits"};
    return number;
  }

  int64_t choice(int32_t slot, PyObject* given) const {
    const InstanceReader::Choices& known = reader_.choices_[static_cast<size_t>(slot)];
    if (!known.objects.empty()) {
      const auto found = std::find_if(known.objects.begin(), known.objects.end(), [given](const nb::object& each) { return each.ptr() == given; });
      if (found == known.objects.end()) refuse(given, "others");
      return found - known.objects.begin();
    }
    if (!PyUnicode_CheckExact(given)) refuse(given, "a text");
    PyObject* found = PyDict_GetItemWithError(known.texts.ptr(), given);
    if (!found && PyErr_Occurred()) nb::raise_python_error();
    return found ? PyLong_AsLongLong(found) : tasks::kOtherChoice;
  }

  void write(int32_t number, nb::object value) {
    const Slot& slot = code_.slots[static_cast<size_t>(number)];
    PyObject* given = value.ptr();
    switch (slot.kind) {
      case SlotKind::kNode:
        column(number).integers.push_back(value.is_none() ? -1 : number_of(std::move(value)));
        return;
      case SlotKind::kInteger: column(number).integers.push_back(integer(given, "an int")); return;
      case SlotKind::kOptional: {
        const int64_t found = value.is_none() ? -1 : integer(given, "an int or None");
        if (found < 0 && !value.is_none()) throw Refused{"an instance has a negative number where others had None"};
        column(number).integers.push_back(found);
        return;
      }
      case SlotKind::kTruth:
        if (!PyBool_Check(given)) refuse(given, "a bool");
        column(number).truths.push_back(given == Py_True);
        return;
      case SlotKind::kReal:
        if (!PyFloat_CheckExact(given)) refuse(given, "a float");
        column(number).reals.push_back(PyFloat_AS_DOUBLE(given));
        return;
      case SlotKind::kTensor:
        if (reinterpret_cast<PyObject*>(Py_TYPE(given)) != reader_.tensor_.ptr()) refuse(given, "a tensor");
        column(number).tensors.append(value);
        return;
      case SlotKind::kItems: {
        if (!PyList_CheckExact(given)) refuse(given, "a list");
        const Py_ssize_t count = PyList_GET_SIZE(given);
        for (Py_ssize_t i = 0; i < count; ++i) write(slot.parts[0], nb::borrow(PyList_GET_ITEM(given, i)));
        auto& offsets = column(number).integers;
        offsets.push_back(offsets.back() + count);
        return;
      }
      case SlotKind::kParts:
        if (!PyTuple_CheckExact(given) || PyTuple_GET_SIZE(given) != static_cast<Py_ssize_t>(slot.parts.size())) refuse(given, "a tuple of another length");
        for (size_t i = 0; i < slot.parts.size(); ++i) write(slot.parts[i], nb::borrow(PyTuple_GET_ITEM(given, static_cast<Py_ssize_t>(i))));
        return;
      case SlotKind::kNothing:
        if (!value.is_none()) refuse(given, "None");
        return;
      case SlotKind::kChoice: column(number).integers.push_back(value.is_none() ? -1 : choice(number, given)); return;
    }
  }

  // A position of an attribute that the node's class has not.
  void write_nothing(int32_t number) {
    const Slot& slot = code_.slots[static_cast<size_t>(number)];
    FlatInstances::Column& to = column(number);
    switch (slot.kind) {
      case SlotKind::kItems: to.integers.push_back(to.integers.back()); return;
      case SlotKind::kParts:
        for (const int32_t part : slot.parts) write_nothing(part);
        return;
      case SlotKind::kTensor: to.tensors.append(nb::none()); return;
      case SlotKind::kTruth: to.truths.push_back(0); return;
      case SlotKind::kReal: to.reals.push_back(0); return;
      case SlotKind::kNothing: return;
      default: to.integers.push_back(slot.kind == SlotKind::kInteger ? 0 : -1);
    }
  }

  static constexpr Py_ssize_t kOwnerAndWalk = 2;

  InstanceReader& reader_;
  const Code& code_;
  const int64_t most_;
  FlatInstances& to_;
  const InstanceReader::NodeClass* last_ = nullptr;  // of the last node: its check has passed
  ObjectNumbers numbers_;
};

InstanceReader::InstanceReader(const Classes& classes, nb::object tensor, nb::object check,
                               const std::vector<nb::list>& choices)
    : tensor_(std::move(tensor)), check_(std::move(check)) {
  for (const nb::list& each : choices) {
    Choices& made = choices_.emplace_back();
    for (const nb::handle value : each) {
      if (nb::isinstance<nb::str>(value) && made.objects.empty())
        made.texts[value] = nb::int_(nb::len(made.texts));
      else
        made.objects.push_back(nb::borrow(value));
    }
  }
  std::vector<int32_t> all;
  const auto interned = [](const std::string& name) { return nb::steal(PyUnicode_InternFromString(name.c_str())); };
  for (const auto& [type, fields, methods] : classes) {
    NodeClass& made = classes_.emplace_back(NodeClass{type, {}, {}, {}, type.ptr() == reinterpret_cast<PyObject*>(&PyDict_Type)});
    for (const auto& [name, slot, presence] : fields) {
      made.fields.push_back({interned(name), slot, presence});
      for (const int32_t each : {slot, presence}) {
        if (each >= 0 && std::find(all.begin(), all.end(), each) == all.end()) all.push_back(each);
      }
    }
    for (const auto& [name, function] : methods) made.methods.emplace_back(interned(name), function);
  }
  for (NodeClass& each : classes_) {
    for (const int32_t slot : all) {
      if (std::none_of(each.fields.begin(), each.fields.end(), [&](const Field& field) { return field.slot == slot || field.presence == slot; })) each.without.push_back(slot);
    }
  }
}

std::string InstanceReader::read(const Code& code, const nb::list& instances, int64_t most, FlatInstances& to) {
  try {
    InstanceWalk(*this, code, most, to).run(instances);
  } catch (const Refused& refused) {
    return refused.why;
  }
  return {};
}

}  // namespace ral::python
