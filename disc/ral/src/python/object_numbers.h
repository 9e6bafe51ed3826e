// Which number a Python object has that a walk has reached.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ral::python {

// Objects by address → the number of their node. Open addressing; the objects are held by the walk.
class ObjectNumbers {
 public:
  static constexpr int64_t kNew = -1, kOpen = -2;  // not reached yet; on the path that is walked

  ObjectNumbers() : slots_(64, {nullptr, kNew}) {}

  // Where the object's number is; valid until the next call.
  int64_t& at(PyObject* object) {
    if (2 * used_ > slots_.size()) grow();
    Slot& slot = find(object);
    if (!slot.object) {
      slot.object = object;
      ++used_;
    }
    return slot.number;
  }

 private:
  struct Slot {
    PyObject* object;
    int64_t number;
  };

  Slot& find(PyObject* object) {
    const size_t mask = slots_.size() - 1;
    auto hash = reinterpret_cast<uintptr_t>(object) >> 4;
    hash ^= hash >> 17;
    for (size_t i = hash & mask;; i = (i + 1) & mask) {
      if (!slots_[i].object || slots_[i].object == object) return slots_[i];
    }
  }

  void grow() {
    std::vector<Slot> old(2 * slots_.size(), {nullptr, kNew});
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.object) find(slot.object) = slot;
    }
  }

  std::vector<Slot> slots_;
  size_t used_ = 0;
};

}  // namespace ral::python
