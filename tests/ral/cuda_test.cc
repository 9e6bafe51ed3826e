// Programs with control flow (loop_program.c) on GPUs of the stand-in driver: `cuda_test`. Exits with 1 at the first failure.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpu_testing.h"
#include "ral.h"
#include "testing.h"

namespace {

thread_local int64_t allocations_left = -1, allocations_tried = 0;  // of C++ on this thread, until one fails; -1 = none does

}  // namespace

void* operator new(size_t size, const std::nothrow_t&) noexcept {
  if (allocations_left > 0 && --allocations_left == 0) return nullptr;
  return std::malloc(size > 0 ? size : 1);
}
void* operator new(size_t size) {
  void* made = operator new(size, std::nothrow);
  if (!made) throw std::bad_alloc();
  return made;
}
// Not inlined: the compiler would see memory of `new` given to `free`, and take it for a mistake.
[[gnu::noinline]] void operator delete(void* made) noexcept { std::free(made); }
[[gnu::noinline]] void operator delete(void* made, size_t) noexcept { std::free(made); }

namespace {

enum Program : int64_t { kLoop, kGrow, kGather, kWait, kPick };
constexpr int64_t kWeight = 5;
Bytes signature() {
  Bytes bytes;
  for (const uint32_t value : {1u, 2u}) put(bytes, value);  // version, inputs
  put_value(bytes, "x", RAL_I64, 1, {-1});
  put_value(bytes, "what", RAL_I64, 1, {2});
  put<uint32_t>(bytes, 1);
  put_value(bytes, "y", RAL_I64, 1, {});
  put_texts(bytes, {"stopped at step {actual}", "index {actual} of {expected}"});
  put_texts(bytes, {"halve", "any", "square", "count", "gather", "pick"});
  put_texts(bytes, {"steps"});
  put<uint32_t>(bytes, 1);
  put_text(bytes, "weight");
  put<int64_t>(bytes, 0);
  put<int64_t>(bytes, sizeof kWeight);
  return bytes;
}

const char* const kOwn = "cuda:x86-64+sm_90";

ral_status load(const char* wanted, ral_context** context) {
  static const Bytes plain = read_file(LOOP_PROGRAM), own = read_file(GPU_LOOP_PROGRAM), described = signature();
  const ral_code sections[] = {{"x86-64", plain.data(), plain.size()},
                               {"cuda:x86-64+sm_80", own.data(), own.size()},
                               {kOwn, own.data(), own.size()},
                               {"cuda:x86-64+sm_100", own.data(), own.size()}};
  const void* weights[] = {&kWeight};
  const ral_program program{nullptr, 0, described.data(), described.size(), sections, 4, weights, 1};
  const ral_options options{RAL_ABI_VERSION, 2, wanted};
  return ral_load_memory(&program, &options, context);
}

ral_context* loaded(const char* wanted) {
  ral_context* context = nullptr;
  CHECK(load(wanted, &context) == RAL_OK);
  return context;
}

// One call on tensors that lie on the GPU, or with no stream in this process's memory.
ral_status call(ral_context* context, Program program, const Numbers& x, int64_t stop, Numbers* found, const Stream* stream) {
  const auto gpu = static_cast<uint8_t>(ral_device_id(context));
  Tensor data(x, stream, gpu), what({program, stop}, stream, gpu);
  const ral_tensor inputs[] = {data.tensor(), what.tensor()};
  ral_tensor output{};
  const ral_status status = ral_call_on(context, inputs, 2, nullptr, &output, 1, stream ? stream->handle : nullptr);
  if (status != RAL_OK) return status;
  *found = result(output, stream);
  ral_release(&output);
  return status;
}

Numbers expected(Program program, const Numbers& x) {
  Numbers y;
  if (program == kLoop) {
    for (int64_t value : x) {
      int64_t steps = 0;
      for (; value > 1; value /= 2) ++steps;
      y.push_back(steps);
    }
  } else if (program == kGrow) {
    const int64_t wanted = std::accumulate(x.begin(), x.end(), int64_t{0});
    for (int64_t i = 0; i < wanted; ++i) y.push_back(i * i + kWeight);
  } else {
    for (size_t i = 0; i < x.size(); ++i) {
      if (x[i]) y.push_back(static_cast<int64_t>(i));
    }
    if (y.empty()) y.push_back(-1);
  }
  return y;
}

Numbers some_numbers(std::mt19937& generator, size_t count, Program program) {
  Numbers x(count);
  const bool nothing = generator() % 3 == 0;
  for (int64_t& value : x) value = nothing ? 0 : static_cast<int64_t>(generator() % (program == kLoop ? 1000 : 3));
  return x;
}

void test_results(ral_context* context, uint32_t seed, const Stream* stream) {
  std::mt19937 generator(seed);
  for (const Program program : {kLoop, kGrow, kGather}) {
    for (const size_t size : {0, 1, 2, 7, 31, 64}) {
      const Numbers x = some_numbers(generator, size, program);
      Numbers found;
      CHECK(call(context, program, x, -1, &found, stream) == RAL_OK);
      CHECK(found == expected(program, x));
    }
  }
}

// Beside tensors on the GPU, only numbers come from this process's memory unasked.
void test_rows_are_not_copied(ral_context* context) {
  const Stream stream(0);
  Tensor x({2, 0, 1}, &stream), what({kPick, -1}, nullptr);
  const int64_t dims[] = {2}, program[] = {kPick, -1};
  const ral_tensor inputs[] = {x.tensor(), {const_cast<int64_t*>(program), dims, nullptr, 1, RAL_I64, RAL_CPU, 0}};
  ral_tensor output{};
  CHECK(ral_call_on(context, inputs, 2, nullptr, &output, 1, stream.handle) == RAL_ERROR_DEVICE);
  CHECK(!std::strcmp(ral_last_error(), "input 'what' (argument 1): is on cpu:0, the loaded code is for cuda:0"));
}

// Faults of a call that had returned are raised by the next one, or by ral_synchronize; of one that waits, at once.
void test_faults(ral_context* context) {
  const Stream stream(0);
  Numbers found;
  CHECK(call(context, kPick, {2, 0, 9}, -1, &found, nullptr) == RAL_ERROR_SHAPE);
  CHECK(!std::strcmp(ral_last_error(), "index 9 of 3"));
  CHECK(call(context, kPick, {2, 0, 1}, -1, &found, nullptr) == RAL_OK && found == (Numbers{1, 2, 0}));
  CHECK(call(context, kPick, {2, -4, 1}, -1, &found, &stream) == RAL_OK);  // read, so that it has run
  CHECK(call(context, kPick, {2, 0, 1}, -1, &found, &stream) == RAL_ERROR_SHAPE);
  CHECK(!std::strcmp(ral_last_error(), "index -4 of 3 (in an earlier call, which is why this one did not run)"));
  CHECK(call(context, kPick, {2, 0, 1}, -1, &found, &stream) == RAL_OK && found == (Numbers{1, 2, 0}));
  for (int64_t bad : {7, 8}) CHECK(call(context, kPick, {bad}, -1, &found, &stream) == (bad == 7 ? RAL_OK : RAL_ERROR_SHAPE));
  CHECK(ral_synchronize(context) == RAL_OK);
  CHECK(call(context, kPick, {5}, -1, &found, &stream) == RAL_OK);
  CHECK(ral_synchronize(context) == RAL_ERROR_SHAPE && !std::strcmp(ral_last_error(), "index 5 of 1"));
  CHECK(ral_synchronize(context) == RAL_OK);
}

void test_stops(ral_context* context, const Stream* stream) {
  std::mt19937 generator(7);
  for (const Program program : {kLoop, kGrow, kGather}) {
    Numbers x = some_numbers(generator, 31, program), found;
    x[0] = 3;
    for (int64_t stop = 0; stop < (program == kGather ? 1 : 2); ++stop) {
      CHECK(call(context, program, x, stop, &found, stream) == RAL_ERROR_SHAPE);
      CHECK(ral_last_error() == "stopped at step " + std::to_string(stop));
    }
    CHECK(call(context, program, x, -1, &found, stream) == RAL_OK && found == expected(program, x));
  }
}

void test_threads(ral_context* first, ral_context* second) {
  std::vector<std::thread> callers;
  for (uint32_t seed = 0; seed < 6; ++seed) {
    callers.emplace_back([=] {
      ral_context* context = seed % 3 ? first : second;
      const Stream stream(ral_device_id(context));
      test_results(context, seed, seed % 2 ? &stream : nullptr);
    });
  }
  for (std::thread& caller : callers) caller.join();
}

void test_cancelling(ral_context* context) {
  const auto is_over = [](void* state) -> int32_t { return static_cast<std::atomic<bool>*>(state)->load(); };
  std::atomic<bool> over = false;
  std::thread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    over = true;
  });
  Numbers found;
  ral_set_stop(is_over, &over);
  CHECK(call(context, kWait, {2}, -1, &found, nullptr) == RAL_ERROR_CANCELLED);
  CHECK(call(context, kWait, {1}, -1, &found, nullptr) == RAL_OK && found == Numbers{0});
  ral_set_stop(nullptr, nullptr);
  stopper.join();
}

