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

// The number of a node is its place in the arrays. An object that one attribute alone holds is reached once: of others numbers are kept.
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
    int64_t last = open(std::move(root), true);
    while (!path_.empty()) {
      Frame& frame = path_.back();
      const KindAttributes& kind = kinds_[static_cast<size_t>(frame.kind)];
      if (frame.next == kind.fields.size()) {
        last = close();
        if (!path_.empty()) take_child(last);
        continue;
      }
      nb::object child = std::move(waiting_[frame.first_child + frame.next]);
      if (child.is_none()) fail(frame, kind.fields[frame.next].second, "it is None; a node of this kind needs a child there", RAL_ERROR_MISSING);
      // of a class's attribute there may be a cycle with one owner: it is deep before it is endless
      const bool kept = Py_REFCNT(child.ptr()) > kOwnerAndWalk || path_.size() > kDeep;
      int64_t number = kept ? numbers_.at(child.ptr()) : ObjectNumbers::kNew;
      if (number == ObjectNumbers::kOpen) cycle(child.ptr());
      if (number == ObjectNumbers::kNew) number = open(std::move(child), kept);
      if (number >= 0) take_child(number);
    }
    return last;
  }

  FlatStructure take() { return std::move(flat_); }

 private:
  static constexpr Py_ssize_t kOwnerAndWalk = 2;
  static constexpr size_t kDeep = 1 << 10;

  struct Frame {
    nb::object object;
    int32_t kind;
    bool kept;  // its number is in `numbers_`
    size_t next;  // field
    size_t first_child;  // in `waiting_`
  };

  // The object's kind; `last`: the value of the attribute that was asked for last.
  int32_t kind_of(PyObject* object, nb::object& last, const nb::object*& asked) {
    int32_t at = 0;
    while (at >= 0) {
      const Question& question = (*asks_)[static_cast<size_t>(at)];
      asked = &question.attribute;
      last = attribute(object, question.attribute);
      int answer = last.is_none() ? 1 : 0;
      if (!question.is_none) {
        answer = last.ptr() == Py_True ? 1 : last.ptr() == Py_False ? 0 : PyObject_IsTrue(last.ptr());
        if (answer < 0) nb::raise_python_error();
      }
      at = answer ? question.yes : question.no;
    }
    return ~at;
  }

  // Begins with a node that has no number yet. Its number where it has no children, else kOpen.
  int64_t open(nb::object object, bool kept) {
    if (Py_TYPE(object.ptr()) != last_type_) {
      own_ = check_(Py_TYPE(object.ptr()), questions_);
      asks_ = own_ ? own_.get() : &questions_;
      last_type_ = Py_TYPE(object.ptr());
    }
    nb::object last;
    const nb::object* asked = nullptr;
    const int32_t number = questions_.empty() ? 0 : kind_of(object.ptr(), last, asked);
    const KindAttributes& kind = kinds_[static_cast<size_t>(number)];
    Frame frame{std::move(object), number, kept, 0, waiting_.size()};
    if (kind.fields.empty()) return finish(frame);
    for (const auto& [field, name] : kind.fields) {
      waiting_.push_back(asked && asked->ptr() == name.ptr() ? last : attribute(frame.object.ptr(), name));
      __builtin_prefetch(waiting_.back().ptr());
    }
    if (kept) numbers_.at(frame.object.ptr()) = ObjectNumbers::kOpen;
    path_.push_back(std::move(frame));
    return ObjectNumbers::kOpen;
  }

  void take_child(int64_t number) {
    ++path_.back().next;
    pending_.push_back(number);
  }

  // All children of the last node of the path have numbers: it gets one, too.
  int64_t close() {
    Frame frame = std::move(path_.back());
    path_.pop_back();
    waiting_.resize(frame.first_child);
    return finish(frame);
  }

  int64_t finish(Frame& frame) {
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
    if (frame.kept) {
      numbers_.at(frame.object.ptr()) = number;
      held_.push_back(std::move(frame.object));
    }
    return number;
  }

  int64_t integer(const Frame& frame, const nb::object& name) {
    nb::object value = attribute(frame.object.ptr(), name);
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
    raise(status, std::string(Py_TYPE(frame.object.ptr())->tp_name) + "." + text(name) + ": " + what);
  }

  [[noreturn]] void cycle(PyObject* end) {
    constexpr size_t kShown = 8;
    auto at = std::find_if(path_.begin(), path_.end(), [&](const Frame& frame) { return frame.object.ptr() == end; });
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
  std::shared_ptr<const std::vector<Question>> own_;
  const std::vector<Question>* asks_ = &questions_;  // as its type answers them
  ObjectNumbers numbers_;
  std::vector<Frame> path_;
  std::vector<nb::object> waiting_;  // children of all nodes on the path
  std::vector<int64_t> pending_;     // numbers of children, of all nodes on the path
  std::vector<nb::object> held_;     // addresses in `numbers_` stay those of these objects
  FlatStructure flat_;
};

}  // namespace

bool TypeCheck::Known::holds(unsigned int now) const {
  const auto same = [](const auto& each) { return PyFunction_GetCode(each.first.ptr()) == each.second.ptr(); };
  return now != 0 && version == now && std::all_of(getters.begin(), getters.end(), same);
}

std::shared_ptr<const std::vector<Question>> TypeCheck::operator()(PyTypeObject* type, const std::vector<Question>& questions) {
  if (check_.is_none()) return nullptr;
  const nb::object held = nb::borrow(reinterpret_cast<PyObject*>(type));
  const auto find = [&] { return std::find_if(known_.begin(), known_.end(), [&](const Known& each) { return each.type.is(held); }); };
  const unsigned int version = PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG) ? type->tp_version_tag : 0;
  auto known = find();
  if (known != known_.end() && known->holds(version)) return known->questions;
  Known made{held, version, {}, nullptr};
  auto own = std::make_shared<std::vector<Question>>(questions);
  const auto getters = nb::cast<nb::dict>(check_(held));
  for (const auto& [name, answer] : getters) made.add(nb::borrow(name), nb::cast<nb::tuple>(answer), *own);
  made.questions = own;
  known = find();
  if (known == known_.end())
    known_.push_back(std::move(made));
  else
    *known = std::move(made);
  return own;
}

// getter: (function, its code, the attribute that it compares with None, or None, whether with `is not`).
void TypeCheck::Known::add(const nb::object& name, const nb::tuple& getter, std::vector<Question>& own) {
  getters.emplace_back(getter[0], getter[1]);
  if (getter[2].is_none()) return;
  PyObject* text = nb::object(getter[2]).release().ptr();
  PyUnicode_InternInPlace(&text);
  const nb::object attribute = nb::steal(text);
  for (Question& each : own) {
    if (each.is_none || each.attribute.not_equal(name)) continue;
    if (nb::cast<bool>(getter[3])) std::swap(each.yes, each.no);
    each.attribute = attribute;
    each.is_none = true;
  }
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
