// Products by a library (product_program.c) on the stand-ins for the driver and for cuBLASLt: `products_test`. Exits with 1 at the first failure.
#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "fake_products.h"
#include "gpu_testing.h"
#include "ral.h"
#include "testing.h"

namespace {

using Reals = std::vector<float>;

struct Sizes {
  int64_t m, n, k, batch, which;  // of `descriptions` in product_program.c
  int64_t wrong = 1;
};
constexpr bool kLeftApart[] = {false, false, true, true}, kRightApart[] = {true, false, true, false}, kHasBias[] = {false, true, true, false};

ral_context* loaded(const char* wanted = "cuda") {
  static const Bytes code = read_file(PRODUCT_PROGRAM);
  Bytes bytes;
  for (const uint32_t value : {1u, 4u}) put(bytes, value);  // version, inputs
  for (const char* name : {"a", "b", "bias"}) put_value(bytes, name, RAL_F32, 1, {-1});
  put_value(bytes, "sizes", RAL_F32, 6, {-1, -1, -1, -1, -1, -1});
  put<uint32_t>(bytes, 1);
  put_value(bytes, "y", RAL_F32, 1, {});
  put_texts(bytes, {});
  put_texts(bytes, {"product"});
  put_texts(bytes, {"own", "library"});
  put<uint32_t>(bytes, 0);
  const ral_code section{"cuda:x86-64+sm_90", code.data(), code.size()};
  const ral_program program{nullptr, 0, bytes.data(), bytes.size(), &section, 1, nullptr, 0};
  const ral_options options{RAL_ABI_VERSION, 2, wanted};
  ral_context* context = nullptr;
  CHECK(ral_load_memory(&program, &options, &context) == RAL_OK);
  return context;
}

// f32 numbers on a GPU.
class Floats {
 public:
  Floats(const Reals& numbers, const Stream& stream) : dims_{static_cast<int64_t>(numbers.size())}, stream_(stream) {
    CHECK(driver.allocate(&place_, numbers.size() * 4 + 4) == 0);
    if (numbers.empty()) return;
    CHECK(driver.copy_async(place_, reinterpret_cast<uint64_t>(numbers.data()), numbers.size() * 4, stream.handle) == 0);
  }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;
  ~Floats() { driver.free_async(place_, stream_.handle); }
  ral_tensor tensor() { return {reinterpret_cast<void*>(place_), dims_, nullptr, 1, RAL_F32, RAL_CUDA, 0}; }