// Every call of the driver fails once with this result, and nothing is left over. Where there was no memory, that was given back is enough.
void test_failures(int32_t failure) {
  std::mt19937 generator(3);
  for (const bool staged : {true, false}) {
    for (const Program program : {kLoop, kGrow, kPick}) {
      const Numbers x = program == kPick ? Numbers{1, 0} : some_numbers(generator, 5, program);
      bool done = false;
      for (int64_t at = 0; !done; ++at) {
        const fake_counts before = fake_get_counts();
        {
          const Stream stream(0);
          Tensor data(x, staged ? nullptr : &stream), what({program, -1}, staged ? nullptr : &stream);
          const ral_tensor inputs[] = {data.tensor(), what.tensor()};
          fake_fail(at, failure);
          ral_context* context = nullptr;
          ral_tensor output{};
          ral_status status = load("cuda", &context);
          if (status == RAL_OK) status = ral_call_on(context, inputs, 2, nullptr, &output, 1, stream.handle);
          done = fake_get_counts().calls <= at;
          fake_fail(-1, 0);
          CHECK(status == RAL_OK || !(done || (failure == 2 && failed_for_memory())));
          CHECK(status == RAL_OK || status == RAL_ERROR_DEVICE || status == RAL_ERROR_MEMORY);
          CHECK(status == RAL_OK || std::strstr(ral_last_error(), "device cuda:0: ") || std::strstr(ral_last_error(), "cannot allocate"));
          if (status == RAL_OK && program != kPick) CHECK(result(output, staged ? nullptr : &stream) == expected(program, x));
          if (status == RAL_OK) ral_release(&output);
          ral_unload(context);
        }
        const fake_counts after = fake_get_counts();
        CHECK(after.live_blocks == before.live_blocks && after.live_modules == before.live_modules && after.live_host == before.live_host);
        CHECK(after.live_events == before.live_events);
      }
    }
  }
}

