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

// (rows [s, k], matrices [e, k, n], ends [e] i32 or i64) → [s, n]: rows up to the first end times the first matrix, from there up to the
// second times the second; rows behind the last are 0. Of floats; those of 16 bits are summed in f32.
void grouped_dot(LibraryCall& call);

// Of matrices [..., n, n] in f32 or f64:
// (a) → the lower factor of a positive-definite one, of which the lower triangle is read.
void cholesky(LibraryCall& call);
// (b [..., n, m], a) → x of a * x = b for a triangular a; numbers: whether the upper triangle is it, and whether its diagonal is 1.
void triangular_solve(LibraryCall& call);
// (b [..., n, m], a) → x of a * x = b. Fails where a is singular.
void solve(LibraryCall& call);
// (a) → its inverse. Fails where there is none.
void inverse(LibraryCall& call);
// (a) → determinant, its sign, the logarithm of its magnitude.
void determinant(LibraryCall& call);

// Fourier transforms along a dim, f32 or f64, the parts of complex numbers in the last dim; numbers: dim, for the first whether it is inverse,
// norm (the sums times 1, the root of 1 / n, or 1 / n).
void fft(LibraryCall& call);    // (x [..., 2]) → its shape
void rfft(LibraryCall& call);   // (x) → [..., 2], along the dim the frequencies from 0 to n / 2
void irfft(LibraryCall& call);  // ([..., 2], n / 2 + 1 frequencies) → real, n along the dim

}  // namespace ral
