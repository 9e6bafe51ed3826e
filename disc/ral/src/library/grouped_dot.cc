// Rows in groups, each group times a matrix of its own. Where groups end is data, so tasks are made in the call: up to 96 rows of a group and a
// panel of columns, whose part of the matrix is copied side by side, widened where it is of 16 bits, unless it is read for few rows alone.
#include <algorithm>
#include <cstring>

#include "cpu/cpu.h"
#include "library/elements.h"
#include "library/functions.h"
#include "library/tiles.h"

namespace ral {

const Tiles& tiles() {
  static const Tiles& own = missing_feature("x86-64-v4").empty() ? kTilesAvx512 : kTilesAvx2;
  return own;
}

namespace {

constexpr int64_t kRows = 96;     // of a task
constexpr int64_t kDepth = 256;   // values of k at a time: a panel of them stays in L2
constexpr int64_t kFewRows = 12;  // for so few the panel is read where it lies
constexpr int64_t kMacsPerNanosecond = 16;

struct Block {
  int64_t group, row, rows;
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

  static int64_t scratch() { return static_cast<int64_t>(sizeof(Number)) * (kDepth * kColumns + kRows * kColumns + (kWidened ? kRows * kDepth : 0)); }

  void multiply(const Block& block, int64_t panel, Number* memory) const {
    Number *packed = memory, *sums = packed + kDepth * kColumns, *rows = sums + kRows * kColumns;
    const int64_t column = panel * kColumns, columns = std::min(kColumns, n - column);
    std::fill(sums, sums + block.rows * kColumns, Number{0});
    for (int64_t first = 0; first < k; first += kDepth) {
      const int64_t depth = std::min(kDepth, k - first);
      const Stored* source = right + (block.group * k + first) * n + column;
      const Stored* from = left + block.row * k + first;
      const Number *b = packed, *a = rows;
      int64_t b_step = kColumns, a_step = kDepth;
      if (!kWidened && block.rows <= kFewRows && columns == kColumns) {
        b = reinterpret_cast<const Number*>(source);
        b_step = n;
      } else {
        pack(source, depth, columns, packed);
      }
      if (kWidened) {
        for (int64_t row = 0; row < block.rows; ++row) {
          for (int64_t p = 0; p < depth; ++p) rows[row * kDepth + p] = Element::load(from[row * k + p]);
        }
      } else {
        a = reinterpret_cast<const Number*>(from);
        a_step = k;
      }
      for (int64_t row = 0; row < block.rows; row += kTileRows) {
        const int64_t height = std::min(kTileRows, block.rows - row);
        tile<Number>()(height, a + row * a_step, a_step, b, b_step, depth, sums + row * kColumns, kColumns);
      }
    }
    for (int64_t row = 0; row < block.rows; ++row) {
      Stored* to = result + (block.row + row) * n + column;
      for (int64_t i = 0; i < columns; ++i) to[i] = Element::store(sums[row * kColumns + i]);
    }
  }

  void pack(const Stored* source, int64_t depth, int64_t columns, Number* packed) const {
    for (int64_t p = 0; p < depth; ++p) {
      for (int64_t i = 0; i < columns; ++i) packed[p * kColumns + i] = Element::load(source[p * n + i]);
      for (int64_t i = columns; i < kColumns; ++i) packed[p * kColumns + i] = Number{0};
    }
  }
};

// The blocks of rows of all groups; false where the ends are none, and the call has failed.
bool make_blocks(LibraryCall& call, const ral_tensor& ends, int64_t rows, std::vector<Block>* blocks, int64_t* last) {
  int64_t begin = 0;
  for (int64_t group = 0; group < ends.dims[0]; ++group) {
    const int64_t end = integer_at(ends, group);
    if (end < begin || end > rows) {
      call.fail("group " + std::to_string(group) + " ends at row " + std::to_string(end) + ", which must be from " + std::to_string(begin) +
                " to " + std::to_string(rows));
      return false;
    }
    for (int64_t row = begin; row < end; row += kRows) blocks->push_back({group, row, std::min(kRows, end - row)});
    begin = end;
  }
  *last = begin;
  return true;
}

template <typename Element>
void run(LibraryCall& call, const std::vector<Block>& blocks, int64_t past) {
  using Own = Grouped<Element>;
  using Stored = typename Own::Stored;
  const ral_tensor &left = call.operands[0], &right = call.operands[1], &result = call.results[0];
  const Own own{static_cast<const Stored*>(left.data), static_cast<const Stored*>(right.data), static_cast<Stored*>(result.data),
                left.dims[1], right.dims[2]};
  std::memset(own.result + past * own.n, 0, static_cast<size_t>((left.dims[0] - past) * own.n) * sizeof(Stored));
  const int64_t panels = (own.n + Own::kColumns - 1) / Own::kColumns, tasks = panels * static_cast<int64_t>(blocks.size());
  if (tasks == 0) return;
  const int64_t rows = std::max<int64_t>(past / static_cast<int64_t>(blocks.size()), 4);
  const int64_t cost = rows * own.k * Own::kColumns / kMacsPerNanosecond * RAL_COST_PER_NANOSECOND;
  call.parallel(tasks, cost, Own::scratch(), [&](int64_t begin, int64_t end, char* memory) {
    for (int64_t task = begin; task < end; ++task) {
      own.multiply(blocks[static_cast<size_t>(task / panels)], task % panels, reinterpret_cast<typename Own::Number*>(memory));
    }
  });
}

}  // namespace

void grouped_dot(LibraryCall& call) {
  const ral_tensor &left = call.operands[0], &right = call.operands[1], &ends = call.operands[2];
  if (left.rank != 2 || right.rank != 3 || ends.rank != 1 || left.dtype != right.dtype) {
    return call.fail("rows, matrices and ends of groups need 2, 3 and 1 dims, the first two elements of one type", RAL_ERROR_SHAPE);
  }
  if (left.dims[1] != right.dims[1] || ends.dims[0] != right.dims[0]) {
    return call.fail("rows of " + std::to_string(left.dims[1]) + " in " + std::to_string(ends.dims[0]) + " groups do not fit " +
                     std::to_string(right.dims[0]) + " matrices of " + std::to_string(right.dims[1]) + " rows",
                     RAL_ERROR_SHAPE);
  }
  std::vector<Block> blocks;
  int64_t past = 0;
  if (!make_blocks(call, ends, left.dims[0], &blocks, &past)) return;
  switch (left.dtype) {
    case RAL_F32: return run<Plain<float>>(call, blocks, past);
    case RAL_F64: return run<Plain<double>>(call, blocks, past);
    case RAL_F16: return run<F16>(call, blocks, past);
    case RAL_BF16: return run<Bf16>(call, blocks, past);
    default: return call.fail("groups are multiplied in floating point alone", RAL_ERROR_DTYPE);
  }
}

}  // namespace ral