// A call that needs more than there is fails; the next one lives.
void test_out_of_memory(ral_context* context) {
  Numbers found;
  for (const bool results_fit : {false, true}) {
    const Numbers x(kMemory / 8 / (results_fit ? 2 : 1) - 4096, 1);
    CHECK(call(context, kPick, x, -1, &found, nullptr) == RAL_ERROR_MEMORY);
    const std::string said = ral_last_error(), count = std::to_string(x.size()), scratch = std::to_string(16 * x.size());
    CHECK(said.find(results_fit ? "device cuda:0: launch of kernel 'pick' (grid " + count + " x 1 x 1, 32 threads, 50000 bytes of shared memory, " +
                                      scratch + " bytes of scratch memory) failed: CUDA_ERROR_OUT_OF_MEMORY"
                                : "cannot allocate") == 0);
    CHECK(said.find("; the inputs were x [" + count + "], what [2]") != std::string::npos);
  }
  CHECK(call(context, kPick, {0}, -1, &found, nullptr) == RAL_OK);
  // Buffers that fit beside no scratch memory of the launches before: of half, one and two parts.
  const Numbers x = {kMemory / 32 + 1};
  CHECK(call(context, kGrow, x, -1, &found, nullptr) == RAL_OK && found == expected(kGrow, x));
}

