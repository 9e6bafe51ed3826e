#include "python/site.h"

#include <cstring>
#include <memory>
#include <new>
#include <unordered_map>
#include <vector>

namespace ral::python {

namespace {

constexpr int kDeepest = 4;     // lists inside of each other
constexpr size_t kEntries = 256;  // that are learnt: a site whose constants always differ is not worth more memory
constexpr uintptr_t kIndex = 1, kList = 2, kTuple = 3;

// What was learnt of calls with equal tokens. It holds what the tokens name by identity: no other object gets its address.
struct Entry {
  std::vector<uintptr_t> tokens;
  std::vector<nb::object> others;
  nb::object kind;
};

struct Known {
  std::unordered_multimap<size_t, Entry> entries;
  const Entry* last = nullptr;  // that was found
  uint64_t indices = 0;         // bits of the places of arguments that only index
};

struct SiteObject {
  PyObject_HEAD
  Known* known;
};

PyTypeObject* site_type = nullptr;

Known& known_of(PyObject* self) { return *reinterpret_cast<SiteObject*>(self)->known; }

bool add_token(Given& given, uintptr_t token) {
  if (given.token_count == Given::kMost) return false;
  given.tokens[given.token_count++] = token;
  return true;
}

// False for a call that has no place in Given. Rows and other objects are borrowed: the arguments hold them.
bool read(PyObject* value, PyTypeObject* row, Given& given, int depth) {
  if (Py_TYPE(value) == row) {
    auto* found = reinterpret_cast<RowObject*>(value);
    if (given.row_count == Given::kMost) return false;
    given.rows[given.row_count++] = found;
    return add_token(given, reinterpret_cast<uintptr_t>(found->kind) | 1);  // no other object has an odd address
  }
  if (PyList_CheckExact(value) || PyTuple_CheckExact(value)) {
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(value);
    if (depth == kDeepest || !add_token(given, PyList_CheckExact(value) ? kList : kTuple) || !add_token(given, static_cast<uintptr_t>(size)))
      return false;
    for (Py_ssize_t i = 0; i < size; ++i) {
      if (!read(PySequence_Fast_GET_ITEM(value, i), row, given, depth + 1)) return false;
    }
    return true;
  }
  if (given.other_count == Given::kMost) return false;
  given.others[given.other_count++] = value;
  return add_token(given, reinterpret_cast<uintptr_t>(value));
}

bool read_index(PyObject* value, Given& given) {
  int overflow = 0;
  const int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow);
  if (overflow || given.value_count == Given::kMost) return false;
  given.values[given.value_count++] = number;
  return add_token(given, kIndex);
}

bool read_all(PyObject* arguments, PyTypeObject* row, uint64_t indices, Given& given) {
  const Py_ssize_t count = PyTuple_GET_SIZE(arguments);
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* value = PyTuple_GET_ITEM(arguments, i);
    const bool index = PyLong_CheckExact(value) && i < 64 && (indices >> i & 1);
    if (!(index ? read_index(value, given) : read(value, row, given, 0))) return false;
  }
  return true;
}

size_t hash_of(const Given& given) {
  size_t hash = given.token_count;
  for (size_t i = 0; i < given.token_count; ++i) {
    hash = (hash ^ (given.tokens[i] >> 4)) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  }
  return hash;
}

bool is_of(const Entry& entry, const Given& given) {
  return entry.tokens.size() == given.token_count &&
         std::memcmp(entry.tokens.data(), given.tokens, given.token_count * sizeof(uintptr_t)) == 0;
}

PyObject* site_new(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = type->tp_alloc(type, 0);
  if (!self) return nullptr;
  reinterpret_cast<SiteObject*>(self)->known = new (std::nothrow) Known;
  if (!reinterpret_cast<SiteObject*>(self)->known) {
    Py_DECREF(self);
    return PyErr_NoMemory();
  }
  return self;
}

