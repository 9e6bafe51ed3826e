// Fourier transforms along one dim, f32 and f64, by pocketfft (third_party/pocketfft): lines are transformed side by side, as many at once as a
// vector has lanes. Of few lines, and of long ones, each is transformed in two steps (Bailey, "FFTs in external or hierarchical memory", 1990):
// its elements are a matrix, of which first the columns are transformed, then, multiplied by roots of one, the rows.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <exception>
#include <memory>
#include <utility>

#define POCKETFFT_NO_MULTITHREADING
#define POCKETFFT_CACHE_SIZE 0
#include "pocketfft/pocketfft_hdronly.h"

#include "library/functions.h"

namespace ral {

namespace {

namespace pocket = pocketfft::detail;

constexpr int64_t kLongest = int64_t{1} << 13;  // of lines that are transformed side by side: longer ones leave L2 together
constexpr int64_t kKept = int64_t{1} << 16;     // the longest line whose plan is kept: it has at most 2 MB

int64_t parts_of(int64_t count, int64_t size) { return (count + size - 1) / size; }

// ---- vectors: lines side by side, or one line alone, where a vector is a number

template <typename T>
using Wide = pocket::vtype_t<T>;
static_assert(sizeof(Wide<float>) == sizeof(__m256) && sizeof(Wide<double>) == sizeof(__m256d));

template <typename T, typename V>
constexpr int64_t kLanesOf = sizeof(V) / sizeof(T);
template <typename T>
constexpr int64_t kLanes = kLanesOf<T, Wide<T>>;

template <typename T, typename V>
T& lane(V* vector, int64_t place) {
  return reinterpret_cast<T*>(vector)[place];
}

template <typename V>
V load(const void* from) {
  V value;
  std::memcpy(&value, from, sizeof(V));
  return value;
}

template <typename V>
void store(void* to, const V& value) {
  std::memcpy(to, &value, sizeof(V));
}

// The square matrix of these rows becomes its transpose.
[[gnu::always_inline]] inline void transpose(Wide<float>* rows) {
  __m256 a[8], b[8];
  for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    a[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
    b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
    b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
    b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
    rows[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
  }
}

[[gnu::always_inline]] inline void transpose(Wide<double>* rows) {
  const __m256d a = _mm256_unpacklo_pd(rows[0], rows[1]), b = _mm256_unpackhi_pd(rows[0], rows[1]);
  const __m256d c = _mm256_unpacklo_pd(rows[2], rows[3]), d = _mm256_unpackhi_pd(rows[2], rows[3]);
  rows[0] = _mm256_permute2f128_pd(a, c, 0x20);
  rows[1] = _mm256_permute2f128_pd(b, d, 0x20);
  rows[2] = _mm256_permute2f128_pd(a, c, 0x31);
  rows[3] = _mm256_permute2f128_pd(b, d, 0x31);
}

// Takes the vectors x0 y0 x1 y1 ..., as numbers of two parts lie, apart into x0 x1 ... and y0 y1 ..., and puts them together.
void split(Wide<float>* pair) {
  const __m256 x = _mm256_shuffle_ps(pair[0], pair[1], 0x88), y = _mm256_shuffle_ps(pair[0], pair[1], 0xdd);
  pair[0] = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), 0xd8));
  pair[1] = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(y), 0xd8));
}

void split(Wide<double>* pair) {
  const __m256d x = _mm256_unpacklo_pd(pair[0], pair[1]), y = _mm256_unpackhi_pd(pair[0], pair[1]);
  pair[0] = _mm256_permute4x64_pd(x, 0xd8);
  pair[1] = _mm256_permute4x64_pd(y, 0xd8);
}

void join(Wide<float>* pair) {
  const __m256 low = _mm256_unpacklo_ps(pair[0], pair[1]), high = _mm256_unpackhi_ps(pair[0], pair[1]);
  pair[0] = _mm256_permute2f128_ps(low, high, 0x20);
  pair[1] = _mm256_permute2f128_ps(low, high, 0x31);
}

