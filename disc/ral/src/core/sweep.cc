#include "core/sweep.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "core/context.h"
#include "core/layout.h"

namespace ral {

namespace {

Status misuse(const std::string& what) { return error(RAL_ERROR_INTERNAL, "ral_run_sweep: " + what); }

struct Launch {
  const ral_sweep_block* block;
  int64_t count;
  const int64_t* numbers;  // its vectors, one behind the other
  const int64_t* starts;
};

template <typename Element>
void add_rows(const ral_tensor& to, const ral_tensor& from, const int64_t* rows, int64_t count, int64_t width) {
  for (int64_t i = 0; i < count; ++i) {
    Element* target = static_cast<Element*>(to.data) + rows[i] * width;
    const Element* source = static_cast<const Element*>(from.data) + i * width;
    for (int64_t j = 0; j < width; ++j) target[j] += source[j];
  }
}

class Sweep {
 public:
  explicit Sweep(const ral_sweep& sweep) : sweep_(sweep) {
    int32_t most = 0, rank = 1;
    for (int32_t i = 0; i < sweep.block_count; ++i) {
      most = std::max({most, sweep.blocks[i].input_count, sweep.blocks[i].result_count});
    }
    for (int32_t i = 0; i < sweep.table_count; ++i) rank = std::max(rank, sweep.tables[i].rank);
    for (Side* each : {&inputs_, &results_}) {
      each->tensors.resize(static_cast<size_t>(most));
      each->dims.resize(static_cast<size_t>(most) * static_cast<size_t>(rank));
    }
    rank_ = static_cast<size_t>(rank);
  }

  Status check() const {
    for (int32_t i = 0; i < sweep_.table_count; ++i) {
      const ral_tensor& each = sweep_.tables[i];
      if (each.device != RAL_CPU || !is_row_major(each, dtype_size(each.dtype)))
        return misuse("table " + std::to_string(i) + " is not contiguous, or lies on another device");
      if (sweep_.used[i] < 0 || sweep_.used[i] > (each.rank > 0 ? each.dims[0] : 0))
        return misuse("table " + std::to_string(i) + " has no " + std::to_string(sweep_.used[i]) + " rows");
    }
    for (int32_t i = 0; i < sweep_.block_count; ++i) {
      const ral_sweep_block& block = sweep_.blocks[i];
      for (const auto& [values, count, kinds] : {Part{block.inputs, block.input_count, INPUTS}, Part{block.results, block.result_count, RESULTS},
                                                 Part{block.needed, block.needed_count, NEEDED}}) {
        for (int32_t j = 0; j < count; ++j) {
          if (values[j].what < 0 || values[j].what > RAL_SWEEP_ADDED || !(kinds >> values[j].what & 1) || !fits(block, values[j])) return misuse("a value of block " + std::to_string(i) + " lies nowhere");
          if (kinds == NEEDED && !are_flags(sweep_.tables[values[j].table])) return misuse("what is needed is told by flags");
        }
      }
    }
    return {};
  }

