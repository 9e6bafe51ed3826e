#include "cuda/products.h"

#include <dlfcn.h>

namespace ral::cuda {

namespace {

constexpr const char* kNames[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
constexpr uint64_t kMostWorkspace = 32 << 20;  // bytes: what NVIDIA advises for its largest GPUs
constexpr int32_t kAlignment = 16;             // bytes: of all tensors, which versions with products ask for by guards

// cudaDataType_t.
constexpr int32_t kReal32 = 0, kReal16 = 2, kBrain16 = 14;
// cublasComputeType_t: sums in f32, of products in f32 or in tf32.
constexpr int32_t kExact = 68, kTf32 = 77;
// cublasOperation_t.
constexpr int32_t kPlain = 0, kTransposed = 1;
// cublasLtMatmulDescAttributes_t and cublasLtEpilogue_t.
constexpr int32_t kTransposeA = 3, kTransposeB = 4, kEpilogue = 7, kBiasPointer = 8;
constexpr uint32_t kAddsBias = 4;
// cublasLtMatrixLayoutAttribute_t. Matrices are column-major unless another order is set.
constexpr int32_t kBatchCount = 5, kBatchStep = 6;
// cublasLtMatmulPreferenceAttributes_t. Parts of k are added in f32, in fixed order: of the schemes of cublasLtReductionScheme_t, INPLACE
// (1) and OUTPUT_TYPE (4) would round between them.
constexpr int32_t kWorkspaceLimit = 1, kReductions = 3, kAlignmentOfA = 5;
constexpr uint32_t kInComputeType = 2;

// -1: of an element that the library does not multiply.
int32_t type_of(int32_t dtype) {
  return dtype == RAL_F32 ? kReal32 : dtype == RAL_F16 ? kReal16 : dtype == RAL_BF16 ? kBrain16 : -1;
}

bool is_place(int32_t number, const ral_gpu_product& product) { return number >= 0 && number < product.parameter_count; }

}  // namespace

std::unique_ptr<Products> Products::load() {
  for (const char* name : kNames) {
    void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);  // also one that somebody else has loaded, from wherever
    if (!library) continue;
    auto products = std::make_unique<Products>();
    bool complete = true;
    const auto find = [&](const char* symbol) {
      void* found = dlsym(library, symbol);
      complete &= found != nullptr;
      return found;
    };
#define RAL_PRODUCT_FIND(member, symbol, parameters) products->member = reinterpret_cast<decltype(products->member)>(find(symbol));
    RAL_PRODUCT_FUNCTIONS(RAL_PRODUCT_FIND)
#undef RAL_PRODUCT_FIND
    products->status_name = reinterpret_cast<decltype(products->status_name)>(find("cublasLtGetStatusName"));
    if (complete && products->create(&products->handle) == kSuccess) return products;
    dlclose(library);
  }
  return nullptr;
}

std::string Products::text(int32_t status) const {
  const char* name = status_name(status);
  return name ? name : "cuBLAS status " + std::to_string(status);
}

std::string_view flaw(const ral_gpu_product& product) {
  if (product.parameter_count < 0) return "parameters";
  if (!is_place(product.left, product) || !is_place(product.right, product) || !is_place(product.result, product)) return "places";
  if (product.bias != -1 && !is_place(product.bias, product)) return "place of the bias";
  if (type_of(product.factor_dtype) < 0 || type_of(product.result_dtype) < 0) return "elements";
  if (product.result_dtype != product.factor_dtype && product.result_dtype != RAL_F32) return "elements";
  return "";
}

bool are_sizes(const ral_gpu_product& product, const ProductSizes& s) {
  return s.k > 0 && s.batch <= INT32_MAX && s.left_ahead >= (product.left_apart ? s.m : s.k) &&
         s.right_ahead >= (product.right_apart ? s.n : s.k) && s.result_ahead >= s.n;
}

Product::~Product() {
  for (void* layout : {left_, right_, result_}) {
    if (layout) products_.destroy_layout(layout);
  }
  if (description_) products_.destroy_description(description_);
}

int32_t Product::make_layout(void** layout, int32_t type, int64_t rows, int64_t columns, int64_t ahead, int64_t batch, int64_t step) {
  int32_t failed = products_.create_layout(layout, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), ahead);
  if (failed) *layout = nullptr;
  if (failed || batch == 1) return failed;
  const auto count = static_cast<int32_t>(batch);
  failed = products_.lay_out(*layout, kBatchCount, &count, sizeof count);
  return failed ? failed : products_.lay_out(*layout, kBatchStep, &step, sizeof step);
}