void join(Wide<double>* pair) {
  const __m256d low = _mm256_unpacklo_pd(pair[0], pair[1]), high = _mm256_unpackhi_pd(pair[0], pair[1]);
  pair[0] = _mm256_permute2f128_pd(low, high, 0x20);
  pair[1] = _mm256_permute2f128_pd(low, high, 0x31);
}

Wide<float> reversed(Wide<float> value) { return _mm256_permutevar8x32_ps(value, _mm256_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0)); }
Wide<double> reversed(Wide<double> value) { return _mm256_permute4x64_pd(value, 0x1b); }

// Numbers of kParts parts that lie side by side, one for each lane, and their vectors: one for each part.
template <typename T, int64_t kParts, typename V>
void read_adjoining(V* vectors, const T* from) {
  for (int64_t part = 0; part < kParts; ++part) vectors[part] = load<V>(from + part * kLanesOf<T, V>);
  if constexpr (kParts == 2 && kLanesOf<T, V> > 1) split(vectors);
}

template <typename T, int64_t kParts, typename V>
void write_adjoining(T* to, const V* vectors) {
  V own[kParts];
  for (int64_t part = 0; part < kParts; ++part) own[part] = vectors[part];
  if constexpr (kParts == 2 && kLanesOf<T, V> > 1) join(own);
  for (int64_t part = 0; part < kParts; ++part) store(to + part * kLanesOf<T, V>, own[part]);
}

// Numbers of two parts from anywhere, as vectors of a part each.
void read_pairs(Wide<float>* pair, const std::array<float*, 8>& lines, int64_t at) {
  const auto number = [&](int64_t place) { return load<double>(lines[place] + at); };  // both parts
  pair[0] = _mm256_castpd_ps(_mm256_set_pd(number(3), number(2), number(1), number(0)));
  pair[1] = _mm256_castpd_ps(_mm256_set_pd(number(7), number(6), number(5), number(4)));
  split(pair);
}

void read_pairs(Wide<double>* pair, const std::array<double*, 4>& lines, int64_t at) {
  pair[0] = _mm256_loadu2_m128d(lines[1] + at, lines[0] + at);
  pair[1] = _mm256_loadu2_m128d(lines[3] + at, lines[2] + at);
  split(pair);
}

// The lines of a tensor along a dim: `count` of them, of `length` elements that lie `inner` elements apart.
struct Lines {
  int64_t count, length, inner;

  // past: the number of dims, without the last where it holds the two parts of complex numbers.
  Lines(const ral_tensor& tensor, int64_t dim, int64_t past) : count(1), length(tensor.dims[dim]), inner(1) {
    for (int64_t i = 0; i < past; ++i) count *= i == dim ? 1 : tensor.dims[i];
    for (int64_t i = dim + 1; i < past; ++i) inner *= tensor.dims[i];
  }
  int64_t begin(int64_t line) const { return line / inner * length * inner + line % inner; }

  // Groups of lines that are transformed side by side. Where enough lie side by side in memory too, a group is of such.
  int64_t groups(int64_t lanes) const { return inner < lanes ? parts_of(count, lanes) : count / inner * parts_of(inner, lanes); }
  std::pair<int64_t, int64_t> group(int64_t number, int64_t lanes) const {  // its first line, and how many they are
    if (inner < lanes) return {number * lanes, std::min(lanes, count - number * lanes)};
    const int64_t each = parts_of(inner, lanes), column = number % each * lanes;
    return {number / each * inner + column, std::min(lanes, inner - column)};
  }
};

// Some lines of real (kParts 1) or complex (2) elements in memory, that are read to vectors or written from them.
template <typename T, int64_t kParts, typename V>
class Group {
 public:
  static constexpr int64_t kLanes = kLanesOf<T, V>;

  template <typename Begin>
  Group(const void* data, const Begin& begin, int64_t count, int64_t length, int64_t stride, bool adjoining)
      : count_(count), length_(length), stride_(stride), adjoining_(adjoining && count == kLanes) {
    T* numbers = static_cast<T*>(const_cast<void*>(data));
    for (int64_t place = 0; place < kLanes; ++place) lines_[place] = numbers + kParts * begin(std::min(place, count - 1));
  }