// Every allocation of C++ in a call fails once: it ends by an error or is right, the next call is right, and nothing is left over.
void test_exceptions() {
  const Stream stream(0);
  for (const int32_t graphs : {0, 1}) {  // a first call, or a second one, whose requests are made and then noted
    for (const bool staged : {true, false}) {
      for (const Program program : {kLoop, kGrow, kPick}) {
        const Numbers x = program == kPick ? Numbers{1, 0} : Numbers{2, 0, 9};
        Tensor data(x, staged ? nullptr : &stream), what({program, -1}, staged ? nullptr : &stream);
        const ral_tensor inputs[] = {data.tensor(), what.tensor()};
        Numbers found;
        for (bool done = false; !done; allocations_left = -1) {
          const int64_t at = ++allocations_tried;
          ral_tensor output{};
          ral_context* context = loaded("cuda");
          Loans loans{stream};
          if (program != kLoop) ral_set_lender(Loans::lend, &loans, 1);
          ral_set_graphs(context, graphs);
          if (graphs) CHECK(call(context, program, x, -1, &found, staged ? nullptr : &stream) == RAL_OK);
          CHECK(driver.synchronize_stream(stream.handle) == 0);
          const fake_counts before = fake_get_counts();
          allocations_left = at;
          const ral_status status = ral_call_on(context, inputs, 2, nullptr, &output, 1, stream.handle);
          done = allocations_left > 0;
          allocations_left = -1;
          const auto said = [](const char* words) { return std::strstr(ral_last_error(), words) != nullptr; };
          CHECK(status == RAL_OK || (status == RAL_ERROR_MEMORY && (said("out of memory") || said("cannot allocate"))));
          if (status == RAL_OK && program != kPick) CHECK(result(output, staged ? nullptr : &stream) == expected(program, x));
          if (status == RAL_OK) ral_release(&output);
          CHECK(driver.synchronize_stream(stream.handle) == 0 && ral_synchronize(context) == RAL_OK);
          CHECK(fake_get_counts().live_blocks == before.live_blocks && loans.returned == loans.lent);
          CHECK(call(context, program, x, -1, &found, staged ? nullptr : &stream) == RAL_OK);
          ral_set_lender(nullptr, nullptr, 0);
          ral_unload(context);
        }
        CHECK(allocations_tried > 10);
        allocations_tried = 0;
      }
    }
  }
}

// The same while a program is loaded and a tensor kept. What ends allocates nothing, also where more end than ever were.
void test_exceptions_elsewhere() {
  const fake_counts before = fake_get_counts();
  const Numbers x = {2, 0, 9};
  for (const bool loads : {true, false}) {
    ral_context* context = loads ? nullptr : loaded("cuda");
    Tensor data(x, nullptr);
    const ral_tensor from = data.tensor();
    for (bool done = false; !done;) {
      ral_tensor kept{};
      const fake_counts start = fake_get_counts();
      const int64_t at = ++allocations_tried;
      allocations_left = at;
      const ral_status status = loads ? load("cuda", &context) : ral_keep_tensor(context, &from, &kept);
      done = allocations_left > 0;
      allocations_left = -1;
      CHECK(status == RAL_OK || (!done && status == RAL_ERROR_MEMORY));
      ral_release(&kept);
      if (loads) ral_unload(std::exchange(context, nullptr));
      CHECK(fake_get_counts().live_blocks == start.live_blocks);
    }
    ral_unload(context);
    allocations_tried = 0;
  }
  std::vector<ral_context*> contexts;
  for (int64_t i = 0; i < 20; ++i) {
    contexts.push_back(loaded("cuda"));
    Numbers found;
    CHECK(call(contexts.back(), kPick, {0}, -1, &found, nullptr) == RAL_OK);
  }
  for (ral_context* context : contexts) {
    allocations_left = 1;
    ral_unload(context);
    CHECK(allocations_left == 1);
  }
  allocations_left = -1;
  CHECK(fake_get_counts().live_blocks == before.live_blocks);
}