// A row-major matrix is a column-major one transposed: what is asked for is result^T = right^T * left^T, so that a bias has as many numbers
// as the matrix asked for has rows, as the library wants it.
int32_t Product::prepare(const ral_gpu_product& product, const ProductSizes& s) {
  const int32_t factor = type_of(product.factor_dtype);
  int32_t failed = products_.create_description(&description_, product.tf32 ? kTf32 : kExact, kReal32);
  if (failed) description_ = nullptr;
  const auto describe = [&](int32_t attribute, const void* value, size_t bytes) {
    if (!failed) failed = products_.describe(description_, attribute, value, bytes);
  };
  const int32_t turn_right = product.right_apart ? kPlain : kTransposed, turn_left = product.left_apart ? kTransposed : kPlain;
  describe(kTransposeA, &turn_right, sizeof turn_right);
  describe(kTransposeB, &turn_left, sizeof turn_left);
  has_bias_ = product.bias >= 0;
  if (has_bias_) {
    const void* anywhere = reinterpret_cast<const void*>(uintptr_t{kAlignment});  // says how any will be aligned
    describe(kEpilogue, &kAddsBias, sizeof kAddsBias);
    describe(kBiasPointer, &anywhere, sizeof anywhere);
  }
  const auto lay_out = [&](void** layout, int32_t type, int64_t rows, int64_t columns, int64_t ahead, int64_t step) {
    if (!failed) failed = make_layout(layout, type, rows, columns, ahead, s.batch, step);
  };
  lay_out(&right_, factor, product.right_apart ? s.n : s.k, product.right_apart ? s.k : s.n, s.right_ahead, s.right_step);
  lay_out(&left_, factor, product.left_apart ? s.m : s.k, product.left_apart ? s.k : s.m, s.left_ahead, s.left_step);
  lay_out(&result_, type_of(product.result_dtype), s.n, s.m, s.result_ahead, s.result_step);
  return failed ? failed : choose();
}

int32_t Product::choose() {
  void* preference = nullptr;
  int32_t count = 0;
  int32_t failed = products_.create_preference(&preference);
  if (failed) return failed;
  failed = products_.prefer(preference, kWorkspaceLimit, &kMostWorkspace, sizeof kMostWorkspace);
  if (!failed) failed = products_.prefer(preference, kReductions, &kInComputeType, sizeof kInComputeType);
  for (int32_t tensor = 0; tensor < 4 && !failed; ++tensor) {
    const auto alignment = static_cast<uint32_t>(kAlignment);
    failed = products_.prefer(preference, kAlignmentOfA + tensor, &alignment, sizeof alignment);
  }
  if (!failed) {
    failed = products_.search(products_.handle, description_, right_, left_, result_, result_, preference, 1, &found_, &count);
  }
  products_.destroy_preference(preference);
  if (!failed && count > 0) failed = found_.status;
  return failed || count > 0 ? failed : kProductUnsupported;
}

int32_t Product::run(const ProductPlaces& places, Address workspace, StreamHandle stream) {
  const float one = 1, zero = 0;
  const auto at = [](Address address) { return reinterpret_cast<void*>(address); };
  void* bias = at(places.bias);
  const int32_t failed = has_bias_ ? products_.describe(description_, kBiasPointer, &bias, sizeof bias) : kSuccess;
  if (failed) return failed;
  return products_.multiply(products_.handle, description_, &one, at(places.right), right_, at(places.left), left_, &zero,
                            at(places.result), result_, at(places.result), result_, &found_.algorithm, at(workspace), found_.workspace,
                            stream);
}

}  // namespace ral::cuda
