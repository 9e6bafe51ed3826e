// Small products of matrices, for what the library makes of them: C[rows, kColumns] += A[rows, k] * B[k, kColumns], rows up to kTileRows, each
// sum in the order of k with one rounding a step, so that every kind of processor gives the same.
#pragma once

#include <cstdint>

namespace ral {

constexpr int64_t kTileRows = 6;
constexpr int64_t kStreamSteps = 8;  // values of k that a stream takes best
constexpr int64_t kPanelBytes = 256;  // of a row of B: 64 columns of f32, 32 of f64

// Steps count elements: between rows of A, of B and of C. Neighbors in a row of A are side by side.
template <typename T>
using Tile = void (*)(int64_t rows, const T* a, int64_t a_step, const T* b, int64_t b_step, int64_t k, T* c, int64_t c_step);

// U of A = U^T * U in place, of the upper triangle of A, `size` rows of kPanel<T>; of what is below the diagonal nothing is read. Returns the
// order of the leading minor that is not positive, 0 where all are.
template <typename T>
using UpperFactor = int64_t (*)(T* rows, int64_t size);

// The same for any number of columns, and few values of k: all columns of B are read at once, row by row, as they lie in memory.
template <typename T>
using Stream = void (*)(int64_t rows, const T* a, int64_t a_step, const T* b, int64_t b_step, int64_t k, T* c, int64_t c_step, int64_t columns);

// On rows of n elements. dot: the sum of products, in as many partial sums on every kind of processor; add: y += factor * x; rotate: (x, y) =
// (cosine * x + sine * y, cosine * y - sine * x). x and y do not overlap, but in a dot.
template <typename T>
struct RowFunctions {
  T (*dot)(int64_t n, const T* x, const T* y);
  void (*add)(int64_t n, T factor, const T* x, T* y);
  void (*rotate)(int64_t n, T cosine, T sine, T* x, T* y);
};

struct Tiles {
  Tile<float> f32;
  Tile<double> f64;
  UpperFactor<float> upper_f32;
  UpperFactor<double> upper_f64;
  Stream<float> stream_f32;
  Stream<double> stream_f64;
  RowFunctions<float> rows_f32;
  RowFunctions<double> rows_f64;
};

extern const Tiles kTilesAvx2, kTilesAvx512;  // for a processor that has x86-64-v3, x86-64-v4

// The best that this processor has.
const Tiles& tiles();

template <typename T>
Tile<T> tile();
template <>
inline Tile<float> tile<float>() {
  return tiles().f32;
}
template <>
inline Tile<double> tile<double>() {
  return tiles().f64;
}

template <typename T>
Stream<T> stream();
template <>
inline Stream<float> stream<float>() {
  return tiles().stream_f32;
}
template <>
inline Stream<double> stream<double>() {
  return tiles().stream_f64;
}

template <typename T>
const RowFunctions<T>& on_rows();
template <>
inline const RowFunctions<float>& on_rows<float>() {
  return tiles().rows_f32;
}
template <>
inline const RowFunctions<double>& on_rows<double>() {
  return tiles().rows_f64;
}

template <typename T>
UpperFactor<T> upper_factor();
template <>
inline UpperFactor<float> upper_factor<float>() {
  return tiles().upper_f32;
}
template <>
inline UpperFactor<double> upper_factor<double>() {
  return tiles().upper_f64;
}

template <typename T>
constexpr int64_t kPanel = kPanelBytes / static_cast<int64_t>(sizeof(T));

}  // namespace ral
