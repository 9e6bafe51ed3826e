// Products by cuBLASLt, where the process can load it. Nothing of CUDA is needed to build or to load this library; what is declared here is
// alike in cuBLASLt 12 and 13.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "cuda/driver.h"
#include "ral.h"

namespace ral::cuda {

// Added to a status of cuBLASLt (cublasStatus_t) where a CUresult is expected.
constexpr int32_t kProductStatus = 1 << 20;
constexpr int32_t kProductNoMemory = 3;      // CUBLAS_STATUS_ALLOC_FAILED
constexpr int32_t kProductUnsupported = 15;  // CUBLAS_STATUS_NOT_SUPPORTED

struct ProductAlgorithm {  // cublasLtMatmulAlgo_t
  uint64_t data[8];
};

struct ProductFound {  // cublasLtMatmulHeuristicResult_t
  ProductAlgorithm algorithm;
  size_t workspace;
  int32_t status;
  float waves;
  int32_t reserved[4];
};

static_assert(sizeof(ProductFound) == 96 && offsetof(ProductFound, workspace) == 64 && offsetof(ProductFound, status) == 72);

// (member, symbol, parameters): every function returns a status. Handles and descriptions are pointers.
#define RAL_PRODUCT_FUNCTIONS(F)                                                                                              \
  F(create, "cublasLtCreate", (void** handle))                                                                                \
  F(create_description, "cublasLtMatmulDescCreate", (void** description, int32_t compute, int32_t scale))                     \
  F(destroy_description, "cublasLtMatmulDescDestroy", (void* description))                                                    \
  F(describe, "cublasLtMatmulDescSetAttribute", (void* description, int32_t attribute, const void* value, size_t bytes))      \
  F(create_layout, "cublasLtMatrixLayoutCreate", (void** layout, int32_t type, uint64_t rows, uint64_t columns, int64_t ahead)) \
  F(destroy_layout, "cublasLtMatrixLayoutDestroy", (void* layout))                                                            \
  F(lay_out, "cublasLtMatrixLayoutSetAttribute", (void* layout, int32_t attribute, const void* value, size_t bytes))          \
  F(create_preference, "cublasLtMatmulPreferenceCreate", (void** preference))                                                 \
  F(destroy_preference, "cublasLtMatmulPreferenceDestroy", (void* preference))                                                \
  F(prefer, "cublasLtMatmulPreferenceSetAttribute", (void* preference, int32_t attribute, const void* value, size_t bytes))   \
  F(search, "cublasLtMatmulAlgoGetHeuristic",                                                                                 \
    (void* handle, void* description, void* a, void* b, void* c, void* d, void* preference, int32_t wanted, ProductFound* found, \
     int32_t* count))                                                                                                         \
  F(multiply, "cublasLtMatmul",                                                                                               \
    (void* handle, void* description, const void* alpha, const void* a, void* a_layout, const void* b, void* b_layout,        \
     const void* beta, const void* c, void* c_layout, void* d, void* d_layout, const ProductAlgorithm* algorithm,             \
     void* workspace, size_t bytes, StreamHandle stream))

// The library, with a handle for one GPU, which calls of any threads share: it keeps nothing of a call.
struct Products {
#define RAL_PRODUCT_MEMBER(member, symbol, parameters) int32_t(*member) parameters = nullptr;
  RAL_PRODUCT_FUNCTIONS(RAL_PRODUCT_MEMBER)
#undef RAL_PRODUCT_MEMBER
  const char* (*status_name)(int32_t status) = nullptr;
  void* handle = nullptr;

  // For the GPU whose context is current. Null where there is no library, or none that works with the driver.
  static std::unique_ptr<Products> load();

  // "CUBLAS_STATUS_NOT_SUPPORTED".
  std::string text(int32_t status) const;
};

// Of result[batch, m, n] = sum over k of left[batch, m, k] * right[batch, k, n]. ahead: elements from a row to the next, or from a value of
// k to the next where these lie apart (`ral_gpu_product`); step: from a matrix of the batch to the next.
struct ProductSizes {
  int64_t m, n, batch, k, left_ahead, right_ahead, result_ahead, left_step, right_step, result_step;
  auto operator<=>(const ProductSizes&) const = default;
};

// Where the tensors of a product lie. bias: unused where it has none.
struct ProductPlaces {
  Address left, right, bias, result;
};

// What is wrong with a description; "" = nothing.
std::string_view flaw(const ral_gpu_product& product);
// Whether these are the sizes of a product, by its description.
bool are_sizes(const ral_gpu_product& product, const ProductSizes& sizes);

// A product of given sizes, as the library wants it described, and how the library computes it. Used by one thread at a time. Its functions
// return a status.
class Product {
 public:
  explicit Product(const Products& products) : products_(products) {}
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;
  ~Product();

  // Once.
  int32_t prepare(const ral_gpu_product& product, const ProductSizes& sizes);
  size_t workspace() const { return found_.workspace; }
  // Asks a stream for it. The workspace is free again behind it.
  int32_t run(const ProductPlaces& places, Address workspace, StreamHandle stream);

 private:
  int32_t make_layout(void** layout, int32_t type, int64_t rows, int64_t columns, int64_t ahead, int64_t batch, int64_t step);
  int32_t choose();

  const Products& products_;
  void *description_ = nullptr, *left_ = nullptr, *right_ = nullptr, *result_ = nullptr;
  bool has_bias_ = false;
  ProductFound found_{};
};

}  // namespace ral::cuda
