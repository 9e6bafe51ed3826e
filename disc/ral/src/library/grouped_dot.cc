// Rows in groups, each group times a matrix of its own. Where groups end is data, so tasks are made in the call: some rows of a group and some
// panels of columns, whose part of the matrix is packed, widened where it is of 16 bits. For few rows the matrix is read once, as it lies: then
// reading it is what a group costs.
#include <algorithm>
#include <cstring>

#include "cpu/cpu.h"
#include "library/checks.h"
#include "library/elements.h"
#include "library/functions.h"
#include "library/tiles.h"

namespace ral {

const Tiles& tiles() {
  static const Tiles& own = missing_feature("x86-64-v4").empty() ? kTilesAvx512 : kTilesAvx2;
  return own;
}

namespace {

constexpr int64_t kRows = 240;   // of a task, which with the panels that they are multiplied by stay in L2
constexpr int64_t kDepth = 256;  // values of k at a time
constexpr int64_t kPanels = 4;   // of a task: what is packed is read in pieces of 1 KiB
constexpr int64_t kFewRows = 12;  // for so few the matrix is read where it lies
constexpr int64_t kFewRowsPanels = 16;
constexpr int64_t kAhead = 8;  // rows of the matrix that are fetched before they are packed
constexpr int64_t kMacsPerNanosecond = 16;

struct Task {
  int64_t group, row, rows, panel, panels;
};

template <typename Element>
struct Grouped {
  using Stored = typename Element::Stored;
  using Number = typename Element::Number;
  static constexpr bool kWidened = sizeof(Stored) != sizeof(Number);
  static constexpr int64_t kColumns = kPanel<Number>;

  const Stored *left, *right;
  Stored* result;
  int64_t k, n;

  static int64_t scratch() {
    constexpr int64_t kMatrix = std::max(kDepth * kPanels, kStreamSteps * kFewRowsPanels) * kColumns;
    constexpr int64_t kSums = std::max(kRows * kPanels, kFewRows * kFewRowsPanels) * kColumns;
    return static_cast<int64_t>(sizeof(Number)) * (kMatrix + kSums + (kWidened ? kRows * kDepth : 0));
  }

  void multiply(const Task& task, Number* memory) const {
    Number *sums = memory, *packed = sums + task.rows * task.panels * kColumns, *rows = packed;
    rows += (task.rows <= kFewRows ? kStreamSteps : kDepth) * task.panels * kColumns;
    std::fill(sums, packed, Number{0});
    for (int64_t first = 0; first < k; first += kDepth) {
      const int64_t depth = std::min(kDepth, k - first);
      const Stored* from = left + task.row * k + first;
      const Number* a = rows;
      int64_t a_step = kDepth;
      if constexpr (kWidened) {
        for (int64_t row = 0; row < task.rows; ++row) widen(from + row * k, depth, rows + row * kDepth);
      } else {
        a = from;
        a_step = k;
      }
      const Stored* source = right + (task.group * k + first) * n + task.panel * kColumns;
      task.rows <= kFewRows ? add_few(task, source, depth, a, a_step, packed, sums) : add(task, source, depth, a, a_step, packed, sums);
    }
    store(task, sums);
  }

  int64_t columns(const Task& task) const { return std::min(task.panels * kColumns, n - task.panel * kColumns); }

  // Sums of a panel lie together.
  void add(const Task& task, const Stored* source, int64_t depth, const Number* a, int64_t a_step, Number* packed, Number* sums) const {
    pack(source, depth, task.panels, columns(task), packed);
    for (int64_t panel = 0; panel < task.panels; ++panel) {
      const Number* b = packed + panel * depth * kColumns;
      Number* c = sums + panel * task.rows * kColumns;
      for (int64_t row = 0; row < task.rows; row += kTileRows) {
        tile<Number>()(std::min(kTileRows, task.rows - row), a + row * a_step, a_step, b, kColumns, depth, c + row * kColumns, kColumns);
      }
    }
  }

  // Sums of a row lie together.
  void add_few(const Task& task, const Stored* source, int64_t depth, const Number* a, int64_t a_step, Number* widened, Number* sums) const {
    const int64_t width = task.panels * kColumns, count = columns(task);
    for (int64_t p = 0; p < depth; p += kStreamSteps) {
      const int64_t steps = std::min(kStreamSteps, depth - p);
      const Number* b = widened;
      int64_t b_step = width;
      if constexpr (kWidened) {
        for (int64_t i = 0; i < steps; ++i) widen(source + (p + i) * n, count, widened + i * width);
      } else {
        b = source + p * n;
        b_step = n;
      }
      for (int64_t row = 0; row < task.rows; row += kTileRows) {
        stream<Number>()(std::min(kTileRows, task.rows - row), a + row * a_step + p, a_step, b, b_step, steps, sums + row * width, width, count);
      }
    }
  }