  // Group `number` of a tensor's lines.
  static Group of(const void* data, const Lines& lines, int64_t number) {
    const auto [first, count] = lines.group(number, kLanes);
    return Group(data, [&, first = first](int64_t place) { return lines.begin(first + place); }, count, lines.length, lines.inner,
                 lines.inner >= kLanes);
  }

  void read(V* to) const {
    int64_t i = 0;
    if constexpr (kLanes > 1) {
      if (stride_ == 1) {
        for (; i + 2 * kLanes <= kParts * length_; i += 2 * kLanes) read_squares<2>(to, i);
        for (; i + kLanes <= kParts * length_; i += kLanes) read_squares<1>(to, i);
        for (; i < kParts * length_; ++i) {
          for (int64_t place = 0; place < kLanes; ++place) lane<T>(to + i, place) = lines_[place][i];
        }
        return;
      }
    }
    for (; i < length_; ++i) {
      const int64_t at = kParts * i * stride_;
      V* vectors = to + kParts * i;
      if (adjoining_) {
        __builtin_prefetch(lines_[0] + at + kParts * kLanes);
        read_adjoining<T, kParts>(vectors, lines_[0] + at);
      } else if constexpr (kParts == 2 && kLanes > 1) {
        read_pairs(vectors, lines_, at);
      } else {
        for (int64_t place = 0; place < kLanes; ++place) lane<T>(vectors, place) = lines_[place][at];
      }
    }
  }

  void write(V* from) const {
    int64_t i = 0;
    if constexpr (kLanes > 1) {
      if (stride_ == 1) {
        for (; i + 2 * kLanes <= kParts * length_; i += 2 * kLanes) write_squares<2>(from, i);
        for (; i + kLanes <= kParts * length_; i += kLanes) write_squares<1>(from, i);
        for (; i < kParts * length_; ++i) {
          for (int64_t place = 0; place < count_; ++place) lines_[place][i] = lane<T>(from + i, place);
        }
        return;
      }
    }
    for (; i < length_; ++i) {
      const int64_t at = kParts * i * stride_;
      V* vectors = from + kParts * i;
      if (adjoining_) {
        __builtin_prefetch(lines_[0] + at + kParts * kLanes, 1);
        write_adjoining<T, kParts>(lines_[0] + at, vectors);
      } else if constexpr (kParts == 2 && kLanes > 1) {
        join(vectors);
        for (int64_t place = 0; place < count_; ++place) std::memcpy(lines_[place] + at, reinterpret_cast<T*>(vectors) + 2 * place, 2 * sizeof(T));
      } else {
        for (int64_t place = 0; place < count_; ++place) lines_[place][at] = lane<T>(vectors, place);
      }
    }
  }

 private:
  // Squares of numbers of all lines, from number i on. Two have whole cache lines: of long lines at powers of two the caches keep few.
  template <int kSquares>
  void read_squares(V* to, int64_t i) const {
    for (int64_t place = 0; place < kLanes; ++place) {
      for (int64_t each = 0; each < kSquares; ++each) to[i + each * kLanes + place] = load<V>(lines_[place] + i + each * kLanes);
    }
    for (int64_t each = 0; each < kSquares; ++each) transpose(to + i + each * kLanes);
  }
  template <int kSquares>
  void write_squares(V* from, int64_t i) const {
    for (int64_t each = 0; each < kSquares; ++each) transpose(from + i + each * kLanes);
    for (int64_t place = 0; place < count_; ++place) {
      for (int64_t each = 0; each < kSquares; ++each) store(lines_[place] + i + each * kLanes, from[i + each * kLanes + place]);
    }
  }

  int64_t count_, length_, stride_;
  bool adjoining_;
  std::array<T*, kLanes> lines_;
};

// ---- plans

// Transforms of lines of one length, in a buffer of `numbers` vectors: pairs of parts from its begin on, real numbers from the second vector on.
template <typename T>
class ComplexPlan {
 public:
  static constexpr bool kReal = false;
  explicit ComplexPlan(int64_t length) : numbers(2 * length), spectrum(length), plan_(static_cast<size_t>(length)) {}
  const int64_t numbers, spectrum;  // how many pairs a spectrum has