  // The launch; its block is null where it is the caller's.
  Status launch(int64_t number, Launch& made) const {
    const int64_t* record = sweep_.launches + number * (3 + sweep_.start_count);
    made = {nullptr, record[1], nullptr, record + 3};
    if (record[0] < 0) return {};
    const auto wrong = [&](const char* what) { return misuse("launch " + std::to_string(number) + " " + what); };
    if (record[0] >= sweep_.block_count) return wrong("is of a block that there is not");
    made.block = &sweep_.blocks[record[0]];
    const int64_t vectors = made.block->vector_count, offset = record[2];
    if (made.count < 1 || made.count > INT64_MAX / 64 || offset < 0 || offset > sweep_.index_count ||
        (vectors > 0 && made.count > (sweep_.index_count - offset) / vectors))
      return wrong("has numbers that are not there");
    made.numbers = sweep_.indices + offset;
    for (const auto& [values, count, kinds] : {Part{made.block->inputs, made.block->input_count, INPUTS},
                                               Part{made.block->results, made.block->result_count, RESULTS},
                                               Part{made.block->needed, made.block->needed_count, NEEDED}}) {
      for (int32_t i = 0; i < count; ++i) {
        const ral_sweep_value& each = values[i];
        const int64_t rows = each.table >= 0 && sweep_.tables[each.table].rank > 0 ? sweep_.tables[each.table].dims[0] : 0;
        if (each.what == RAL_SWEEP_ROWS && (made.starts[each.place] < 0 || made.count > rows - made.starts[each.place]))
          return wrong("has rows that are not there");
        const bool numbers_rows = each.what == RAL_SWEEP_ADDED || (each.what == RAL_SWEEP_NUMBERS && each.table >= 0);
        if (numbers_rows && !all_below(made.numbers + each.place * made.count, made.count, sweep_.used[each.table]))
          return wrong("numbers a row that is not in use");
        if (each.what == RAL_SWEEP_ADDED && made.count > sweep_.tables[each.room].dims[0]) return wrong("has more rows than there is room for");
      }
    }
    return {};
  }

  // How many of its instances are needed.
  int64_t needed(const Launch& launch) {
    const ral_sweep_block& block = *launch.block;
    if (block.needed_count == 0) return launch.count;
    const auto flags = [&](int32_t i) {
      return static_cast<const uint8_t*>(sweep_.tables[block.needed[i].table].data) + launch.starts[block.needed[i].place];
    };
    int64_t found = 0;
    for (int64_t row = 0; row < launch.count; ++row) {
      bool any = false;
      for (int32_t i = 0; i < block.needed_count; ++i) any |= flags(i)[row] != 0;
      found += any;
    }
    return found;
  }

  Status run(const Launch& launch) {
    const ral_sweep_block& block = *launch.block;
    fill(inputs_, block.inputs, block.input_count, launch);
    fill(results_, block.results, block.result_count, launch);
    Status status = block.program->call(inputs_.tensors.data(), block.input_count, results_.tensors.data(), nullptr, block.result_count, nullptr);
    if (!status.ok()) return status;
    for (int32_t i = 0; i < block.result_count; ++i) {
      const ral_sweep_value& each = block.results[i];
      if (each.what == RAL_SWEEP_ROWS) {
        sweep_.used[each.table] = std::max(sweep_.used[each.table], launch.starts[each.place] + launch.count);
        continue;
      }
      const int64_t* rows = launch.numbers + each.place * launch.count;
      const ral_tensor& to = sweep_.tables[each.table];
      const auto add = to.dtype == RAL_F32 ? add_rows<float> : add_rows<double>;
      add(to, sweep_.tables[each.room], rows, launch.count, width(to));
      auto* flags = static_cast<uint8_t*>(sweep_.tables[each.flags].data);
      for (int64_t row = 0; row < launch.count; ++row) flags[rows[row]] = 1;
    }
    return {};
  }

 private:
  // One side of a call, kept from launch to launch.
  struct Side {
    std::vector<ral_tensor> tensors;
    std::vector<int64_t> dims;
  };
  struct Part {
    const ral_sweep_value* values;
    int32_t count;
    uint32_t kinds;  // which may be there
  };
  static constexpr uint32_t INPUTS = 1U << RAL_SWEEP_TABLE | 1U << RAL_SWEEP_NUMBERS | 1U << RAL_SWEEP_ROWS;
  static constexpr uint32_t RESULTS = 1U << RAL_SWEEP_ROWS | 1U << RAL_SWEEP_ADDED;
  static constexpr uint32_t NEEDED = 1U << RAL_SWEEP_ROWS;

  bool has_rows(int32_t table) const { return table >= 0 && table < sweep_.table_count && sweep_.tables[table].rank > 0; }

