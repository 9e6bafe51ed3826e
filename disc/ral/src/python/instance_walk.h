// From the Python objects that instances of a skeleton are made of to the columns of its slots.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/object_walk.h"
#include "tasks/code.h"

namespace ral::python {

// What instances are. columns: of each slot; nodes: by their numbers; shared: some node was reached twice.
struct FlatInstances {
  struct Column {
    std::vector<int64_t> integers;  // numbers, nodes, offsets
    std::vector<double> reals;
    std::vector<uint8_t> truths;
    nb::list tensors;
  };
  std::vector<Column> columns;
  std::vector<nb::object> nodes;
  bool shared = false;
};

// Reads instances. Takes what it was made for alone, by exact types; says why it takes others not.
class InstanceReader {
 public:
  using Fields = std::vector<std::tuple<std::string, int32_t, int32_t>>;
  using Classes = std::vector<std::tuple<nb::object, Fields, std::vector<std::pair<std::string, nb::object>>>>;

  // classes: of nodes, and of each the attributes that it holds, or a dict's keys, with their slots and those that say whether a node has
  // them (-1: all have), and the functions of its methods. tensor: the class of tensors. check: as of TypeCheck.
  // choices: of each slot, as the code has them: texts or other objects.
  InstanceReader(const Classes& classes, nb::object tensor, nb::object check, const std::vector<nb::list>& choices);
  InstanceReader(const InstanceReader&) = delete;

  // Why instances are none of the code's; empty where they are read. At most `most` nodes.
  std::string read(const tasks::Code& code, const nb::list& instances, int64_t most, FlatInstances& to);

 private:
  friend class InstanceWalk;
  struct Field {
    nb::object name;
    int32_t slot, presence;
  };
  struct NodeClass {
    nb::object type;
    std::vector<Field> fields;     // that it has
    std::vector<int32_t> without;  // slots of what other classes have
    std::vector<std::pair<nb::object, nb::object>> methods;
    bool mapping;
  };

  // Of a slot: numbers by texts; other objects by identity.
  struct Choices {
    nb::dict texts;
    std::vector<nb::object> objects;
  };

  std::vector<NodeClass> classes_;
  std::vector<Choices> choices_;
  nb::object tensor_;
  TypeCheck check_;
};

}  // namespace ral::python