  template <typename V>
  void run(V* buffer, T scale, bool forward) const {
    plan_.exec(reinterpret_cast<pocket::cmplx<V>*>(buffer), scale, forward);
  }
  template <typename V>
  static V* elements(V* buffer) {
    return buffer;
  }

 private:
  pocket::pocketfft_c<T> plan_;
};

// pocketfft's order of the spectrum of a real line: the real part of frequency 0, then both parts of 1, 2, ..., and of an even line the real part
// of the last. With the first part moved to the front, and zeros in two places, these are pairs.
template <typename T>
class RealPlan {
 public:
  static constexpr bool kReal = true;
  explicit RealPlan(int64_t length) : numbers(length + 2), spectrum(length / 2 + 1), plan_(static_cast<size_t>(length)) {}
  const int64_t numbers, spectrum;

  template <typename V>
  void run(V* buffer, T scale, bool forward) const {
    if (!forward) buffer[1] = buffer[0];
    plan_.exec(buffer + 1, scale, forward);
    if (forward) {
      buffer[0] = buffer[1];
      buffer[1] = V{};
      buffer[numbers - 1] = numbers % 2 == 0 ? V{} : buffer[numbers - 1];
    }
  }
  template <typename V>
  static V* elements(V* buffer) {
    return buffer + 1;
  }

 private:
  pocket::pocketfft_r<T> plan_;
};

// What arithmetic on vectors takes for a line of so many elements, in a unit of its own.
double arithmetic(int64_t length, bool real) {
  const auto n = static_cast<size_t>(length);
  const double direct = pocket::util::cost_guess(n), by_convolution = 3 * pocket::util::cost_guess(pocket::util::good_size_cmplx(2 * n - 1));
  return std::min(direct, by_convolution) * (real ? 0.5 : 1);
}

constexpr double kAlone = 0.6;   // what one line alone takes of the time of a vector of lines (measured: 0.4 to 0.7)
constexpr double kBeyond = 2.5;  // how many times as long lines take together that leave L2
constexpr double kMoving = 4;    // what reading and writing an element takes, in units of `arithmetic`

// A transform of n = a * b elements in two steps: `First` of length a for the columns l, of which element i is element l + b * i of the line; number
// k of what is made of a column is multiplied by the n-th root of one to l * k; then `Second` of length b for each k, which makes the elements
// k + a * j, j < b, of the result. A real transform needs, or makes, half of the columns, or of the rows: the others are their conjugates.
template <typename T, typename First, typename Second>
struct Steps {
  First first;
  Second second;
  int64_t a, b, columns, rows, blocks;  // a block: as many columns as there are lanes
  // The root for column l and number k is that of l's lane, [rows], times that of the block's first column, w^(lanes * block * k): two small tables
  // stay in the caches where one of n roots would not.
  pocket::arr<pocket::cmplx<Wide<T>>> of_lanes;
  pocket::arr<pocket::cmplx<T>> of_blocks;

  Steps(int64_t a, int64_t b)
      : first(a), second(b), a(a), b(b), columns(columns_of(b)), rows(rows_of(a)), blocks(parts_of(columns, kLanes<T>)),
        of_lanes(static_cast<size_t>(rows)), of_blocks(static_cast<size_t>((blocks - 1) * (rows - 1) + 1)) {
    const pocket::sincos_2pibyn<T> roots(static_cast<size_t>(a * b));
    const auto root = [&](int64_t power) { return roots[static_cast<size_t>(power % (a * b))]; };
    for (int64_t k = 0; k < rows; ++k) {
      for (int64_t place = 0; place < kLanes<T>; ++place) {
        const pocket::cmplx<T> own = root(place * k);
        lane<T>(&of_lanes[static_cast<size_t>(k)].r, place) = own.r;
        lane<T>(&of_lanes[static_cast<size_t>(k)].i, place) = own.i;
      }
    }
    for (size_t i = 0; i < of_blocks.size(); ++i) of_blocks[i] = root(kLanes<T> * static_cast<int64_t>(i));
  }
  static int64_t columns_of(int64_t b) { return Second::kReal ? b / 2 + 1 : b; }
  static int64_t rows_of(int64_t a) { return First::kReal ? a / 2 + 1 : a; }