  bool fits(const ral_sweep_block& block, const ral_sweep_value& value) const {
    const bool is_vector = value.place >= 0 && value.place < block.vector_count;
    switch (value.what) {
      case RAL_SWEEP_TABLE:
        return value.table >= 0 && value.table < sweep_.table_count;
      case RAL_SWEEP_NUMBERS:
        return is_vector && (value.table == -1 || has_rows(value.table));
      case RAL_SWEEP_ROWS:
        return has_rows(value.table) && value.place >= 0 && value.place < sweep_.start_count;
      default:
        return is_vector && has_rows(value.table) && has_rows(value.room) && has_rows(value.flags) && adds(value);
    }
  }

  // Whether the room is for rows of the table, of a dtype that is added, with a flag for each row.
  bool adds(const ral_sweep_value& value) const {
    const ral_tensor &to = sweep_.tables[value.table], &from = sweep_.tables[value.room], &flags = sweep_.tables[value.flags];
    return (to.dtype == RAL_F32 || to.dtype == RAL_F64) && from.dtype == to.dtype && from.rank == to.rank &&
           std::equal(to.dims + 1, to.dims + to.rank, from.dims + 1) && are_flags(flags) && flags.dims[0] == to.dims[0];
  }

  static bool are_flags(const ral_tensor& table) { return table.dtype == RAL_I1 && table.rank == 1; }

  static bool all_below(const int64_t* numbers, int64_t count, int64_t end) {
    return std::all_of(numbers, numbers + count, [&](int64_t each) { return static_cast<uint64_t>(each) < static_cast<uint64_t>(end); });
  }

  static int64_t width(const ral_tensor& table) {
    int64_t found = 1;
    for (int32_t d = 1; d < table.rank; ++d) found *= table.dims[d];
    return found;
  }

  void fill(Side& side, const ral_sweep_value* values, int32_t count, const Launch& launch) {
    for (int32_t i = 0; i < count; ++i) {
      const ral_sweep_value& each = values[i];
      ral_tensor& made = side.tensors[static_cast<size_t>(i)];
      int64_t* dims = side.dims.data() + static_cast<size_t>(i) * rank_;
      if (each.what == RAL_SWEEP_NUMBERS) {
        made = {const_cast<int64_t*>(launch.numbers + each.place * launch.count), dims, nullptr, 1, RAL_I64, RAL_CPU, 0};
        dims[0] = launch.count;
        continue;
      }
      const ral_tensor& whole = sweep_.tables[each.what == RAL_SWEEP_ADDED ? each.room : each.table];
      made = {whole.data, dims, nullptr, whole.rank, whole.dtype, RAL_CPU, 0};
      std::copy_n(whole.dims, whole.rank, dims);
      if (each.what == RAL_SWEEP_TABLE) {
        if (whole.rank > 0) dims[0] = sweep_.used[each.table];
        continue;
      }
      dims[0] = launch.count;
      if (each.what == RAL_SWEEP_ROWS)
        made.data = static_cast<char*>(whole.data) + launch.starts[each.place] * width(whole) * dtype_size(whole.dtype);
    }
  }

  const ral_sweep& sweep_;
  Side inputs_, results_;
  size_t rank_;
};

}  // namespace

Status run_sweep(const ral_sweep& given, bool backwards, int64_t* next, uint8_t* ran) {
  if (*next < 0 || *next > given.launch_count || given.start_count < 0) return misuse("there is no launch " + std::to_string(*next));
  Sweep sweep(given);
  if (Status status = sweep.check(); !status.ok()) return status;
  for (int64_t end = backwards ? 0 : given.launch_count; *next != end; *next += backwards ? -1 : 1) {
    const int64_t number = *next - backwards;
    Launch launch;
    if (Status status = sweep.launch(number, launch); !status.ok()) return status;
    const int64_t needed = launch.block ? sweep.needed(launch) : -1;
    if (needed == 0) continue;
    if (needed != launch.count) return {};
    if (Status status = sweep.run(launch); !status.ok()) return status;
    ran[number] = 1;
  }
  return {};
}

}  // namespace ral