int site_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!reinterpret_cast<SiteObject*>(self)->known) return 0;
  for (const auto& [hash, entry] : known_of(self).entries) {
    for (const nb::object& each : entry.others) Py_VISIT(each.ptr());
    Py_VISIT(entry.kind.ptr());
  }
  return 0;
}

int site_clear(PyObject* self) {
  if (!reinterpret_cast<SiteObject*>(self)->known) return 0;
  decltype(Known::entries) old;  // goes when nothing refers to it
  known_of(self).last = nullptr;
  old.swap(known_of(self).entries);
  return 0;
}

void site_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  site_clear(self);
  delete reinterpret_cast<SiteObject*>(self)->known;
  type->tp_free(self);
  Py_DECREF(type);
}

PyType_Slot site_slots[] = {{Py_tp_new, reinterpret_cast<void*>(site_new)},
                            {Py_tp_traverse, reinterpret_cast<void*>(site_traverse)},
                            {Py_tp_clear, reinterpret_cast<void*>(site_clear)},
                            {Py_tp_dealloc, reinterpret_cast<void*>(site_dealloc)},
                            {0, nullptr}};
PyType_Spec site_spec = {"disc.ral._ral.Site", sizeof(SiteObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE, site_slots};

void check_site(nb::handle site) {
  if (!is_site(site.ptr())) throw nb::type_error("not a Site");
}

// From now on calls with such arguments are of this kind. indices: places of arguments whose integers only index. named: says of a type
// whether its objects may be named by identity: equal ones make equal kinds, and they do not change.
void learn(nb::handle site, nb::handle row, const nb::tuple& arguments, nb::handle kind, uint64_t indices, const nb::callable& named) {
  check_site(site);
  if (!PyType_Check(row.ptr()) || !PyObject_TypeCheck(kind.ptr(), kind_type)) throw nb::type_error("learn takes a class of rows and a Kind");
  Known& known = known_of(site.ptr());
  if (known.indices != indices) site_clear(site.ptr());
  known.indices = indices;
  Given given;
  if (known.entries.size() >= kEntries || !read_all(arguments.ptr(), reinterpret_cast<PyTypeObject*>(row.ptr()), indices, given)) return;
  Entry entry{{given.tokens, given.tokens + given.token_count}, {}, nb::borrow(kind)};
  for (size_t i = 0; i < given.other_count; ++i) entry.others.push_back(nb::borrow(given.others[i]));
  for (const nb::object& each : entry.others) {
    if (!nb::cast<bool>(named(nb::handle(reinterpret_cast<PyObject*>(Py_TYPE(each.ptr())))))) return;
  }
  known.entries.emplace(hash_of(given), std::move(entry));
}

}  // namespace

KindObject* find_kind(PyObject* site, PyTypeObject* row, PyObject* arguments, Given& given) {
  Known& known = known_of(site);
  if (known.entries.empty() || !read_all(arguments, row, known.indices, given)) return nullptr;
  if (!known.last || !is_of(*known.last, given)) {
    known.last = nullptr;
    const auto [begin, end] = known.entries.equal_range(hash_of(given));
    for (auto at = begin; at != end && !known.last; ++at) {
      if (is_of(at->second, given)) known.last = &at->second;
    }
  }
  return known.last ? reinterpret_cast<KindObject*>(known.last->kind.ptr()) : nullptr;
}

bool is_site(PyObject* object) { return PyObject_TypeCheck(object, site_type); }

void bind_sites(nb::module_& module) {
  PyObject* made = PyType_FromSpec(&site_spec);
  if (!made) nb::raise_python_error();
  site_type = reinterpret_cast<PyTypeObject*>(made);
  module.attr("Site") = nb::borrow(made);
  module.def("learn_call", &learn, nb::arg("site"), nb::arg("row"), nb::arg("arguments"), nb::arg("kind"), nb::arg("indices"), nb::arg("named"));
  module.def("forget_calls", [](nb::handle site) {
    check_site(site);
    site_clear(site.ptr());
  }, nb::arg("site"));
}

}  // namespace ral::python