  static double cost(int64_t a, int64_t b) {
    return static_cast<double>(parts_of(columns_of(b), kLanes<T>)) * (arithmetic(a, First::kReal) + kMoving * static_cast<double>(a)) +
           static_cast<double>(parts_of(rows_of(a), kLanes<T>)) * (arithmetic(b, Second::kReal) + kMoving * static_cast<double>(b));
  }
  int64_t numbers() const { return std::max(first.numbers, 2 * parts_of(b, kLanes<T>) * kLanes<T>) + 2; }
  int64_t middle_bytes() const { return rows * blocks * static_cast<int64_t>(sizeof(pocket::cmplx<Wide<T>>)); }
};

// How lines of one length are transformed. `Whole` is the transform of a line at once.
template <typename T, typename Whole, typename First, typename Second>
class Plan {
 public:
  using Step = Steps<T, First, Second>;
  explicit Plan(int64_t length) : length(length), at_once_(arithmetic(length, Whole::kReal) + kMoving * static_cast<double>(length)) {
    for (int64_t each = 2; each * each <= length; ++each) {
      if (length % each != 0) continue;
      for (const int64_t a : {each, length / each}) {
        const double cost = Step::cost(a, length / a);
        if (a_ == 0 || cost < in_steps_) a_ = a, in_steps_ = cost;
      }
    }
  }
  const int64_t length;

  enum class Way { kSideBySide, kAlone, kInSteps };
  Way way(const Lines& lines) const {
    const bool together = lines.inner >= kLanes<T> || (lines.count >= kLanes<T> && length <= kLongest);
    const auto count = static_cast<double>(lines.count);
    const double together_each = at_once_ * (length > kLongest ? kBeyond : 1);
    const double side_by_side = static_cast<double>(lines.groups(kLanes<T>)) * together_each, alone = kAlone * at_once_ * count;
    if (a_ != 0 && !together && in_steps_ * count < std::min(side_by_side, alone)) return Way::kInSteps;
    return length <= kLongest * 8 && side_by_side <= alone ? Way::kSideBySide : Way::kAlone;
  }
  // Made when they are asked for. Throw where there is no memory.
  const Whole& whole() {
    if (!whole_) whole_ = std::make_unique<Whole>(length);
    return *whole_;
  }
  const Step& steps() {
    if (!steps_) steps_ = std::make_unique<Step>(a_, length / a_);
    return *steps_;
  }

 private:
  double at_once_, in_steps_ = 0;
  int64_t a_ = 0;
  std::unique_ptr<Whole> whole_;
  std::unique_ptr<Step> steps_;
};

template <typename T>
using ComplexLines = Plan<T, ComplexPlan<T>, ComplexPlan<T>, ComplexPlan<T>>;
template <typename T>
using RealLines = Plan<T, RealPlan<T>, RealPlan<T>, ComplexPlan<T>>;
template <typename T>
using SpectrumLines = Plan<T, RealPlan<T>, ComplexPlan<T>, RealPlan<T>>;

// A plan for a length: one that an earlier call left, or a new one. A place for plans is emptied and filled by one exchange, so that a fork at
// any time leaves nothing locked; a call that finds it empty makes a plan of its own.
template <typename Plan>
class Kept {
 public:
  explicit Kept(int64_t length) : plan_(place(length).exchange(nullptr, std::memory_order_acquire)) {
    if (!plan_ || plan_->length != length) plan_ = std::make_unique<Plan>(length);
  }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;
  ~Kept() {
    if (plan_->length > kKept) return;
    auto& own = place(plan_->length);
    plan_.reset(own.exchange(plan_.release(), std::memory_order_acq_rel));
  }
  Plan* operator->() const { return plan_.get(); }

 private:
  static std::atomic<Plan*>& place(int64_t length) {
    static std::atomic<Plan*> places[4];
    return places[(length ^ length >> 2 ^ length >> 5) % 4];
  }
  std::unique_ptr<Plan> plan_;
};

// ---- calls

// What sums over n elements are multiplied by. norm: 0 = 1, 1 = the root of 1 / n, 2 = 1 / n.
double factor_of(int64_t norm, int64_t n) {
  const double whole = 1 / static_cast<double>(n);
  return norm == 0 ? 1 : norm == 1 ? std::sqrt(whole) : whole;
}

