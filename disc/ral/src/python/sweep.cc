#include "python/sweep.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "python/python_tensor.h"
#include "ral.h"

namespace ral::python {

namespace {

namespace nb = nanobind;

int32_t size_of(const auto& list) { return static_cast<int32_t>(list.size()); }

class Sweep {
 public:
  using Numbers = nb::ndarray<const int64_t, nb::c_contig, nb::device::cpu>;
  using Values = std::vector<std::tuple<int32_t, int32_t, int32_t, int32_t, int32_t>>;  // of ral_sweep_value
  using Block = std::tuple<nb::object, Values, Values, Values, int32_t>;                // `_ral.Context`, inputs, results, needed, vectors

  explicit Sweep(const std::vector<Block>& blocks) {
    for (const auto& [context, inputs, results, needed, vectors] : blocks) {
      contexts_.push_back(context);
      const nb::capsule handle = nb::cast<nb::capsule>(context.attr("handle")());
      const Kept &first = keep(inputs), &second = keep(results), &third = keep(needed);
      blocks_.push_back({static_cast<ral_context*>(handle.data()), first.data(), second.data(), third.data(), size_of(first), size_of(second),
                         size_of(third), vectors});
    }
  }
  Sweep(const Sweep&) = delete;

  // Launches [n, 3 + starts]; returns (next, ran) as of ral_run_sweep.
  nb::tuple run(const nb::tuple& tables, std::vector<int64_t> used, const Numbers& launches, const Numbers& indices, int64_t next,
                bool backwards) const {
    if (launches.ndim() != 2 || launches.shape(1) < 3 || indices.ndim() != 1 || used.size() != tables.size())
      throw nb::value_error("launches are [n, 3 + starts], indices [m], and `used` has a number for each table");
    ask_python();
    Borrowed lent;
    // Not as what is written, which takes a call of Python for each: some are, and all are the caller's own.
    lent.add_all(tables, [](int32_t) { return ral_value_info{}; }, "table", false);
    const ral_sweep sweep = {blocks_.data(),
                             lent.tensors(),
                             used.data(),
                             launches.data(),
                             indices.data(),
                             static_cast<int64_t>(launches.shape(0)),
                             static_cast<int64_t>(indices.size()),
                             size_of(blocks_),
                             size_of(used),
                             static_cast<int32_t>(launches.shape(1)) - 3};
    std::vector<uint8_t> ran(launches.shape(0), 0);
    const ral_status status = without_gil([&] { return ral_run_sweep(&sweep, backwards, &next, ran.data()); });
    if (status != RAL_OK) raise(status, ral_last_error());
    return nb::make_tuple(next, nb::bytes(reinterpret_cast<const char*>(ran.data()), ran.size()));
  }

 private:
  using Kept = std::vector<ral_sweep_value>;

  const Kept& keep(const Values& values) {
    auto& made = kept_.emplace_back(std::make_unique<Kept>());
    for (const auto& [what, table, place, room, flags] : values) made->push_back({what, table, place, room, flags});
    return *made;
  }

  std::vector<nb::object> contexts_;
  std::vector<std::unique_ptr<Kept>> kept_;
  std::vector<ral_sweep_block> blocks_;
};

}  // namespace

void bind_sweeps(nb::module_& module) {
  nb::class_<Sweep>(module, "Sweep")
      .def(nb::init<const std::vector<Sweep::Block>&>(), nb::arg("blocks"))
      .def("run", &Sweep::run, nb::arg("tables"), nb::arg("used"), nb::arg("launches"), nb::arg("indices"), nb::arg("next"),
           nb::arg("backwards"));
}

}  // namespace ral::python