 private:
  int64_t dims_[1];
  const Stream& stream_;
  uint64_t place_ = 0;
};

Reals some(int64_t count, int64_t seed) {
  Reals numbers;
  for (int64_t i = 0; i < count; ++i) numbers.push_back(static_cast<float>((i * 7 + seed * 3) % 11 - 5) / 4);
  return numbers;
}

Reals expected(const Sizes& s, const Reals& a, const Reals& b, const Reals& bias) {
  Reals y;
  for (int64_t g = 0; g < s.batch; ++g) {
    for (int64_t i = 0; i < s.m; ++i) {
      for (int64_t j = 0; j < s.n; ++j) {
        float sum = kHasBias[s.which] ? bias[static_cast<size_t>(j)] : 0;
        for (int64_t k = 0; k < s.k; ++k) {
          const int64_t left = g * s.m * s.k + (kLeftApart[s.which] ? k * s.m + i : i * s.k + k);
          const int64_t right = g * s.n * s.k + (kRightApart[s.which] ? k * s.n + j : j * s.k + k);
          sum += a[static_cast<size_t>(left)] * b[static_cast<size_t>(right)];
        }
        y.push_back(sum);
      }
    }
  }
  return y;
}

ral_status call(ral_context* context, const Sizes& s, const Stream& stream, int64_t seed, Reals* found, Reals* wanted) {
  const Reals numbers[] = {some(s.batch * s.m * s.k, seed), some(s.batch * s.n * s.k, seed + 1), some(s.n, seed + 2)};
  Floats a(numbers[0], stream), b(numbers[1], stream), bias(numbers[2], stream), empty({}, stream);
  const int64_t dims[] = {s.m, s.n, s.k, s.batch, s.which + 1, s.wrong};
  ral_tensor sizes = empty.tensor(), output{};
  sizes.dims = dims, sizes.rank = 6;
  if (wanted) *wanted = expected(s, numbers[0], numbers[1], numbers[2]);
  const ral_tensor inputs[] = {a.tensor(), b.tensor(), bias.tensor(), sizes};
  const ral_status status = ral_call_on(context, inputs, 4, nullptr, &output, 1, stream.handle);
  if (status != RAL_OK) return status;
  found->resize(static_cast<size_t>(output.dims[0]));
  if (!found->empty()) {
    CHECK(driver.copy_async(reinterpret_cast<uint64_t>(found->data()), reinterpret_cast<uint64_t>(output.data), found->size() * 4,
                            stream.handle) == 0);
  }
  ral_release(&output);
  return status;
}

void check_call(ral_context* context, const Sizes& s, const Stream& stream, int64_t seed) {
  Reals found, wanted;
  CHECK(call(context, s, stream, seed, &found, &wanted) == RAL_OK);
  CHECK(found == wanted);
}

constexpr Sizes kSome[] = {{4, 8, 3, 1, 0}, {1, 1, 1, 1, 1}, {5, 7, 6, 3, 2}, {3, 4, 5, 2, 3}, {2, 9, 4, 1, 1}, {0, 4, 4, 1, 0}, {4, 4, 4, 0, 1}};

void test_results(ral_context* context, int64_t seed) {
  const Stream stream(0);
  for (int64_t round = 0; round < 2; ++round) {
    for (const Sizes& s : kSome) check_call(context, s, stream, seed + round);
  }
}

// How a product is computed is looked for once per size; products are as many as launches.
void test_what_is_kept() {
  ral_context* context = loaded();
  const Stream stream(0);
  const fake_products before = fake_get_products();
  for (int64_t i = 0; i < 5; ++i) check_call(context, {4, 8, 3, 1, 0}, stream, i);
  for (int64_t i = 0; i < 5; ++i) check_call(context, {4, 8, 3, 1, 1}, stream, i);
  const fake_products after = fake_get_products();
  CHECK(after.searches - before.searches == 2 && after.products - before.products == 10);
  for (int64_t n = 1; n < 1100; ++n) check_call(context, {1, n, 1, 1, 0}, stream, n);
  CHECK(fake_get_products().live < 5000);  // four of each
  int64_t counters[2];
  ral_get_counters(context, counters);
  CHECK(counters[0] == 0 && counters[1] == 1109);
  ral_unload(context);
}

// Recorded with the others' requests, and asked for again with other tensors.
void test_graphs() {
  ral_context* context = loaded();
  const Stream stream(0), other(0);
  ral_set_graphs(context, 4);
  for (const Sizes& s : kSome) {
    for (int64_t seed = 0; seed < 6; ++seed) check_call(context, s, seed % 2 ? stream : other, seed);
  }
  ral_graph_stats stats;
  ral_get_graph_stats(context, &stats);
  CHECK(stats.records == 7 && stats.replays == 7 * 4 && stats.refusals == 0);
  ral_unload(context);
}

void test_errors(ral_context* context) {
  const Stream stream(0);
  Reals found;
  for (int64_t which = 4; which < 10; ++which) {
    CHECK(call(context, {2, 2, 2, 1, which}, stream, 0, &found, nullptr) == RAL_ERROR_ARTIFACT);
    CHECK(std::strstr(ral_last_error(), "kernel 'product' is described with wrong "));
  }
  for (const Sizes& s : {Sizes{2, 2, 0, 1, 0}, Sizes{2, 2, 2, 1, 1, 2}}) {
    CHECK(call(context, s, stream, 0, &found, nullptr) == RAL_ERROR_INTERNAL);
    CHECK(std::strstr(ral_last_error(), "sizes that do not fit each other (compiler bug)"));
  }
  check_call(context, {2, 2, 2, 1, 1}, stream, 1);
  // All calls of the library fail once: in words of its own, and the next call lives.
  for (const bool graphs : {false, true}) {
    bool hit = true;
    for (int64_t at = 0; hit; ++at) {
      ral_context* own = loaded();
      ral_set_graphs(own, graphs);
      const int32_t status_of = at % 2 ? 3 : 15;
      fake_fail_products(at, status_of);
      for (int64_t i = 0; i < 4; ++i) {
        const ral_status status = call(own, {3, 4, 5, 2, 1}, stream, i, &found, nullptr);
        CHECK(status == RAL_OK || status == (at % 2 ? RAL_ERROR_MEMORY : RAL_ERROR_DEVICE));
        if (status == RAL_OK) continue;
        const std::string said = ral_last_error();
        CHECK(said.find(at % 2 ? "CUBLAS_STATUS_ALLOC_FAILED" : "CUBLAS_STATUS_NOT_SUPPORTED") != std::string::npos);
        const bool whole = said.find(", 640 bytes of scratch memory) by cuBLASLt failed") != std::string::npos;
        CHECK((said.find("device cuda:0: the product of kernel 'product' (2 of 3 x 4, 5 values of k") == 0 &&
               (whole || said.find("5 values of k) by cuBLASLt failed") != std::string::npos)) ||
              said.find("device cuda:0: launching a graph failed") == 0);
      }
      hit = fake_get_products().calls > at;
      fake_fail_products(-1, 0);
      check_call(own, {3, 4, 5, 2, 1}, stream, 1);
      ral_unload(own);
    }
  }
}

// Every call of the driver fails once, and nothing is left over.
void test_failures() {
  bool hit = true;
  for (int64_t at = 0; hit; ++at) {
    const fake_counts before = fake_get_counts();
    {
      const Stream stream(0);
      ral_context* context = loaded();
      ral_set_graphs(context, 1);
      const Reals a = some(6, at), b = some(8, at), c = some(4, at);
      Floats left(a, stream), right(b, stream), bias(c, stream), empty({}, stream);
      const int64_t dims[] = {3, 4, 2, 1, 2, 1};
      ral_tensor sizes = empty.tensor();
      sizes.dims = dims, sizes.rank = 6;
      int64_t rest = at;
      hit = false;
      for (int64_t i = 0; i < 4; ++i) {
        const ral_tensor inputs[] = {left.tensor(), right.tensor(), bias.tensor(), sizes};
        ral_tensor output{};
        fake_fail(hit ? -1 : rest, at % 2 ? 2 : 999);
        const ral_status status = ral_call_on(context, inputs, 4, nullptr, &output, 1, stream.handle);
        rest -= fake_get_counts().calls;
        hit |= rest < 0;
        fake_fail(-1, 0);
        CHECK(status == RAL_OK || status == RAL_ERROR_DEVICE || status == RAL_ERROR_MEMORY);
        if (status != RAL_OK) continue;
        Reals found(12);
        CHECK(driver.copy_async(reinterpret_cast<uint64_t>(found.data()), reinterpret_cast<uint64_t>(output.data), 48, stream.handle) == 0);
        CHECK(found == expected({3, 4, 2, 1, 1}, a, b, c));
        ral_release(&output);
      }
      check_call(context, {3, 4, 2, 1, 1}, stream, 1);
      ral_unload(context);
    }
    const fake_counts after = fake_get_counts();
    CHECK(after.live_blocks == before.live_blocks && after.live_graphs == before.live_graphs && after.live_host == before.live_host);
  }
}

void test_threads() {
  ral_context* context = loaded();
  ral_set_graphs(context, 4);
  std::vector<std::thread> callers;
  for (int64_t seed = 0; seed < 4; ++seed) callers.emplace_back([=] { test_results(context, seed); });
  for (std::thread& caller : callers) caller.join();
  ral_unload(context);
}

void test_profile(ral_context* context) {
  const Stream stream(0);
  int64_t launches = 0, nanoseconds = 0;
  ral_set_profile(context, 1);
  check_call(context, {4, 8, 3, 1, 1}, stream, 1);
  ral_set_profile(context, 0);
  ral_get_kernels(context, &launches, &nanoseconds);
  CHECK(launches > 0 && nanoseconds > 0);
}

}  // namespace

int main() {
  start_gpus();
  for (uint32_t seed = 0; seed < 3; ++seed) {
    fake_set_seed(seed, seed == 0 ? 0 : 30);
    fake_set_protection(seed == 1);
    ral_context* context = loaded();
    test_results(context, seed);
    test_graphs();
    if (seed != 1) test_threads();
    test_profile(context);
    ral_unload(context);
    CHECK(fake_get_products().live == 0 && fake_get_counts().live_graphs == 0);
  }
  fake_set_protection(0);
  test_what_is_kept();
  ral_context* context = loaded();
  test_errors(context);
  ral_unload(context);
  test_failures();
  CHECK(fake_get_products().live == 0);
  std::puts("products_test: all passed");
  return 0;
}