// Runs `body(task, buffer)` for each task, with a buffer of `numbers` vectors V. elements: of a task.
template <typename V, typename Body>
bool over_tasks(LibraryCall& call, int64_t tasks, int64_t elements, int64_t numbers, const Body& body) {
  const double steps = static_cast<double>(elements) * (1 + std::log2(static_cast<double>(elements)));
  const auto cost = static_cast<int64_t>(steps * RAL_COST_PER_NANOSECOND / 8) + 1;
  std::atomic<bool> exhausted{false};  // pocketfft throws where it gets no memory
  const bool done = call.parallel(tasks, cost, numbers * static_cast<int64_t>(sizeof(V)), [&](int64_t begin, int64_t end, char* scratch) {
    try {
      for (int64_t task = begin; task < end; ++task) body(task, reinterpret_cast<V*>(scratch));
    } catch (const std::exception&) {
      exhausted.store(true, std::memory_order_relaxed);
    }
  });
  if (exhausted.load(std::memory_order_relaxed)) call.fail("there is no memory for the transform", RAL_ERROR_MEMORY);
  return done && !call.failed();
}

// One line in two steps. read(columns, first, count) and write(...): see `transform`. middle: of `middle_bytes`.
template <typename T, typename Step, typename Read, typename Write>
bool in_steps(LibraryCall& call, const Step& steps, char* middle, T scale, bool forward, const Read& read, const Write& write) {
  using V = Wide<T>;
  auto* numbers = reinterpret_cast<V*>(middle);  // [rows, blocks, 2]
  const auto pair = [&](int64_t row, int64_t block) { return numbers + 2 * (row * steps.blocks + block); };
  return over_tasks<V>(call, steps.blocks, steps.a * kLanes<T>, steps.numbers(),
                       [&](int64_t block, V* buffer) {
                         const int64_t first = block * kLanes<T>;
                         read(buffer, first, std::min(kLanes<T>, steps.columns - first));
                         steps.first.run(buffer, T{1}, forward);
                         for (int64_t k = 0; k < steps.rows; ++k) {
                           const auto root = steps.of_lanes[static_cast<size_t>(k)] * steps.of_blocks[static_cast<size_t>(block * k)];
                           const V x = buffer[2 * k], y = buffer[2 * k + 1], c = root.r, s = forward ? -root.i : root.i;
                           pair(k, block)[0] = x * c - y * s;
                           pair(k, block)[1] = x * s + y * c;
                         }
                       }) &&
         over_tasks<V>(call, parts_of(steps.rows, kLanes<T>), steps.b * kLanes<T>, steps.numbers(), [&](int64_t group, V* buffer) {
           const int64_t first = group * kLanes<T>, count = std::min(kLanes<T>, steps.rows - first);
           for (int64_t block = 0; block < steps.blocks; ++block) {
             for (int64_t part = 0; part < 2; ++part) {
               V square[kLanes<T>];
               for (int64_t place = 0; place < kLanes<T>; ++place) square[place] = pair(first + std::min(place, count - 1), block)[part];
               transpose(square);
               for (int64_t place = 0; place < kLanes<T>; ++place) buffer[2 * (block * kLanes<T> + place) + part] = square[place];
             }
           }
           steps.second.run(buffer, scale, forward);
           write(buffer, first, count);
         });
}

// Numbers `first + stride * i`, i < times, and as many after each as there are lines, of the spectrum of n real elements, of which numbers up to
// n / 2 are in memory, `inner` apart: the others are conjugates. They are read to, or written from, pairs of vectors.
template <typename T>
class HalfSpectrum {
 public:
  HalfSpectrum(const void* data, int64_t n, int64_t inner) : numbers_(static_cast<T*>(const_cast<void*>(data))), n_(n), inner_(inner) {}

