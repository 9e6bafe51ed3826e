#include "python/object_walk.h"

#include <algorithm>

#include "python/object_numbers.h"
#include "python/python_tensor.h"
#include "ral.h"

namespace ral::python {

namespace {

nb::object attribute(PyObject* object, const nb::object& name) {
  PyObject* found = PyObject_GetAttr(object, name.ptr());
  if (!found) nb::raise_python_error();
  return nb::steal(found);
}

std::string text(const nb::object& name) { return nb::str(name).c_str(); }

// Integers of NumPy, too. A tensor without dims is none, nor is a bool, which indexes otherwise.
bool is_integral(const nb::object& value) {
  return !PyBool_Check(value.ptr()) && nb::isinstance(value, nb::module_::import_("numbers").attr("Integral"));
}

class Walk {
 public:
  Walk(const std::vector<Question>& questions, const std::vector<KindAttributes>& kinds, size_t fields, size_t columns, TypeCheck& check)
      : questions_(questions), kinds_(kinds), check_(check) {
    flat_.children.resize(fields);
    flat_.columns.resize(columns);
  }

  int64_t node_of(nb::object root) {
    const int64_t known = numbers_.at(root.ptr());
    if (known >= 0) return known;
    open(std::move(root));
    int64_t last = ObjectNumbers::kNew;
    while (!path_.empty()) {
      Frame& frame = path_.back();
      const KindAttributes& kind = kinds_[static_cast<size_t>(frame.kind)];
      if (frame.next == kind.fields.size()) {
        last = close();
        if (!path_.empty()) take_child(last);
        continue;
      }
      nb::object child = attribute(frame.object, kind.fields[frame.next].second);
      if (child.is_none()) fail(frame, kind.fields[frame.next].second, "it is None; a node of this kind needs a child there", RAL_ERROR_MISSING);
      const int64_t number = numbers_.at(child.ptr());
      if (number == ObjectNumbers::kOpen) cycle(child.ptr());
      if (number == ObjectNumbers::kNew)
        open(std::move(child));
      else
        take_child(number);
    }
    return last;
  }

  FlatStructure take() { return std::move(flat_); }

 private:
  struct Frame {
    PyObject* object;
    int32_t kind;
    size_t next;  // field
  };

  int32_t kind_of(PyObject* object) {
    int32_t at = 0;
    while (at >= 0) {
      const Question& question = questions_[static_cast<size_t>(at)];
      const nb::object value = attribute(object, question.attribute);
      int answer = value.is_none() ? 1 : 0;
      if (!question.is_none) {
        answer = value.ptr() == Py_True ? 1 : value.ptr() == Py_False ? 0 : PyObject_IsTrue(value.ptr());
        if (answer < 0) nb::raise_python_error();
      }
      at = answer ? question.yes : question.no;
    }
    return ~at;
  }

  void open(nb::object object) {
    if (Py_TYPE(object.ptr()) != last_type_) {
      check_(Py_TYPE(object.ptr()));
      last_type_ = Py_TYPE(object.ptr());
    }
    const int32_t kind = questions_.empty() ? 0 : kind_of(object.ptr());
    numbers_.at(object.ptr()) = ObjectNumbers::kOpen;
    path_.push_back({object.ptr(), kind, 0});
    held_.push_back(std::move(object));
  }

  void take_child(int64_t number) {
    ++path_.back().next;
    pending_.push_back(number);
  }

  // All children of the last node of the path have numbers: it gets one, too.
  int64_t close() {
    const Frame frame = path_.back();
    const KindAttributes& kind = kinds_[static_cast<size_t>(frame.kind)];
    for (auto& column : flat_.children) column.push_back(-1);
    for (auto& column : flat_.columns) column.push_back(0);
    for (size_t i = kind.fields.size(); i-- > 0;) {
      flat_.children[static_cast<size_t>(kind.fields[i].first)].back() = pending_.back();
      pending_.pop_back();
    }
    for (const auto& [column, name] : kind.columns) flat_.columns[static_cast<size_t>(column)].back() = integer(frame, name);
    const auto number = static_cast<int64_t>(flat_.kinds.size());
    flat_.kinds.push_back(frame.kind);
    numbers_.at(frame.object) = number;
    path_.pop_back();
    return number;
  }

  int64_t integer(const Frame& frame, const nb::object& name) {
    nb::object value = attribute(frame.object, name);
    if (!PyLong_CheckExact(value.ptr())) {
      if (!is_integral(value)) fail(frame, name, std::string("it is a ") + Py_TYPE(value.ptr())->tp_name + ", not an integer");
      value = nb::steal(PyNumber_Index(value.ptr()));
      if (!value.ptr()) nb::raise_python_error();
    }
    int overflow = 0;
    const int64_t number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
    if (overflow) fail(frame, name, "it does not fit 64 bits");
    return number;
  }

  [[noreturn]] void fail(const Frame& frame, const nb::object& name, const std::string& what, ral_status status = RAL_ERROR_NODE_KIND) {
    raise(status, std::string(Py_TYPE(frame.object)->tp_name) + "." + text(name) + ": " + what);
  }

  [[noreturn]] void cycle(PyObject* end) {
    constexpr size_t kShown = 8;
    auto at = std::find_if(path_.begin(), path_.end(), [&](const Frame& frame) { return frame.object == end; });
    std::string path = Py_TYPE(end)->tp_name;
    for (size_t shown = 0; at != path_.end(); ++at, ++shown) {
      if (shown == kShown) {
        path += " ...";
        break;
      }
      path += "." + text(kinds_[static_cast<size_t>(at->kind)].fields[at->next].second);
    }
    raise(RAL_ERROR_CYCLE, "a cycle: " + path + " is the object itself");
  }

  const std::vector<Question>& questions_;
  const std::vector<KindAttributes>& kinds_;
  TypeCheck& check_;
  PyTypeObject* last_type_ = nullptr;  // of the last object that was opened: its check has passed
  ObjectNumbers numbers_;
  std::vector<Frame> path_;
  std::vector<int64_t> pending_;    // numbers of children, of all nodes on the path
  std::vector<nb::object> held_;    // addresses stay those of these objects
  FlatStructure flat_;
};

}  // namespace

void TypeCheck::operator()(PyTypeObject* type) {
  if (check_.is_none()) return;
  auto known = std::find_if(known_.begin(), known_.end(), [&](const Known& each) { return each.type.ptr() == reinterpret_cast<PyObject*>(type); });
  const unsigned int version = PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG) ? type->tp_version_tag : 0;
  if (known != known_.end() && version != 0 && known->version == version) return;
  const nb::object held = nb::borrow(reinterpret_cast<PyObject*>(type));
  check_(held);
  known = std::find_if(known_.begin(), known_.end(), [&](const Known& each) { return each.type.ptr() == held.ptr(); });
  if (known == known_.end()) known = known_.insert(known_.end(), Known{held, 0});
  known->version = version;
}

FlatStructure walk_objects(const nb::list& roots, const std::vector<Question>& questions, const std::vector<KindAttributes>& kinds,
                           size_t fields, size_t columns, TypeCheck& check) {
  Walk walk(questions, kinds, fields, columns, check);
  std::vector<int64_t> numbers;
  for (const nb::handle root : roots) numbers.push_back(walk.node_of(nb::borrow(root)));
  FlatStructure flat = walk.take();
  flat.roots = std::move(numbers);
  return flat;
}

}  // namespace ral::python