  void pack(const Stored* source, int64_t depth, int64_t panels, int64_t columns, Number* packed) const {
    for (int64_t p = 0; p < depth; ++p) {
      const Stored* row = source + p * n;
      for (int64_t i = 0; p + kAhead < depth && i < columns; i += 64 / static_cast<int64_t>(sizeof(Stored))) __builtin_prefetch(row + kAhead * n + i);
      for (int64_t panel = 0; panel < panels; ++panel) {
        const int64_t own = std::min(kColumns, columns - panel * kColumns);
        Number* to = packed + (panel * depth + p) * kColumns;
        widen(row + panel * kColumns, own, to);
        std::fill(to + own, to + kColumns, Number{0});
      }
    }
  }

  static void widen(const Stored* from, int64_t count, Number* to) {
    for (int64_t i = 0; i < count; ++i) to[i] = Element::load(from[i]);
  }

  void store(const Task& task, const Number* sums) const {
    const bool few = task.rows <= kFewRows;
    const int64_t all = columns(task);
    for (int64_t row = 0; row < task.rows; ++row) {
      Stored* to = result + (task.row + row) * n + task.panel * kColumns;
      for (int64_t panel = 0; panel < task.panels; ++panel) {
        const Number* from = sums + (few ? row * task.panels + panel : panel * task.rows + row) * kColumns;
        const int64_t own = std::min(kColumns, all - panel * kColumns);
        for (int64_t i = 0; i < own; ++i) to[panel * kColumns + i] = Element::store(from[i]);
      }
    }
  }
};

// The tasks of all groups: equal blocks of a group's rows, times some panels; false where the ends are none, and the call has failed.
bool make_tasks(LibraryCall& call, const ral_tensor& ends, int64_t rows, int64_t panels, std::vector<Task>* tasks, int64_t* last) {
  int64_t begin = 0;
  for (int64_t group = 0; group < ends.dims[0]; ++group) {
    const int64_t end = integer_at(ends, group), own = end - begin;
    if (own < 0 || end > rows) {
      call.fail("group " + std::to_string(group) + " ends at row " + std::to_string(end) + ", which must be from " + std::to_string(begin) +
                " to " + std::to_string(rows));
      return false;
    }
    const int64_t blocks = (own + kRows - 1) / kRows, width = own <= kFewRows ? kFewRowsPanels : kPanels;
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t first = own * block / blocks, past = own * (block + 1) / blocks;
      for (int64_t panel = 0; panel < panels; panel += width) {
        tasks->push_back({group, begin + first, past - first, panel, std::min(width, panels - panel)});
      }
    }
    begin = end;
  }
  *last = begin;
  return true;
}

template <typename Element>
void run(LibraryCall& call) {
  using Own = Grouped<Element>;
  using Stored = typename Own::Stored;
  const ral_tensor &left = call.operands[0], &right = call.operands[1], &result = call.results[0];
  const Own own{static_cast<const Stored*>(left.data), static_cast<const Stored*>(right.data), static_cast<Stored*>(result.data),
                left.dims[1], right.dims[2]};
  std::vector<Task> tasks;
  int64_t past = 0;
  if (!make_tasks(call, call.operands[2], left.dims[0], (own.n + Own::kColumns - 1) / Own::kColumns, &tasks, &past)) return;
  std::memset(own.result + past * own.n, 0, static_cast<size_t>((left.dims[0] - past) * own.n) * sizeof(Stored));
  if (tasks.empty()) return;
  const auto count = static_cast<int64_t>(tasks.size());
  const int64_t cost = std::max<int64_t>(past, 4) * own.k * own.n / count / kMacsPerNanosecond * RAL_COST_PER_NANOSECOND;
  call.parallel(count, cost, Own::scratch(), [&](int64_t begin, int64_t end, char* memory) {
    for (int64_t task = begin; task < end; ++task) {
      own.multiply(tasks[static_cast<size_t>(task)], reinterpret_cast<typename Own::Number*>(memory));
    }
  });
}

}  // namespace

void grouped_dot(LibraryCall& call) {
  const ral_tensor &left = call.operands[0], &right = call.operands[1], &ends = call.operands[2];
  if (left.rank != 2 || right.rank != 3 || ends.rank != 1 || left.dtype != right.dtype) {
    return call.fail("rows, matrices and ends of groups need 2, 3 and 1 dims, the first two elements of one type", RAL_ERROR_SHAPE);
  }
  if (!demand(call, is_integer(ends.dtype) && call.results[0].dtype == left.dtype && call.results[0].rank == 2 && call.results[0].dims[0] == left.dims[0] &&
                        call.results[0].dims[1] == right.dims[2])) {
    return;
  }
  if (left.dims[1] != right.dims[1] || ends.dims[0] != right.dims[0]) {
    return call.fail("rows of " + std::to_string(left.dims[1]) + " in " + std::to_string(ends.dims[0]) + " groups do not fit " +
                     std::to_string(right.dims[0]) + " matrices of " + std::to_string(right.dims[1]) + " rows",
                     RAL_ERROR_SHAPE);
  }
  switch (left.dtype) {
    case RAL_F32: return run<Plain<float>>(call);
    case RAL_F64: return run<Plain<double>>(call);
    case RAL_F16: return run<F16>(call);
    case RAL_BF16: return run<Bf16>(call);
    default: return call.fail("groups are multiplied in floating point alone", RAL_ERROR_DTYPE);
  }
}

}  // namespace ral