  void read(Wide<T>* to, int64_t first, int64_t count, int64_t stride, int64_t times) const {
    for (int64_t i = 0; i < times; ++i, to += 2) {
      const int64_t k = first + stride * i, last = k + kLanes<T> - 1;
      if (inner_ == 1 && count == kLanes<T> && 0 < k && 2 * last < n_) {
        read_adjoining<T, 2>(to, numbers_ + 2 * k);
      } else if (inner_ == 1 && count == kLanes<T> && 2 * k > n_) {
        read_adjoining<T, 2>(to, numbers_ + 2 * (n_ - last));
        to[0] = reversed(to[0]);
        to[1] = -reversed(to[1]);
      } else {
        for (int64_t place = 0; place < kLanes<T>; ++place) {
          const int64_t own = k + std::min(place, count - 1), at = 2 * inner_ * std::min(own, n_ - own);
          lane<T>(to, place) = numbers_[at];
          lane<T>(to + 1, place) = own == 0 || 2 * own == n_ ? T{0} : 2 * own < n_ ? numbers_[at + 1] : -numbers_[at + 1];
        }
      }
    }
  }

  void write(Wide<T>* from, int64_t first, int64_t count, int64_t stride, int64_t times) const {
    for (int64_t i = 0; i < times; ++i, from += 2) {
      const int64_t k = first + stride * i, last = k + kLanes<T> - 1;
      if (inner_ == 1 && count == kLanes<T> && 0 < k && 2 * last < n_) {
        write_adjoining<T, 2>(numbers_ + 2 * k, from);
      } else if (inner_ == 1 && count == kLanes<T> && 2 * k > n_) {
        const Wide<T> mirrored[2] = {reversed(from[0]), -reversed(from[1])};
        write_adjoining<T, 2>(numbers_ + 2 * (n_ - last), mirrored);
      } else {
        for (int64_t place = 0; place < count; ++place) {
          const int64_t own = k + place, at = 2 * inner_ * std::min(own, n_ - own);
          const T imaginary = lane<T>(from + 1, place);
          numbers_[at] = lane<T>(from, place);
          numbers_[at + 1] = own == 0 || 2 * own == n_ ? T{0} : 2 * own < n_ ? imaginary : -imaginary;
        }
      }
    }
  }

 private:
  T* numbers_;
  int64_t n_, inner_;
};

// Transforms the lines `from`, of kFrom parts, to the lines `to`, of kTo parts.
template <typename T, int64_t kFrom, int64_t kTo, typename Plan>
void transform(LibraryCall& call, const Lines& from, const Lines& to, bool forward, int64_t norm) {
  const int64_t length = kFrom == 2 ? to.length : from.length;
  if (from.count == 0) return;
  if (length == 0) return call.fail("a Fourier transform of no elements", RAL_ERROR_SHAPE);
  const void* source = call.operands[0].data;
  void* result = call.results[0].data;
  const auto scale = static_cast<T>(factor_of(norm, length));
  try {
    const Kept<Plan> plan(length);
    using Way = typename Plan::Way;
    const Way way = plan->way(from);
    if (way != Way::kInSteps) {
      const auto& whole = plan->whole();
      const auto run = [&]<typename V>(int64_t task, V* buffer) {
        Group<T, kFrom, V>::of(source, from, task).read(kFrom == 1 ? whole.elements(buffer) : buffer);
        whole.run(buffer, scale, forward);
        Group<T, kTo, V>::of(result, to, task).write(kTo == 1 ? whole.elements(buffer) : buffer);
      };
      const int64_t lanes = way == Way::kAlone ? 1 : kLanes<T>;
      if (way == Way::kAlone) {
        over_tasks<T>(call, from.groups(1), length, whole.numbers, run);
      } else {
        over_tasks<Wide<T>>(call, from.groups(lanes), length * lanes, whole.numbers, run);
      }
      return;
    }
    const auto& steps = plan->steps();
    char* middle = call.memory(steps.middle_bytes());
    for (int64_t line = 0; middle && line < from.count; ++line) {
      const T* own = static_cast<const T*>(source) + kFrom * from.begin(line);
      T* made = static_cast<T*>(result) + kTo * to.begin(line);
      const auto read = [&](Wide<T>* buffer, int64_t first, int64_t count) {
        if constexpr (kFrom == 2 && kTo == 1) return HalfSpectrum<T>(own, length, from.inner).read(buffer, first, count, steps.b, steps.a);
        const auto begin = [&](int64_t place) { return (first + place) * from.inner; };
        Group<T, kFrom, Wide<T>>(own, begin, count, steps.a, steps.b * from.inner, from.inner == 1).read(steps.first.elements(buffer));
      };
      const auto write = [&](Wide<T>* buffer, int64_t first, int64_t count) {
        if constexpr (kFrom == 1) return HalfSpectrum<T>(made, length, to.inner).write(buffer, first, count, steps.a, steps.b);
        const auto begin = [&](int64_t place) { return (first + place) * to.inner; };
        Group<T, kTo, Wide<T>>(made, begin, count, steps.b, steps.a * to.inner, to.inner == 1).write(steps.second.elements(buffer));
      };
      if (!in_steps<T>(call, steps, middle, scale, forward, read, write)) return;
    }
  } catch (const std::exception&) {
    call.fail("there is no memory for a transform of " + std::to_string(length) + " elements", RAL_ERROR_MEMORY);
  }
}