void test_wrong_devices(ral_context* first, ral_context* second) {
  const Stream one(0), other(1);
  Tensor a({1, 2}, &one, 0), b({kGather, -1}, &other, 1);
  ral_tensor output{};
  const ral_tensor mixed[] = {a.tensor(), b.tensor()};
  CHECK(ral_call_on(first, mixed, 2, nullptr, &output, 1, one.handle) == RAL_ERROR_DEVICE);
  CHECK(!std::strcmp(ral_last_error(), "input 'what' (argument 1): is on cuda:1, the loaded code is for cuda:0"));
  CHECK(ral_call_on(second, mixed, 2, nullptr, &output, 1, other.handle) == RAL_ERROR_DEVICE);
  CHECK(!std::strcmp(ral_last_error(), "input 'x' (argument 0): is on cuda:0, the loaded code is for cuda:1"));
  Tensor c({1, 2}, &other, 1);
  const ral_tensor good[] = {c.tensor(), b.tensor()};
  CHECK(ral_call_on(second, good, 2, nullptr, &output, 1, one.handle) == RAL_ERROR_DEVICE);
  CHECK(std::strstr(ral_last_error(), "the stream that was given belongs to another device than cuda:1"));
}

// Results lie in memory that somebody lends, which gets it back once, also of calls that fail; where there is none the call says so.
void test_lender(ral_context* context) {
  const Stream stream(0);
  Loans loans{stream};
  Numbers found;
  ral_set_lender(Loans::lend, &loans, 2);
  for (const Numbers& x : {Numbers{2, 0, 1}, Numbers{}}) {
    CHECK(call(context, kPick, x, -1, &found, &stream) == RAL_OK && found.size() == x.size());
  }
  CHECK(loans.lent == 2 && loans.returned == 2);
  CHECK(call(context, kPick, {2, 0, 1}, -1, &found, nullptr) == RAL_OK && loans.lent == 2);  // tensors of the host are not on the GPU
  CHECK(call(context, kLoop, {9, 7}, 0, &found, &stream) == RAL_ERROR_SHAPE);
  loans.fails = 1;  // what the runtime keeps has been given back by the second time
  CHECK(call(context, kPick, {0}, -1, &found, &stream) == RAL_OK && found == Numbers{0});
  const int64_t lent = loans.lent;
  loans.fails = 2;
  CHECK(call(context, kPick, {0}, -1, &found, &stream) == RAL_ERROR_MEMORY);
  CHECK(std::strstr(ral_last_error(), "output 'y' (0): cannot allocate 8 bytes on cuda:0 for [1]"));
  ral_set_lender(Loans::lend, &loans, 0);  // for no result
  CHECK(call(context, kPick, {0}, -1, &found, &stream) == RAL_OK && found == Numbers{0} && loans.lent == lent);
  ral_set_lender(nullptr, nullptr, 0);
  CHECK(call(context, kPick, {0}, -1, &found, &stream) == RAL_OK && found == Numbers{0} && loans.lent == loans.returned);
}

