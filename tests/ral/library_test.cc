// Tests of library functions that run under the sanitizers: `library_test`. Exits with 1 at the first failure.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "core/library.h"
#include "testing.h"

namespace {

Bytes signature(const std::vector<std::string>& functions) {
  Bytes bytes;
  for (const uint32_t value : {1u, 3u}) put(bytes, value);  // version, inputs
  put_value(bytes, "x", RAL_F32, 2, {-1, -1});
  put_value(bytes, "dim", RAL_I64, 0, {});
  put_value(bytes, "descending", RAL_I64, 0, {});
  put<uint32_t>(bytes, 2);
  put_value(bytes, "values", RAL_F32, 2, {});
  put_value(bytes, "indices", RAL_I64, 2, {});
  for (const char* name : {"sort at model.py:3", "sort_0", "sort"}) put_texts(bytes, {name});
  put<uint32_t>(bytes, 0);  // weights
  put_texts(bytes, functions);
  return bytes;
}

ral_status load(const std::vector<std::string>& functions, ral_context** context) {
  static const Bytes code = read_file(LIBRARY_PROGRAM);
  const Bytes own = signature(functions);
  const ral_code section{"x86-64", code.data(), code.size()};
  const ral_program program{nullptr, 0, own.data(), own.size(), &section, 1, nullptr, 0};
  const ral_options options{RAL_ABI_VERSION, 4, nullptr};
  return ral_load_memory(&program, &options, context);
}

void check_sorted(ral_context* context, int64_t rows, int64_t columns, int64_t dim, int64_t descending) {
  std::mt19937 random(static_cast<uint32_t>(rows * columns + dim));
  std::vector<float> data(static_cast<size_t>(rows * columns));
  for (float& each : data) each = static_cast<float>(static_cast<int32_t>(random() % 41)) - 20.0f;
  if (data.size() > 2) data[1] = NAN, data[2] = -0.0f;
  const int64_t dims[2] = {rows, columns};
  const ral_tensor inputs[3] = {{data.data(), dims, nullptr, 2, RAL_F32, RAL_CPU, 0},
                                {const_cast<int64_t*>(&dim), nullptr, nullptr, 0, RAL_I64, RAL_CPU, 0},
                                {const_cast<int64_t*>(&descending), nullptr, nullptr, 0, RAL_I64, RAL_CPU, 0}};
  ral_tensor outputs[2];
  CHECK(ral_call(context, inputs, 3, nullptr, outputs, 2) == RAL_OK);
  const auto* values = static_cast<const float*>(outputs[0].data);
  const auto* indices = static_cast<const int64_t*>(outputs[1].data);
  const int64_t size = dims[dim], step = dim == 0 ? columns : 1, lines = dims[1 - dim], between = dim == 0 ? 1 : columns;
  const auto less = [&](float a, float b) { return descending ? b < a || (std::isnan(a) && !std::isnan(b)) : a < b || (std::isnan(b) && !std::isnan(a)); };
  for (int64_t line = 0; line < lines; ++line) {
    const float* source = data.data() + line * between;
    std::vector<int64_t> wanted(static_cast<size_t>(size));
    std::iota(wanted.begin(), wanted.end(), 0);
    std::stable_sort(wanted.begin(), wanted.end(), [&](int64_t a, int64_t b) { return less(source[a * step], source[b * step]); });
    for (int64_t i = 0; i < size; ++i) {
      const int64_t place = line * between + i * step, from = wanted[static_cast<size_t>(i)];
      CHECK(indices[place] == from);
      CHECK(std::memcmp(values + place, source + from * step, sizeof(float)) == 0);
    }
  }
  ral_release(&outputs[0]);
  ral_release(&outputs[1]);
}

void check_shapes(ral_context* context) {
  for (const auto& [rows, columns] : {std::pair{0, 3}, {3, 0}, {1, 1}, {2, 95}, {3, 96}, {97, 97}, {64, 1000}, {1, 5000}, {9, 512}}) {
    for (const int64_t mode : {0, 1, 2, 3}) check_sorted(context, rows, columns, mode & 1, mode >> 1);
  }
}

// The inverse of a matrix, or its lower factor, whose columns are dominated by the diagonal.
void check_matrix(ral_context* context, int64_t size, bool factor) {
  std::vector<float> data(static_cast<size_t>(size * size), 0.5f);
  for (int64_t i = 0; i < size; ++i) data[static_cast<size_t>(i * size + i)] = static_cast<float>(size);
  const int64_t dims[2] = {size, size}, zero = 0;
  const ral_tensor inputs[3] = {{data.data(), dims, nullptr, 2, RAL_F32, RAL_CPU, 0},
                                {const_cast<int64_t*>(&zero), nullptr, nullptr, 0, RAL_I64, RAL_CPU, 0},
                                {const_cast<int64_t*>(&zero), nullptr, nullptr, 0, RAL_I64, RAL_CPU, 0}};
  ral_tensor outputs[2];
  CHECK(ral_call(context, inputs, 3, nullptr, outputs, 2) == RAL_OK);
  const auto* found = static_cast<const float*>(outputs[0].data);
  for (int64_t i = 0; i < size; ++i) {
    for (int64_t j = 0; j < size; ++j) {
      float sum = 0;
      for (int64_t p = 0; p < size; ++p) sum += (factor ? found[i * size + p] : data[static_cast<size_t>(i * size + p)]) * found[factor ? j * size + p : p * size + j];
      CHECK(std::abs(sum - (factor ? data[static_cast<size_t>(i * size + j)] : static_cast<float>(i == j))) < 1e-4f * static_cast<float>(size));
    }
  }
  ral_release(&outputs[0]);
  ral_release(&outputs[1]);
}

// A function that finds its tensors wrong: the call fails with the message of the check and the reason, every time.
void check_failure(ral_context* context) {
  const int64_t dims[2] = {2, 3}, one = 1, more = 2;
  float data[6] = {};
  const ral_tensor inputs[3] = {{data, dims, nullptr, 2, RAL_F32, RAL_CPU, 0},
                                {const_cast<int64_t*>(&one), nullptr, nullptr, 0, RAL_I64, RAL_CPU, 0},
                                {const_cast<int64_t*>(&more), nullptr, nullptr, 0, RAL_I64, RAL_CPU, 0}};
  ral_tensor outputs[2];
  for (int i = 0; i < 3; ++i) {
    CHECK(ral_call(context, inputs, 3, nullptr, outputs, 2) == RAL_ERROR_SHAPE);
    CHECK(std::string(ral_last_error()).find("sort at model.py:3: k = 4 is above the size 3 of dim 1") != std::string::npos);
  }
}

// Functions of matrices whose results a program has got wrong: they say so, and write nothing.
void check_other_results(const std::string& name) {
  ral_context* context = nullptr;
  CHECK(load({name}, &context) == RAL_OK);
  const int64_t dims[2] = {3, 2}, zero = 0;
  float data[6] = {};
  const ral_tensor inputs[3] = {{data, dims, nullptr, 2, RAL_F32, RAL_CPU, 0},
                                {const_cast<int64_t*>(&zero), nullptr, nullptr, 0, RAL_I64, RAL_CPU, 0},
                                {const_cast<int64_t*>(&zero), nullptr, nullptr, 0, RAL_I64, RAL_CPU, 0}};
  ral_tensor outputs[2];
  CHECK(ral_call(context, inputs, 3, nullptr, outputs, 2) == RAL_ERROR_SHAPE);
  const std::string said = ral_last_error();
  CHECK(said.find("do not belong together") != std::string::npos || said.find("needs square matrices") != std::string::npos);
  ral_unload(context);
}

}  // namespace