// Whether the operand of rank at least `least` has the dim, the result has `rank` dims, and both are of f32 or f64: programs may be written by
// hand.
bool is_transform(LibraryCall& call, int32_t least, int32_t rank) {
  const ral_tensor &x = call.operands[0], &y = call.results[0];
  const int64_t dims = std::min(x.rank, y.rank) - (x.rank == y.rank ? 1 : 0);
  const int64_t dim = call.numbers[0];
  bool fits = x.rank >= least && y.rank == rank && dim >= 0 && dim < dims && x.dtype == y.dtype && (x.dtype == RAL_F32 || x.dtype == RAL_F64);
  for (int64_t i = 0; fits && i < dims; ++i) fits = i == dim || x.dims[i] == y.dims[i];
  for (const ral_tensor* each : {&x, &y}) fits = fits && (each->rank == dims || each->dims[dims] == 2);
  if (fits && x.rank == y.rank) fits = x.dims[dim] == y.dims[dim];
  if (fits && x.rank < y.rank) fits = y.dims[dim] == x.dims[dim] / 2 + 1;
  if (!fits) call.fail("operand, result and dim are none of a Fourier transform", RAL_ERROR_SHAPE);
  return fits && y.data;
}

}  // namespace

void fft(LibraryCall& call) {
  const ral_tensor& x = call.operands[0];
  if (!is_transform(call, 2, x.rank)) return;
  const Lines lines(x, call.numbers[0], x.rank - 1);
  const bool forward = call.numbers[1] == 0;
  x.dtype == RAL_F32 ? transform<float, 2, 2, ComplexLines<float>>(call, lines, lines, forward, call.numbers[2])
                     : transform<double, 2, 2, ComplexLines<double>>(call, lines, lines, forward, call.numbers[2]);
}

void rfft(LibraryCall& call) {
  const ral_tensor& x = call.operands[0];
  if (!is_transform(call, 1, x.rank + 1)) return;
  const Lines lines(x, call.numbers[0], x.rank), spectra(call.results[0], call.numbers[0], x.rank);
  x.dtype == RAL_F32 ? transform<float, 1, 2, RealLines<float>>(call, lines, spectra, true, call.numbers[1])
                     : transform<double, 1, 2, RealLines<double>>(call, lines, spectra, true, call.numbers[1]);
}

void irfft(LibraryCall& call) {
  const ral_tensor &x = call.operands[0], &y = call.results[0];
  if (!is_transform(call, 2, x.rank - 1)) return;
  const Lines spectra(x, call.numbers[0], x.rank - 1), lines(y, call.numbers[0], y.rank);
  if (spectra.length != lines.length / 2 + 1) {
    return call.fail("a spectrum of " + std::to_string(spectra.length) + " frequencies is none of " + std::to_string(lines.length) +
                         " real elements",
                     RAL_ERROR_SHAPE);
  }
  x.dtype == RAL_F32 ? transform<float, 2, 1, SpectrumLines<float>>(call, spectra, lines, false, call.numbers[1])
                     : transform<double, 2, 1, SpectrumLines<double>>(call, spectra, lines, false, call.numbers[1]);
}

}  // namespace ral
