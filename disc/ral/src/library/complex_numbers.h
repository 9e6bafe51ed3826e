// Complex numbers as they lie in tensors. Products are four real ones: infinities of no use to anybody are not looked for.
#pragma once

#include <cmath>

namespace ral {

template <typename T>
struct Complex {
  T re = 0, im = 0;

  friend Complex operator+(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }
  friend Complex operator-(Complex a, Complex b) { return {a.re - b.re, a.im - b.im}; }
  friend Complex operator*(Complex a, Complex b) { return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }
  friend Complex operator*(Complex a, T b) { return {a.re * b, a.im * b}; }
  friend Complex operator/(Complex a, T b) { return {a.re / b, a.im / b}; }
  // R. L. Smith, "Algorithm 116: Complex division", 1962.
  friend Complex operator/(Complex a, Complex b) {
    if (std::abs(b.re) >= std::abs(b.im)) {
      const T ratio = b.im / b.re, divisor = b.re + b.im * ratio;
      return {(a.re + a.im * ratio) / divisor, (a.im - a.re * ratio) / divisor};
    }
    const T ratio = b.re / b.im, divisor = b.re * ratio + b.im;
    return {(a.re * ratio + a.im) / divisor, (a.im * ratio - a.re) / divisor};
  }
  Complex operator-() const { return {-re, -im}; }
  Complex conjugate() const { return {re, -im}; }
  T square() const { return re * re + im * im; }
  T size() const { return std::hypot(re, im); }
  T sum() const { return std::abs(re) + std::abs(im); }
};

// sum of conj(a) * b
template <typename T>
Complex<T> inner_product(int64_t n, const Complex<T>* a, const Complex<T>* b) {
  Complex<T> sum;
  for (int64_t i = 0; i < n; ++i) sum = sum + a[i].conjugate() * b[i];
  return sum;
}

template <typename T>
T square_sum(int64_t n, const Complex<T>* a) {
  T sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i].square();
  return sum;
}

// (a, b) becomes (a * cosine - b * sine * turn, a * sine + b * cosine * turn), for a turn of size 1.
template <typename T>
void rotate_pair(int64_t n, T cosine, T sine, Complex<T> turn, Complex<T>* a, Complex<T>* b, int64_t step = 1) {
  for (int64_t i = 0; i < n * step; i += step) {
    const Complex<T> turned = b[i] * turn, old = a[i];
    a[i] = old * cosine - turned * sine;
    b[i] = old * sine + turned * cosine;
  }
}

}  // namespace ral