// Does what the text of a copy kernel says (strided_copy.cc): source, target, elements, the sizes of all axes but the first, strides.
int32_t copy_elements(const void* image, int64_t, const char* name, const uint32_t* grid, const uint64_t* values, int32_t count) {
  const std::string text = static_cast<const char*>(image);
  CHECK(text.find(".version 8.0") != std::string::npos && !std::strcmp(name, "kernel") && count == 16);
  size_t bytes = 0;
  for (size_t size : {1, 2, 4, 8}) {
    if (text.find("st.global.b" + std::to_string(8 * size) + " ") != std::string::npos) bytes = size;
  }
  CHECK(bytes > 0 && (values[0] | values[1]) % bytes == 0 && grid[0] == (values[2] + 127) / 128);
  for (int64_t place = 0; place < static_cast<int64_t>(values[2]); ++place) {
    int64_t rest = place, at = 0;
    for (size_t axis = 5; axis > 0; --axis) {
      at += rest % static_cast<int64_t>(values[2 + axis]) * static_cast<int64_t>(values[8 + axis]);
      rest /= static_cast<int64_t>(values[2 + axis]);
    }
    at += rest * static_cast<int64_t>(values[8]);
    std::memcpy(reinterpret_cast<char*>(values[1]) + place * static_cast<int64_t>(bytes),
                reinterpret_cast<const char*>(values[0]) + at * static_cast<int64_t>(bytes), bytes);
  }
  return 0;
}

// Inputs on the GPU whose numbers lie apart, backward, at one place, or between the addresses of numbers.
void test_strided(ral_context* context) {
  fake_set_executor(copy_elements);
  const Stream stream(0);
  const Numbers numbers = {0, 1, 0, 0, 1, 1, 0, 1, 1, 0, 1, 0, 1, 0, 0, 1};
  Tensor data(numbers, &stream), what({kGather, -1}, &stream);
  ral_stats before, after;
  ral_get_stats(context, &before);
  int64_t copies = 0;
  for (const int64_t step : {1, 2, 3, -1, -2, 0}) {
    for (const int64_t size : {0, 1, 2, 4}) {
      const int64_t first = 6;
      Numbers picked;
      for (int64_t i = 0; i < size; ++i) picked.push_back(numbers[static_cast<size_t>(first + i * step)]);
      ral_tensor x = data.tensor(), output{};
      x.data = static_cast<int64_t*>(x.data) + first;
      x.dims = &size;
      x.strides = &step;
      const ral_tensor inputs[] = {x, what.tensor()};
      CHECK(ral_call_on(context, inputs, 2, nullptr, &output, 1, stream.handle) == RAL_OK);
      CHECK(result(output, &stream) == expected(kGather, picked));
      ral_release(&output);
      copies += size > 1 && step != 1;
    }
  }
  ral_tensor between = data.tensor(), output{};
  const int64_t dims[] = {5};
  between.data = static_cast<char*>(between.data) + 4;  // halves of two numbers each
  between.dims = dims;
  const ral_tensor inputs[] = {between, what.tensor()};
  CHECK(ral_call_on(context, inputs, 2, nullptr, &output, 1, stream.handle) == RAL_OK);
  CHECK(result(output, &stream) == (Numbers{0, 3, 4}));
  ral_release(&output);
  ral_get_stats(context, &after);
  CHECK(after.copied_inputs - before.copied_inputs == copies + 1);
}

void test_choice() {
  const auto chosen = [](std::vector<const char*> isas, const char* wanted) {
    int32_t number = -1;
    const ral_status status = ral_choose_code(isas.data(), static_cast<int32_t>(isas.size()), wanted, &number);
    return status == RAL_OK ? number : -1;
  };
  const std::vector<const char*> all = {"x86-64", "cuda:x86-64+sm_80", "cuda:x86-64+sm_90", "cuda:x86-64+sm_100"};
  CHECK(chosen(all, nullptr) == 0 && chosen(all, "cuda") == 2 && chosen(all, "cuda@1") == 2 && chosen(all, "cpu") == 0);
  CHECK(chosen(all, "cuda@2") == -1 && std::strstr(ral_last_error(), "there is no GPU cuda:2: the NVIDIA driver finds 2 GPUs"));
  CHECK(chosen(all, "cuda@x") == -1 && chosen(all, "cuda:x86-64+sm_80") == 1);
  CHECK(chosen({"cuda:x86-64+sm_80", "cuda:x86-64+sm_100"}, nullptr) == 0);
  CHECK(chosen({"cuda:x86-64+sm_86", "cuda:x86-64+sm_100"}, nullptr) == -1);
  CHECK(std::strstr(ral_last_error(), "code for cuda:x86-64+sm_86 needs another GPU than cuda:0, which is sm_90"));
  CHECK(chosen({"cuda:x86-64", "cuda:no-such+sm_90"}, nullptr) == -1);
}

