// The library functions, each for the op of its name (disc/ir/op_table.py); the numbers are the attributes that the op's record lists.
#pragma once

#include "core/library.h"

namespace ral {

// (x) → (values, indices i64) of its shape; numbers: dim, descending.
void sort(LibraryCall& call);

// (x) → (values, indices i64), as large as x but along the dim; numbers: dim, whether the largest are wanted. In their order; of equal ones
// any may come first.
void topk(LibraryCall& call);

// (values, lines) → for each value how many elements of its line, which is sorted, come before it, i32 or i64. lines: one for all values, or
// one for each position of the dims before the last. numbers: whether equal elements come before.
void search(LibraryCall& call);

// (places i32 or i64) → how often each number from 0 to the size of the result, i64, is there.
void count(LibraryCall& call);

// (x [t, ...], starts i64 [n], ends i64 [n]) → [n, ...]: the sums over the rows of x from each start up to the end, or their maxima, NaN being
// the largest; of no rows 0, or the least number. Floats are summed in f64. numbers: whether maxima are wanted.
void reduce_segments(LibraryCall& call);

// (rows [s, k], matrices [e, k, n], ends [e] i32 or i64) → [s, n]: rows up to the first end times the first matrix, from there up to the
// second times the second; rows behind the last are 0. Of floats; those of 16 bits are summed in f32.
void grouped_dot(LibraryCall& call);

// Of f32, bf16 or f16, all of one type, computed in f32, with windows of 3x3 or 5x5 by strides of 1, by Winograd's method; numbers: how many
// zeros lie before the source along each axis.
// (source [b, c, h, w], kernel [o, c, y, x]) → [b, o, h', w']; what a window reads beyond the source is 0.
void tiled_convolution(LibraryCall& call);
// (source, gradient of the result [b, o, h', w']) → that of the kernel.
void kernel_gradient(LibraryCall& call);

// Of matrices [..., n, n] in f32 or f64:
// (a) → the lower factor of a positive-definite one, of which the lower triangle is read.
void cholesky(LibraryCall& call);
// The same, and 0 for each matrix, or the order of its leading minor that is not positive-definite, i32 [...]: then the
// columns before are its factor's, and what is behind is as LAPACK leaves it without blocks: the pivot, and the matrix's own elements.
void cholesky_ex(LibraryCall& call);
// (b [..., n, m], a) → x of a * x = b for a triangular a; numbers: whether the upper triangle is it, and whether its diagonal is 1.
void triangular_solve(LibraryCall& call);
// (b [..., n, m], a) → x of a * x = b. Fails where a is singular.
void solve(LibraryCall& call);
// (a) → its inverse. Fails where there is none.
void inverse(LibraryCall& call);
// (a) → determinant, its sign, the logarithm of its magnitude.
void determinant(LibraryCall& call);

// Of matrices [..., m, n] in f32 or f64, k = min(m, n):
// (a) → L, whose diagonal is 1, and U in one matrix; row i was exchanged with row pivots[i] - 1, i32 [..., k]; row i of L * U is row order[i] of
// a, i32 [..., m]; the first zero on the diagonal of U, from 1, or 0 where there is none, i32 [...].
void lu(LibraryCall& call);
// The same. Fails where there is a zero.
void lu_checked(LibraryCall& call);
// (pivots i32 [..., k]) → the order [..., m] that these exchanges make.
void permutation(LibraryCall& call);
// (a) → its QR factorization: R on and above the diagonal, below it reflections, with their factors [..., k].
void householder(LibraryCall& call);
// (reflections [..., m, n], factors [..., k]) → the first columns of their product, [..., m, c], k <= c <= m.
void householder_product(LibraryCall& call);
// (a), square and symmetric, of which the lower triangle is read → eigenvalues [..., n], ascending; eigenvectors in columns.
void eigh(LibraryCall& call);
// (a) → U, singular values [..., k], descending, V^T: either [..., m, k] and [..., k, n], or [..., m, m] and [..., n, n].
void svd(LibraryCall& call);
// (a), square → its exponential.
void matrix_exp(LibraryCall& call);

// Of complex matrices [..., m, n, 2] in f32 or f64, k = min(m, n):
// (b [..., n, c, 2], a [..., n, n, 2]) → x of a * x = b. Fails where a is singular.
void complex_solve(LibraryCall& call);
// (a), square → determinant [..., 2], divided by its magnitude [..., 2], the logarithm of that.
void complex_determinant(LibraryCall& call);
// (a), Hermitian and positive-definite, of which the lower triangle is read → L of L * L^H.
void complex_cholesky(LibraryCall& call);
// The same, and 0 for each matrix, or the order of its leading minor that is not positive-definite, i32 [...]: as `cholesky_ex`.
void complex_cholesky_ex(LibraryCall& call);
// (b [..., n, c, 2], a [..., n, n, 2]) → x of a * x = b for a triangular a; numbers: whether the upper triangle is it, and whether its diagonal
// is 1.
void complex_triangular_solve(LibraryCall& call);
// (a) → L and U in one matrix, pivots, order, the first zero on the diagonal of U: as `lu`; the second fails where there is a zero.
void complex_lu(LibraryCall& call);
void complex_lu_checked(LibraryCall& call);
// (a) → its QR factorization: R, whose diagonal is real, on and above the diagonal, below it reflections I - f * v * v^H, with their factors f
// [..., k, 2].
void complex_householder(LibraryCall& call);
// (reflections [..., m, n, 2], factors [..., k, 2]) → the first columns of their product, [..., m, c, 2], k <= c <= m.
void complex_householder_product(LibraryCall& call);
// (a) → Q [..., m, c, 2], R [..., c, n, 2], whose diagonal is real; c is k or m.
void complex_qr(LibraryCall& call);
// (a), Hermitian, of which the lower triangle is read → eigenvalues [..., n], ascending; eigenvectors in columns.
void complex_eigh(LibraryCall& call);
// (a) → U, singular values [..., k], descending, V^H: as `svd`.
void complex_svd(LibraryCall& call);
// (a), any square matrix → eigenvalues [..., n, 2], eigenvectors in columns, of size 1, with a real largest element.
void eig(LibraryCall& call);          // of a real one [..., n, n]
void complex_eig(LibraryCall& call);  // of a complex one

// (x) → the logarithms of the sums of exp(x) up to each element along a dim, f32 or f64; numbers: dim.
void logcumsumexp(LibraryCall& call);

// Element by element, f32 or f64: (x, q) → Hurwitz' zeta function; (a, x) → the regularized incomplete gamma functions, lower and upper.
void zeta(LibraryCall& call);
void igamma(LibraryCall& call);
void igammac(LibraryCall& call);

// Element by element, of integers of one type: the greatest common divisor and the least common multiple, wrapped as eager's.
void gcd(LibraryCall& call);
void lcm(LibraryCall& call);

// (x [n, k]) → the places of its rows, i64 [n], in lexicographic order, equal ones in theirs.
void order_rows(LibraryCall& call);

// (weights [..., n], f32 or f64) → the same. Fails where one is negative or not finite, or all of a line are 0.
void check_weights(LibraryCall& call);
// (x, f32 or f64) → the same. Fails where an element is not finite.
void check_finite(LibraryCall& call);
// (x, f32 or f64) → the same. Fails where an element is negative or not finite.
void check_rates(LibraryCall& call);

// Fourier transforms along a dim, f32 or f64, the parts of complex numbers in the last dim; numbers: dim, for the first whether it is inverse,
// norm (the sums times 1, the root of 1 / n, or 1 / n).
void fft(LibraryCall& call);    // (x [..., 2]) → its shape
void rfft(LibraryCall& call);   // (x) → [..., 2], along the dim the frequencies from 0 to n / 2
void irfft(LibraryCall& call);  // ([..., 2], n / 2 + 1 frequencies) → real, n along the dim

}  // namespace ral
