// What instances of a skeleton gave, as Python objects.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "python/instance_walk.h"
#include "tasks/machine.h"

namespace ral::python {

// Makes the results that the model's code would: new lists and tensors, and the objects that instances and the code hold.
class ResultObjects {
 public:
  // flat: what was read of the instances. objects: the constant objects of the code. fetch: called with the number of a class of rows and
  // their bytes, [count, bytes]; returns a list of tensors.
  ResultObjects(const tasks::Machine& machine, const tasks::Code& code, const std::vector<tasks::Table>& tables, const FlatInstances& flat,
                const nb::list& objects, nb::object fetch);

  // Whether the value can be made, and everything it reads was computed; notes its rows.
  bool take(const tasks::Value& value, int depth = 0);
  // Gets all rows that were noted.
  void fetch();
  nb::object make(const tasks::Value& value);

 private:
  bool take_row(int64_t number);
  nb::object given(const tasks::Row& row) const;
  nb::object tensor(int64_t number);

  const tasks::Machine& machine_;
  const tasks::Code& code_;
  const std::vector<tasks::Table>& tables_;
  const FlatInstances& flat_;
  const nb::list& objects_;
  nb::object fetch_;
  std::vector<std::vector<int64_t>> places_;  // of each class
  std::vector<nb::list> fetched_;
  std::vector<int64_t> constants_;            // how many rows of each class are constants
  std::vector<int64_t> fetched_place_;        // of each row among those of its class that are fetched; -1: it is not
  std::vector<bool> handed_;                  // of each row whether a result has its tensor
  std::unordered_map<int64_t, nb::object> lists_;
  std::unordered_map<int64_t, nb::object> dicts_;
};

}  // namespace ral::python