// Tensors that a program keeps: made of numbers of the host, copied there and back, and with every call of the driver failing once.
void test_kept_tensors(ral_context* context, int32_t failure) {
  const Stream stream(0);
  for (int64_t at = -1, hit = 1; hit; ++at) {
    const fake_counts before = fake_get_counts();
    Numbers numbers = {3, 1, 2}, found(3);
    const int64_t dims[] = {3}, two[] = {2}, step[] = {2};
    const ral_tensor here{numbers.data(), dims, nullptr, 1, RAL_I64, RAL_CPU, 0}, back{found.data(), dims, nullptr, 1, RAL_I64, RAL_CPU, 0};
    fake_fail(at, failure);
    ral_tensor kept{}, other{};
    ral_status status = ral_keep_tensor(context, &here, &kept);
    if (status == RAL_OK) status = ral_keep_tensor(context, &kept, &other);
    if (status == RAL_OK) status = ral_copy_numbers(context, &kept, &other, stream.handle);
    if (status == RAL_OK) status = ral_synchronize(context);
    if (status == RAL_OK) status = ral_copy_numbers(context, &other, &back, nullptr);
    hit = at < 0 || fake_get_counts().calls > at;
    fake_fail(-1, 0);
    CHECK(status == RAL_OK || failure != 2 || !failed_for_memory());
    CHECK(status == RAL_OK ? found == numbers : at >= 0 && (status == RAL_ERROR_DEVICE || status == RAL_ERROR_MEMORY));
    ral_tensor smaller = back, apart = back;
    smaller.dims = two;
    apart.dims = two, apart.strides = step;
    if (at < 0) CHECK(ral_copy_numbers(context, &other, &smaller, nullptr) == RAL_ERROR_SHAPE);
    if (at < 0) CHECK(ral_copy_numbers(context, &apart, &apart, nullptr) == RAL_ERROR_ALIAS);
    ral_release(&kept);
    ral_release(&other);
    const fake_counts after = fake_get_counts();
    CHECK(after.live_blocks == before.live_blocks);
  }
}