int main() {
  ral_context* context = nullptr;
  CHECK(load({"no such function"}, &context) == RAL_ERROR_ARTIFACT && !context);
  CHECK(std::string(ral_last_error()).find("'no such function'") != std::string::npos);
  CHECK(load({}, &context) == RAL_OK);  // the program names none, and calls one
  const int64_t dims[2] = {1, 1}, zero = 0;
  float one = 1;
  const ral_tensor inputs[3] = {{&one, dims, nullptr, 2, RAL_F32, RAL_CPU, 0}, {const_cast<int64_t*>(&zero), nullptr, nullptr, 0, RAL_I64, RAL_CPU, 0}, {const_cast<int64_t*>(&zero), nullptr, nullptr, 0, RAL_I64, RAL_CPU, 0}};
  ral_tensor outputs[2];
  CHECK(ral_call(context, inputs, 3, nullptr, outputs, 2) == RAL_ERROR_INTERNAL);
  ral_unload(context);
  CHECK(load({"topk"}, &context) == RAL_OK);
  check_failure(context);
  for (const auto& [rows, columns] : {std::pair{3, 1000}, {2, 16}, {9, 7}}) check_sorted(context, rows, columns, 1, 1);  // as many as there are
  ral_unload(context);
  for (const char* name : {"cholesky_ex", "eigh", "householder", "inverse", "matrix_exp"}) check_other_results(name);
  for (const bool factor : {false, true}) {
    CHECK(load({factor ? "cholesky" : "inverse"}, &context) == RAL_OK);
    for (const int64_t size : {1, 5, 33, 64, 65, 130}) check_matrix(context, size, factor);
    ral_unload(context);
  }
  CHECK(load({"sort"}, &context) == RAL_OK);
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back(check_shapes, context);
  for (std::thread& thread : threads) thread.join();
  int64_t launches = 0, nanoseconds = 0;
  ral_get_kernels(context, &launches, &nanoseconds);
  CHECK(launches == 3 * 9 * 4);
  ral_unload(context);
  std::puts("library_test: ok");
  return 0;
}
