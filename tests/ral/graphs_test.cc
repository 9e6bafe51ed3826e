// Calls that are recorded as CUDA graphs (graph_program.c), on the stand-in driver: `graphs_test`. Exits with 1 at the first failure.
#include <cstring>
#include <memory>
#include <thread>

#include "gpu_testing.h"
#include "ral.h"
#include "testing.h"

namespace {

constexpr int64_t kWeight = 5;
constexpr size_t kSpare = 8;  // numbers behind those of a buffer

ral_context* loaded(const char* wanted = "cuda") {
  static const Bytes code = read_file(GRAPH_PROGRAM);
  Bytes bytes;
  for (const uint32_t value : {1u, 2u}) put(bytes, value);  // version, inputs
  put_value(bytes, "x", RAL_I64, 1, {-1});
  put_value(bytes, "y", RAL_I64, 1, {-1});
  put<uint32_t>(bytes, 2);
  put_value(bytes, "z", RAL_I64, 1, {});
  put_value(bytes, "w", RAL_I64, 1, {});
  put_texts(bytes, {"index {actual} of {expected}"});
  put_texts(bytes, {"pick", "add", "raise"});
  put_texts(bytes, {"aligned", "others"});
  put<uint32_t>(bytes, 1);
  put_text(bytes, "weight");
  put<int64_t>(bytes, 0);
  put<int64_t>(bytes, sizeof kWeight);
  const ral_code section{"cuda:x86-64+sm_90", code.data(), code.size()};
  const void* weights[] = {&kWeight};
  const ral_program program{nullptr, 0, bytes.data(), bytes.size(), &section, 1, weights, 1};
  const ral_options options{RAL_ABI_VERSION, 2, wanted};
  ral_context* context = nullptr;
  CHECK(ral_load_memory(&program, &options, &context) == RAL_OK);
  return context;
}

Numbers counting(int64_t count, int64_t seed) {
  Numbers numbers;
  for (int64_t i = 0; i < count; ++i) numbers.push_back((i * 7 + seed) % count);
  return numbers;
}

void check_results(const Numbers& x, const Numbers& y, const Numbers& z, const Numbers& w) {
  CHECK(z.size() == x.size() && w.size() == y.size());
  for (size_t i = 0; i < x.size(); ++i) CHECK(z[i] == x[static_cast<size_t>(x[i])] + x[i]);
  for (size_t i = 0; i < y.size(); ++i) CHECK(w[i] == y[i] + kWeight);
}

// A call on the GPU; found: z and w.
ral_status call(ral_context* context, Tensor& x, Tensor& y, const Stream* stream, Numbers* found) {
  const ral_tensor inputs[] = {x.tensor(), y.tensor()};
  ral_tensor outputs[2] = {};
  const ral_status status = ral_call_on(context, inputs, 2, nullptr, outputs, 2, stream ? stream->handle : nullptr);
  if (status != RAL_OK) return status;
  for (size_t i = 0; i < 2; ++i) found[i] = result(outputs[i], stream);
  for (ral_tensor& output : outputs) ral_release(&output);
  return status;
}

void check_call(ral_context* context, int64_t n, int64_t m, int64_t seed, const Stream* stream) {
  const Numbers numbers[] = {counting(n, seed), counting(m, seed + 1)};
  const auto gpu = static_cast<uint8_t>(ral_device_id(context));
  Tensor x(numbers[0], stream, gpu), y(numbers[1], stream, gpu);
  Numbers found[2];
  CHECK(call(context, x, y, stream, found) == RAL_OK);
  check_results(numbers[0], numbers[1], found[0], found[1]);
}

ral_graph_stats stats(ral_context* context) {
  ral_graph_stats found;
  ral_get_graph_stats(context, &found);
  return found;
}

Numbers all_of(const ral_graph_stats& found) { return {found.records, found.replays, found.evictions, found.refusals}; }

// The second call of a size is recorded, later ones are replayed: with other tensors, the same one twice, on other streams, from memory of
// the host.
void test_replays() {
  ral_context* context = loaded();
  const Stream stream(0), other(0);
  for (int64_t seed = 0; seed < 3; ++seed) check_call(context, 6, 3, seed, &stream);
  CHECK(all_of(stats(context)) == Numbers(4, 0));
  ral_set_graphs(context, 4);
  CHECK(ral_graphs(context) == 4);
  {
    const Numbers numbers = counting(6, 1);
    Tensor same(numbers, &stream);
    Numbers found[2];
    for (int64_t i = 0; i < 2; ++i) {  // recorded where both inputs are one tensor
      CHECK(call(context, same, same, &stream, found) == RAL_OK);
      check_results(numbers, numbers, found[0], found[1]);
    }
  }
  CHECK(all_of(stats(context)) == Numbers({1, 0, 0, 0}));
  const fake_counts before = fake_get_counts();
  for (int64_t seed = 0; seed < 6; ++seed) check_call(context, 6, 6, seed, seed % 2 ? &stream : &other);
  const fake_counts after = fake_get_counts();
  CHECK(all_of(stats(context)) == Numbers({1, 6, 0, 0}) && after.graph_launches - before.graph_launches == 6);
  CHECK(after.allocated - before.allocated == 6 * 4);  // inputs and results
  for (int64_t seed = 0; seed < 4; ++seed) check_call(context, 5, 2, seed, nullptr);  // of the host
  CHECK(all_of(stats(context)) == Numbers({2, 8, 0, 0}));
  int64_t launches[3], nanoseconds[3], counters[2];
  ral_get_kernels(context, launches, nanoseconds);
  ral_get_counters(context, counters);
  CHECK(launches[0] == 15 && launches[1] == 30 && launches[2] == 30 && counters[0] == 15 && counters[1] == 0);
  ral_unload(context);
}

// Results of replays lie in memory that somebody lends.
void test_lender() {
  ral_context* context = loaded();
  const Stream stream(0);
  Loans loans{stream};
  ral_set_graphs(context, 2);
  ral_set_lender(Loans::lend, &loans, 2);
  for (int64_t seed = 0; seed < 5; ++seed) check_call(context, 6, 3, seed, &stream);
  CHECK(all_of(stats(context)) == Numbers({1, 3, 0, 0}) && loans.lent == 10 && loans.returned == 10);
  ral_set_lender(nullptr, nullptr, 0);
  ral_unload(context);
}

// Sizes 0 and 1; what reads is not recorded; graphs that were used longest ago are given up, and all of them where none are wanted.
void test_what_is_kept() {
  ral_context* context = loaded();
  const Stream stream(0);
  ral_set_graphs(context, 2);
  for (const int64_t size : {0, 1}) {
    for (int64_t seed = 0; seed < 4; ++seed) check_call(context, size, 1 - size, seed, &stream);
  }
  CHECK(all_of(stats(context)) == Numbers({2, 4, 0, 0}));
  for (int64_t seed = 0; seed < 4; ++seed) check_call(context, 13, 2, seed, &stream);
  CHECK(all_of(stats(context)) == Numbers({2, 4, 0, 1}));
  for (int64_t seed = 0; seed < 3; ++seed) check_call(context, 3, 3, seed, &stream);
  CHECK(all_of(stats(context)) == Numbers({3, 5, 1, 1}));
  check_call(context, 1, 0, 0, &stream);  // this one was kept
  CHECK(all_of(stats(context)) == Numbers({3, 6, 1, 1}));
  for (int64_t size = 20; size < 60; ++size) check_call(context, size, 1, 0, &stream);  // once each
  check_call(context, 1, 0, 0, &stream);
  CHECK(all_of(stats(context)) == Numbers({3, 6, 3, 1}) && fake_get_counts().live_graphs == 0);
  for (int64_t seed = 0; seed < 2; ++seed) check_call(context, 4, 4, seed, &stream);
  CHECK(fake_get_counts().live_graphs == 2);
  ral_set_graphs(context, 0);
  CHECK(fake_get_counts().live_graphs == 0);
  check_call(context, 4, 4, 0, &stream);
  ral_unload(context);
}

// Buffers of the caller's, also at addresses that end otherwise: those have a graph of their own.
void test_given_results() {
  ral_context* context = loaded();
  ral_set_graphs(context, 8);
  const Stream stream(0);
  for (int64_t seed = 0; seed < 12; ++seed) {
    const Numbers numbers[] = {counting(4, seed), counting(3, seed)};
    Tensor x(numbers[0], &stream), y(numbers[1], &stream);
    Tensor z(Numbers(4 + kSpare), &stream), w(Numbers(3 + kSpare), &stream);
    ral_tensor given[] = {z.tensor(), w.tensor()};
    const int64_t dims[] = {4, 3};
    for (size_t i = 0; i < 2; ++i) given[i].dims = &dims[i];
    given[0].data = static_cast<int64_t*>(given[0].data) + seed % 2;
    const ral_tensor inputs[] = {x.tensor(), y.tensor()};
    CHECK(ral_call_on(context, inputs, 2, given, nullptr, 2, stream.handle) == RAL_OK);
    const Numbers found[] = {result(given[0], &stream), result(given[1], &stream)};
    check_results(numbers[0], numbers[1], found[0], found[1]);
  }
  CHECK(all_of(stats(context)) == Numbers({2, 8, 0, 0}));
  ral_unload(context);
}

// An index out of range that a replayed launch meets is raised by the next call, as of other launches.
void test_faults() {
  ral_context* context = loaded();
  ral_set_graphs(context, 2);
  const Stream stream(0);
  for (int64_t seed = 0; seed < 3; ++seed) check_call(context, 3, 1, seed, &stream);
  Numbers found[2];
  Tensor bad({0, 9, 1}, &stream), y({1}, &stream), good({0, 1, 2}, &stream);
  CHECK(call(context, bad, y, &stream, found) == RAL_OK && found[1] == Numbers{1 + kWeight});
  CHECK(call(context, good, y, &stream, found) == RAL_ERROR_SHAPE);
  CHECK(!std::strcmp(ral_last_error(), "index 9 of 3 (in an earlier call, which is why this one did not run)"));
  CHECK(call(context, good, y, &stream, found) == RAL_OK);
  CHECK(call(context, bad, y, &stream, found) == RAL_OK);
  CHECK(ral_synchronize(context) == RAL_ERROR_SHAPE && !std::strcmp(ral_last_error(), "index 9 of 3"));
  CHECK(ral_synchronize(context) == RAL_OK);
  ral_unload(context);
}

// Threads that record, replay and give up the same graphs, each on a stream of its own.
void test_threads() {
  ral_context* context = loaded();
  ral_set_graphs(context, 2);
  std::vector<std::thread> callers;
  for (int64_t number = 0; number < 4; ++number) {
    callers.emplace_back([=] {
      const Stream stream(0);
      for (int64_t seed = 0; seed < 24; ++seed) check_call(context, 2 + seed % 3, 3, number + seed, number % 2 ? &stream : nullptr);
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(stats(context).replays > 0 && stats(context).evictions > 0);
  ral_unload(context);
}

// Every call of the driver fails once with this result, in calls that run, record and replay: such a call is right or an error, the next one
// is right, and nothing is left over. Where there was no memory, that was given back is enough.
void test_failures(int32_t failure) {
  bool hit = true;
  int64_t refused = 0;
  for (int64_t at = 0; hit; ++at) {
    const fake_counts before = fake_get_counts();
    {
      const Stream stream(0);
      ral_context* context = loaded();
      ral_set_graphs(context, 1);
      const Numbers numbers[] = {counting(4, at), counting(2, at)};
      Tensor x(numbers[0], &stream), y(numbers[1], &stream);
      int64_t left = at;  // calls of the driver before the one that fails
      hit = false;
      for (int64_t i = 0; i < 4; ++i) {
        fake_fail(hit ? -1 : left, failure);
        const ral_tensor inputs[] = {x.tensor(), y.tensor()};
        ral_tensor outputs[2] = {};
        const ral_status status = ral_call_on(context, inputs, 2, nullptr, outputs, 2, stream.handle);
        left -= fake_get_counts().calls;
        hit |= left < 0;
        fake_fail(-1, 0);  // the tensors are read undisturbed
        CHECK(status == RAL_OK || status == RAL_ERROR_DEVICE || status == RAL_ERROR_MEMORY);
        CHECK(status == RAL_OK || failure != 2 || !failed_for_memory());
        if (status != RAL_OK) continue;
        const Numbers found[] = {result(outputs[0], &stream), result(outputs[1], &stream)};
        check_results(numbers[0], numbers[1], found[0], found[1]);
        for (ral_tensor& output : outputs) ral_release(&output);
      }
      const bool is_again = hit && failure == 2 && failed_for_memory();
      CHECK(!is_again || all_of(stats(context)) == Numbers({1, 2, 0, 0}));
      refused += stats(context).refusals;
      check_call(context, 4, 2, 1, &stream);
      ral_unload(context);
    }
    const fake_counts after = fake_get_counts();
    CHECK(after.live_blocks == before.live_blocks && after.live_modules == before.live_modules && after.live_host == before.live_host);
    CHECK(after.live_events == before.live_events && after.live_graphs == before.live_graphs);
  }
  CHECK(refused > 3);
}

// Descriptions of kernels that cannot be are refused before anything is launched.
void test_wrong_descriptions() {
  ral_context* context = loaded();
  const fake_counts before = fake_get_counts();
  for (int64_t number = 0; number < 18; ++number) {
    Tensor x(Numbers(static_cast<size_t>(100 + number)), nullptr), y({1}, nullptr);
    Numbers found[2];
    const ral_status status = call(context, x, y, nullptr, found);
    CHECK(status == (number == 4 ? RAL_ERROR_TARGET : number == 17 ? RAL_ERROR_INTERNAL : RAL_ERROR_ARTIFACT));
    CHECK(std::strstr(ral_last_error(), "kernel 'add' ") == ral_last_error());
  }
  CHECK(fake_get_counts().launches == before.launches);
  ral_unload(context);
}

// An illegal address in a replay is told with the kernels of the graph.
void test_crash() {
  ral_context* context = loaded();
  ral_set_graphs(context, 1);
  for (int64_t seed = 0; seed < 3; ++seed) check_call(context, 2, 2, seed, nullptr);
  fake_crash(1);
  Tensor x({0, 1}, nullptr), y({3, 4}, nullptr);
  Numbers found[2];
  CHECK(call(context, x, y, nullptr, found) == RAL_ERROR_DEVICE);
  CHECK(std::strstr(ral_last_error(), "CUDA_ERROR_ILLEGAL_ADDRESS") && std::strstr(ral_last_error(), "'add' (grid 1 x 1 x 1), 'raise'"));
  CHECK(call(context, x, y, nullptr, found) == RAL_ERROR_DEVICE);
  ral_unload(context);
}

}  // namespace

int main() {
  start_gpus();
  for (uint32_t seed = 0; seed < 3; ++seed) {
    fake_set_seed(seed, seed == 0 ? 0 : 30);
    fake_set_protection(seed == 1);
    test_replays();
    test_what_is_kept();
    test_lender();
    test_given_results();
    test_faults();
    if (seed != 1) test_threads();
    const fake_counts counts = fake_get_counts();
    CHECK(counts.live_graphs == 0 && counts.live_modules == 0 && counts.live_host == 0 && counts.live_events == 0);
  }
  fake_set_protection(0);
  for (const int32_t failure : {2, 999}) test_failures(failure);
  test_wrong_descriptions();
  test_crash();
  std::puts("graphs_test: all passed");
  return 0;
}