// In a child, CUDA does not work; nothing else may break.
void test_fork(ral_context* context) {
  const Stream stream(0);
  Numbers found;
  Tensor x({1, 0}, &stream), what({kGather, -1}, &stream);
  const ral_tensor inputs[] = {x.tensor(), what.tensor()};
  ral_tensor output{};
  CHECK(ral_call_on(context, inputs, 2, nullptr, &output, 1, stream.handle) == RAL_OK);
  const pid_t child = fork();
  if (child == 0) {
    CHECK(call(context, kGather, {1}, -1, &found, nullptr) == RAL_ERROR_DEVICE);
    CHECK(std::strstr(ral_last_error(), "this process was forked off after a GPU had been used"));
    ral_context* other = nullptr;
    CHECK(load("cuda", &other) == RAL_ERROR_TARGET && load("cpu", &other) == RAL_OK);
    CHECK(call(other, kGather, {1}, -1, &found, nullptr) == RAL_OK && found == Numbers{0});
    CHECK(ral_synchronize(context) == RAL_ERROR_DEVICE);
    ral_unload(other);
    ral_release(&output);
    ral_unload(context);
    std::_Exit(0);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(result(output, &stream) == Numbers{0});
  ral_release(&output);
}

// An illegal address ends the context: this call and all later ones say so. It is met where work is done: in the wait at the call's end, or
// before it (`early`), so that the next call of the driver tells, whichever that is.
void test_crash(ral_context* context, bool early) {
  Numbers found;
  fake_set_seed(0, early ? 100 : 0);
  fake_crash(2);
  CHECK(call(context, kGrow, {3, 4}, -1, &found, nullptr) == RAL_ERROR_DEVICE);
  const std::string said = ral_last_error();
  CHECK(said.find("device cuda:0: ") == 0 && said.find(" failed: CUDA_ERROR_ILLEGAL_ADDRESS") != std::string::npos);
  CHECK((said.find("device cuda:0: waiting for kernels failed") == 0) != early);
  CHECK(said.find("'square' (grid 2 x 1 x 1)") != std::string::npos);
  CHECK(said.find("; the inputs were x [2], what [2]") != std::string::npos);
  CHECK(call(context, kGrow, {3}, -1, &found, nullptr) == RAL_ERROR_DEVICE);
  CHECK(std::strstr(ral_last_error(), "the GPU is lost to this process since an earlier call"));
  CHECK(ral_synchronize(context) == RAL_ERROR_DEVICE);
}

// Code for the CPU runs where there is no GPU that could be used.
int refused(int32_t gpus, int32_t version, const char* message) {
  fake_configure(gpus, 90, version, kMemory);
  int32_t count = 0;
  CHECK(ral_count_gpus(&count, &count) == RAL_ERROR_TARGET && std::strstr(ral_last_error(), message));
  ral_context* context = nullptr;
  CHECK(load("cuda", &context) == RAL_ERROR_TARGET && std::strstr(ral_last_error(), message));
  CHECK(load(nullptr, &context) == RAL_OK && ral_device_number(context) == RAL_CPU);
  ral_unload(context);
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  const std::string what = count > 1 ? arguments[1] : "";
  if (what == "none") return refused(0, 13000, "the NVIDIA driver finds no GPU");
  if (what == "old") return refused(1, 11040, "the NVIDIA driver is one of CUDA 11.4, code for GPUs needs 12.0 or later");
  start_gpus();
  if (what == "early") {  // a crash ends the work with GPUs of the whole process
    ral_context* context = loaded("cuda");
    test_crash(context, true);
    ral_unload(context);
    return 0;
  }
  test_choice();
  for (uint32_t seed = 0; seed < 3; ++seed) {
    fake_set_seed(seed, seed == 0 ? 0 : 30);
    fake_set_protection(seed == 1);
    ral_context *first = loaded("cuda"), *second = loaded("cuda@1");
    CHECK(ral_device_id(second) == 1 && ral_isa(second) == std::string(kOwn));
    {
      const Stream stream(0);
      for (const Stream* each : {&stream, static_cast<const Stream*>(nullptr)}) {
        test_results(first, seed, each);
        test_stops(first, each);
      }
    }
    test_rows_are_not_copied(first);
    test_faults(first);
    if (seed != 1) test_threads(first, second);  // protection is for one thread's work
    test_cancelling(first);
    test_out_of_memory(first);
    test_wrong_devices(first, second);
    test_lender(first);
    test_strided(first);
    for (const int32_t failure : {2, 999}) test_kept_tensors(first, failure);
    test_fork(first);
    ral_unload(first);
    ral_unload(second);
    driver.synchronize_context();
    CHECK(fake_get_counts().live_modules == 0 && fake_get_counts().live_host == 0 && fake_get_counts().live_events == 0);
  }
  fake_set_protection(0);
  for (const int32_t failure : {2, 999}) test_failures(failure);
  ral_context* context = loaded("cuda");
  test_exceptions();
  test_exceptions_elsewhere();
  test_crash(context, false);
  ral_unload(context);
  std::puts("cuda_test: all passed");
  return 0;
}
