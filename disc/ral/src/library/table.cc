// The library functions by name. A name means the same for ever: what computes something else gets another one, so that old programs run on.
#include <utility>

#include "library/functions.h"

namespace ral {

namespace {

constexpr std::pair<std::string_view, LibraryFunction> kFunctions[] = {
    {"check_finite", check_finite}, {"check_rates", check_rates}, {"check_weights", check_weights}, {"cholesky", cholesky},
    {"cholesky_ex", cholesky_ex}, {"complex_cholesky", complex_cholesky}, {"complex_cholesky_ex", complex_cholesky_ex},
    {"complex_determinant", complex_determinant}, {"complex_eig", complex_eig}, {"complex_eigh", complex_eigh},
    {"complex_householder", complex_householder}, {"complex_householder_product", complex_householder_product}, {"complex_lu", complex_lu},
    {"complex_lu_checked", complex_lu_checked}, {"complex_qr", complex_qr}, {"complex_solve", complex_solve}, {"complex_svd", complex_svd},
    {"complex_triangular_solve", complex_triangular_solve}, {"count", count}, {"determinant", determinant}, {"eig", eig}, {"eigh", eigh}, {"fft", fft},
    {"gcd", gcd}, {"grouped_dot", grouped_dot},
    {"householder", householder}, {"householder_product", householder_product}, {"igamma", igamma}, {"igammac", igammac},
    {"inverse", inverse}, {"irfft", irfft}, {"kernel_gradient", kernel_gradient}, {"lcm", lcm}, {"logcumsumexp", logcumsumexp}, {"lu", lu}, {"lu_checked", lu_checked},
    {"matrix_exp", matrix_exp}, {"order_rows", order_rows}, {"permutation", permutation},
    {"reduce_segments", reduce_segments}, {"rfft", rfft}, {"search", search}, {"solve", solve}, {"sort", sort}, {"svd", svd},
    {"tiled_convolution", tiled_convolution}, {"topk", topk}, {"triangular_solve", triangular_solve}, {"zeta", zeta},
};

}  // namespace

LibraryFunction find_function(std::string_view name) noexcept {
  for (const auto& [own, function] : kFunctions) {
    if (own == name) return function;
  }
  return nullptr;
}

}  // namespace ral
