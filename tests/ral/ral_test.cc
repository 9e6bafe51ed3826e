// Tests of the runtime that run under the sanitizers: `ral_test`. Exits with 1 at the first failure.
#include "ral.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/layout.h"
#include "core/sha256.h"
#include "testing.h"

namespace {

// Of test_program.c. replaced: the number of the input that its result may replace; -1 = none.
Bytes program_signature(int32_t replaced = -1) {
  Bytes bytes;
  for (const uint32_t value : {1u, 1u}) put(bytes, value);  // version, inputs
  put_value(bytes, "x", RAL_F32, 2, {-1, 4});
  put<uint32_t>(bytes, 1);
  put_value(bytes, "y", static_cast<ral_dtype>(RAL_F32 + (replaced >= 0 ? 0x400 : 0)), 2, {});
  if (replaced >= 0) put(bytes, replaced);
  for (const char* name : {"too many rows", "add_rows", "rows"}) put_texts(bytes, {name});
  put<uint32_t>(bytes, 1);
  put_text(bytes, "weight");
  put<int64_t>(bytes, 0);
  put<int64_t>(bytes, sizeof(float));
  return bytes;
}

// The file format of docs/artifact.md, written once more so that the reader is not tested against itself.
Bytes artifact_file(const std::vector<std::pair<std::string, Bytes>>& sections) {
  Bytes header, body;
  const size_t table_end = 32 + sections.size() * 112;
  const auto end = [&] { return table_end + 32 + body.size(); };
  for (const auto& [name, content] : sections) {
    body.resize(body.size() + (-end() & (name == "weights" ? 4095 : 63)));
    char padded[64] = {};
    std::memcpy(padded, name.data(), name.size());
    header.insert(header.end(), padded, padded + 64);
    put<uint64_t>(header, end());
    put<uint64_t>(header, content.size());
    ral::Digest digest = ral::sha256_portable(content);
    if (name == "weights") digest = ral::sha256_portable(digest);
    header.insert(header.end(), digest.begin(), digest.end());
    body.insert(body.end(), content.begin(), content.end());
  }
  Bytes file{'D', 'I', 'S', 'C', '\r', '\n', 0x1a, '\n'};
  put<uint32_t>(file, 1);
  put<uint32_t>(file, static_cast<uint32_t>(sections.size()));
  put<uint64_t>(file, end());
  put<uint64_t>(file, 0);
  file.insert(file.end(), header.begin(), header.end());
  const ral::Digest digest = ral::sha256_portable(file);
  file.insert(file.end(), digest.begin(), digest.end());
  file.insert(file.end(), body.begin(), body.end());
  return file;
}

ral_context* load_program(int32_t threads, int32_t replaced = -1) {
  static const Bytes code = read_file(TEST_PROGRAM);
  const Bytes signature = program_signature(replaced);
  static const float weight = 0.5f;
  const void* weights[] = {&weight};
  const ral_code section{"x86-64", code.data(), code.size()};
  const ral_program program{nullptr, 0, signature.data(), signature.size(), &section, 1, weights, 1};
  const ral_options options{RAL_ABI_VERSION, threads, nullptr};
  ral_context* context = nullptr;
  CHECK(ral_load_memory(&program, &options, &context) == (replaced > 0 ? RAL_ERROR_ARTIFACT : RAL_OK));
  return context;
}

void call_and_check(ral_context* context, int64_t rows, bool transposed) {
  std::vector<float> data(static_cast<size_t>(rows * 4));
  std::iota(data.begin(), data.end(), 0.0f);
  const int64_t dims[2] = {rows, 4}, strides[2] = {1, rows};
  const ral_tensor input{data.data(), dims, transposed ? strides : nullptr, 2, RAL_F32, RAL_CPU, 0};
  ral_tensor output;
  CHECK(ral_call(context, &input, 1, nullptr, &output, 1) == RAL_OK);
  CHECK(output.dims[0] == rows && output.dims[1] == 4 && output.strides[0] == 4);
  for (int64_t i = 0; i < rows * 4; ++i) {
    const int64_t source = transposed ? i % 4 * rows + i / 4 : i;
    CHECK(static_cast<const float*>(output.data)[i] == static_cast<float>(source) + 0.5f);
  }
  ral_release(&output);
  ral_release(&output);  // a second time does nothing
}

void test_sha256() {
  const std::string text = "abc";
  const uint8_t start[4] = {0xba, 0x78, 0x16, 0xbf};  // FIPS 180-4, example
  const ral::Digest digest = ral::sha256({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  CHECK(std::memcmp(digest.data(), start, sizeof start) == 0);
  std::mt19937 generator(1);
  for (size_t size = 0; size < 300; ++size) {
    Bytes bytes(size);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(generator());
    CHECK(ral::sha256(bytes) == ral::sha256_portable(bytes));
  }
}

template <typename T>
void test_layouts() {
  std::mt19937 generator(2);
  for (int round = 0; round < 300; ++round) {
    const int32_t rank = static_cast<int32_t>(generator() % 5);
    int64_t dims[4], strides[4], low = 0, high = 0;
    for (int32_t i = 0; i < rank; ++i) {
      dims[i] = static_cast<int64_t>(generator() % 5);
      strides[i] = static_cast<int64_t>(generator() % 13) - 6;
      if (dims[i] > 0) (strides[i] < 0 ? low : high) += (dims[i] - 1) * strides[i];
    }
    std::vector<T> data(static_cast<size_t>(high - low + 1));
    std::iota(data.begin(), data.end(), T{});
    const ral_tensor tensor{data.data() - low, dims, strides, rank, RAL_I8, RAL_CPU, 0};
    int64_t count = 1;
    for (int32_t i = 0; i < rank; ++i) count *= dims[i];
    std::vector<T> copy(static_cast<size_t>(count));
    ral::copy_row_major(tensor, sizeof(T), copy.data());
    for (int64_t flat = 0; flat < count; ++flat) {
      int64_t rest = flat, offset = -low;
      for (int32_t i = rank - 1; i >= 0; --i) {
        offset += rest % dims[i] * strides[i];
        rest /= dims[i];
      }
      CHECK(copy[static_cast<size_t>(flat)] == data[static_cast<size_t>(offset)]);
    }
    const ral::Extent extent = ral::extent(tensor, sizeof(T));
    CHECK(count == 0 ? extent.begin == extent.end : extent.end - extent.begin == data.size() * sizeof(T));
  }
}

// shares: with a second program, whose calls take and give back memory of the same pool.
void test_threads(bool shares) {
  ral_context *context = load_program(4), *other = load_program(2);
  for (ral_context* each : {context, other}) {
    if (shares) ral_share_memory(each);
  }
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 8; ++caller) {
    callers.emplace_back([=] {
      std::mt19937 generator(static_cast<uint32_t>(caller));
      for (int i = 0; i < 100; ++i) {
        call_and_check(context, static_cast<int64_t>(generator() % 300), generator() % 2);
        if (caller < 3) call_and_check(other, static_cast<int64_t>(generator() % 3000), generator() % 2);
      }
    });
  }
  for (int i = 0; i < 100; ++i) {
    ral_stats stats;
    ral_get_stats(context, &stats);
    ral_set_profile(context, i % 3);
    ral_trace_event event;
    ral_take_trace(context, &event, 1);
  }
  for (std::thread& caller : callers) caller.join();
  ral_stats stats;
  ral_get_stats(context, &stats);
  int64_t launches = 0, nanoseconds = 0, rows = 0;
  ral_get_kernels(context, &launches, &nanoseconds);
  ral_get_counters(context, &rows);
  CHECK(stats.calls == 800 && launches == 800 && rows > 0 && stats.copied_inputs > 0);
  ral_unload(other);
  call_and_check(context, 300, false);
  ral_unload(context);
}

// What a server does: requests that run, that are refused and that fail, while versions of the model are loaded, swapped and dropped.
// Like a server's repository, the table hands out references, and whoever drops the last one unloads.
void test_serving() {
  const auto load = [](int32_t threads) { return std::shared_ptr<ral_context>(load_program(threads), ral_unload); };
  std::mutex lock;
  std::shared_ptr<ral_context> current = load(2);
  const auto find = [&] {
    const std::lock_guard<std::mutex> held(lock);
    return current;
  };
  std::atomic<bool> done{false};
  std::atomic<int64_t> answered{0}, refused{0};
  const auto ask = [&](uint32_t seed) {
    std::mt19937 generator(seed);
    std::vector<float> many(4 * 100001);
    while (!done) {
      const std::shared_ptr<ral_context> context = find();
      if (generator() % 8) {
        call_and_check(context.get(), static_cast<int64_t>(generator() % 300), generator() % 2);
        ++answered;
        continue;
      }
      const int64_t dims[2] = {generator() % 2 ? 100001 : 1, 4};  // the entry fails, or the number of inputs is wrong
      const ral_tensor input{many.data(), dims, nullptr, 2, RAL_F32, RAL_CPU, 0};
      ral_tensor output{};
      CHECK(ral_call(context.get(), &input, dims[0] == 1 ? 0 : 1, nullptr, &output, 1) != RAL_OK);
      CHECK(std::strlen(ral_last_error()) > 0);
      ++refused;
    }
  };
  const auto watch = [&] {
    ral_stats stats;
    int64_t rows = 0, launches = 0, nanoseconds = 0;
    while (!done) {
      const std::shared_ptr<ral_context> context = find();
      ral_get_stats(context.get(), &stats);
      ral_get_counters(context.get(), &rows);
      ral_get_kernels(context.get(), &launches, &nanoseconds);
      std::this_thread::yield();
    }
  };
  const auto swap = [&] {
    for (int32_t version = 0; version < 60; ++version) {
      std::shared_ptr<ral_context> next = load(1 + version % 4);
      const std::lock_guard<std::mutex> held(lock);
      current.swap(next);
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t seed = 0; seed < 6; ++seed) threads.emplace_back(ask, seed);
  threads.emplace_back(watch);
  std::thread first(swap), second(swap);
  first.join();
  second.join();
  while (answered < 500 || refused < 50) std::this_thread::yield();
  done = true;
  for (std::thread& thread : threads) thread.join();
}

// The sanitizer of addresses does not take its allocator's locks before a fork (libasan 8): a child that is forked while another thread
// holds one waits for it for ever. There, and only there, forks wait until nobody allocates.
class ForkGate {
 public:
#ifdef __SANITIZE_ADDRESS__
  explicit ForkGate(ral_context* context) { call_and_check(context, 3, false); }  // ends the threads that check its weights
  template <typename Work>
  void work(Work&& work) {
    { const std::lock_guard<std::mutex> turn(next_); }
    const std::shared_lock<std::shared_mutex> held(working_);
    work();
  }
  pid_t fork() {
    const std::lock_guard<std::mutex> turn(next_);  // who works would starve who forks
    const std::unique_lock<std::shared_mutex> held(working_);
    return ::fork();
  }

 private:
  std::mutex next_;
  std::shared_mutex working_;
#else
  explicit ForkGate(ral_context*) {}
  template <typename Work>
  void work(Work&& work) {
    work();
  }
  pid_t fork() { return ::fork(); }
#endif
};

// An OpenMP library: each thread that begins a region has threads of its own in it, which come late, and sometimes fewer than it said.
class TeamLibrary {
 public:
  static constexpr ral_team functions() { return {start, end, [] { return threads.load(); }}; }
  static inline std::atomic<int> threads{6};
  static int64_t regions() { return regions_; }

 private:
  static void start(void (*body)(void*), void* state, unsigned asked) {
    CHECK(team_.empty() && asked == 0);
    const int64_t region = ++regions_;
    for (int i = 1; i < threads.load() - (region % 5 ? 0 : 4); ++i) {
      team_.emplace_back([=] {
        if (region % 3) std::this_thread::sleep_for(std::chrono::microseconds(region % 7 * 20));
        body(state);
      });
    }
    inside_ = true;
  }
  static void end() {
    CHECK(inside_);
    for (std::thread& thread : team_) thread.join();
    team_.clear();
    inside_ = false;
  }

  static inline thread_local std::vector<std::thread> team_;
  static inline thread_local bool inside_ = false;
  static inline std::atomic<int64_t> regions_{0};
};

// Calls at the same time, each with a team of its own; a forked child has none.
void test_teams() {
  const ral_team team = TeamLibrary::functions();
  ral_context* context = load_program(4);
  ral_use_team(context, &team);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([=] {
      std::mt19937 generator(static_cast<uint32_t>(caller));
      for (int i = 0; i < 100; ++i) call_and_check(context, static_cast<int64_t>(generator() % (i % 2 ? 30000 : 300)), generator() % 2);
    });
  }
  for (std::thread& caller : callers) caller.join();
  const int64_t regions = TeamLibrary::regions();
  CHECK(regions > 0 && regions <= 300);
  std::vector<float> many(4 * 100001);
  const int64_t dims[2] = {100001, 4};
  const ral_tensor input{many.data(), dims, nullptr, 2, RAL_F32, RAL_CPU, 0};
  ral_tensor output{};
  CHECK(ral_call(context, &input, 1, nullptr, &output, 1) == RAL_ERROR_SHAPE);
  for (int i = 0; i < 20; ++i) call_and_check(context, 20000, false);
  CHECK(TeamLibrary::regions() > regions);
  TeamLibrary::threads = 3;  // too few
  const int64_t so_far = TeamLibrary::regions();
  for (int i = 0; i < 20; ++i) call_and_check(context, 20000, false);
  CHECK(TeamLibrary::regions() == so_far);
  TeamLibrary::threads = 6;
#ifndef __SANITIZE_THREAD__  // in a child its books hold the parent's threads, whose ids new ones get
  const int64_t before = TeamLibrary::regions();
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    for (int i = 0; i < 20; ++i) call_and_check(context, 20000, false);
    _exit(TeamLibrary::regions() == before ? 0 : 1);
  }
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
#endif
  ral_unload(context);
}

// Children forked while threads call, load and drop: none hangs, and each gets right results.
void test_forks() {
  ral_context* context = load_program(4);
  ral_share_memory(context);
  std::atomic<bool> done{false};
  ForkGate gate(context);
  std::vector<std::thread> threads;
  for (uint32_t seed = 0; seed < 3; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937 generator(seed);
      while (!done) {
        gate.work([&] { call_and_check(context, static_cast<int64_t>(generator() % (seed ? 300 : 20000)), generator() % 2); });
      }
    });
  }
  threads.emplace_back([&] {
    while (!done) gate.work([] { ral_unload(load_program(2)); });
  });
  for (int number = 0; number < 20; ++number) {
    const pid_t child = gate.fork();
    CHECK(child >= 0);
    if (child == 0) {
#ifdef __SANITIZE_THREAD__
      ral_set_threads(context, 1);  // its books hold the parent's threads, whose ids new ones get
#endif
      for (const int64_t rows : {3, 20000, 300}) call_and_check(context, rows, rows == 300);
      _exit(0);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  ral_unload(context);
}

void test_errors() {
  ral_context* context = load_program(1);
  float data[4] = {};
  int64_t dims[2] = {1, 4};
  ral_tensor input{data, dims, nullptr, 2, RAL_F32, RAL_CPU, 0}, output{};
  CHECK(ral_call(context, &input, 0, nullptr, &output, 1) == RAL_ERROR_RANK);
  CHECK(ral_call(context, &input, 1, nullptr, &output, 2) == RAL_ERROR_RANK);
  input.rank = 1;
  CHECK(ral_call(context, &input, 1, nullptr, &output, 1) == RAL_ERROR_RANK);
  input = {data, dims, nullptr, 2, 99, RAL_CPU, 0};
  CHECK(ral_call(context, &input, 1, nullptr, &output, 1) == RAL_ERROR_DTYPE);
  input.dtype = RAL_F32;
  CHECK(ral_call(context, &input, 1, &input, nullptr, 1) == RAL_ERROR_ALIAS);
  for (int64_t rows : {int64_t{-1}, INT64_MIN, int64_t{100001}}) {
    dims[0] = rows;
    CHECK(ral_call(context, &input, 1, nullptr, &output, 1) == RAL_ERROR_SHAPE);
  }
  CHECK(std::strcmp(ral_last_error(), "too many rows: got 100001, expected 100000") == 0);
  const int64_t zero_strides[2] = {0, 0};
  input.strides = zero_strides;
  dims[0] = INT64_MAX / 4;
  CHECK(ral_call(context, &input, 1, nullptr, &output, 1) == RAL_ERROR_MEMORY);
  const ral_options options{RAL_ABI_VERSION + 1, 0, nullptr};
  ral_context* none = context;
  CHECK(ral_load_file("/dev/null", &options, &none) == RAL_ERROR_INTERNAL && !none);
  ral_unload(context);
}

void test_replaced() {
  CHECK(!load_program(1, 1));  // an input that there is not
  ral_context* context = load_program(2, 0);
  float data[12] = {};
  int64_t dims[2] = {3, 4}, strides[2] = {1, 3};
  ral_tensor input{data, dims, nullptr, 2, RAL_F32, RAL_CPU, 0}, output;
  CHECK(ral_call_replacing(context, &input, 1, &output, 1) == RAL_OK);
  CHECK(!output.dims && !output.data && data[0] == 0.5f && data[11] == 0.5f);
  ral_release(&output);
  CHECK(ral_call(context, &input, 1, nullptr, &output, 1) == RAL_OK);
  CHECK(output.dims && static_cast<const float*>(output.data)[11] == 1.0f && data[11] == 0.5f);
  ral_release(&output);
  input.strides = strides;
  CHECK(ral_call_replacing(context, &input, 1, &output, 1) == RAL_OK);
  CHECK(output.dims && static_cast<const float*>(output.data)[11] == 1.0f && data[11] == 0.5f);
  ral_release(&output);
  input.strides = nullptr;
  dims[0] = 100001;
  CHECK(ral_call_replacing(context, &input, 1, &output, 1) == RAL_ERROR_SHAPE && data[11] == 0.5f);
  dims[0] = 0;
  input.data = nullptr;
  CHECK(ral_call_replacing(context, &input, 1, &output, 1) == RAL_OK && !output.dims);
  ral_unload(context);
}

void test_file(const std::string& path) {
  const Bytes code = read_file(TEST_PROGRAM);
  const float weight = 0.5f;
  Bytes weights;
  put(weights, weight);
  const Bytes manifest{'{', '}'};
  const Bytes file =
      artifact_file({{"manifest", manifest}, {"signature", program_signature()}, {"code/x86-64", code}, {"weights", weights}});
  const auto load = [&](const Bytes& content) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(content.data()), static_cast<std::streamsize>(content.size()));
    ral_context* context = nullptr;
    ral_status status = ral_load_file(path.c_str(), nullptr, &context);
    if (status == RAL_OK) status = ral_verify(context);
    if (status == RAL_OK) call_and_check(context, 3, false);
    ral_unload(context);
    return status;
  };
  CHECK(load(file) == RAL_OK);
  std::mt19937 generator(3);
  for (int round = 0; round < 500; ++round) {
    Bytes damaged = file;
    damaged[generator() % (round % 2 ? 1024 : damaged.size())] ^= static_cast<uint8_t>(1 << generator() % 8);
    CHECK(load(damaged) == RAL_ERROR_ARTIFACT);
    damaged = file;
    damaged.resize(generator() % damaged.size());
    CHECK(load(damaged) == RAL_ERROR_ARTIFACT);
  }
  for (int round = 0; round < 1000; ++round) {  // hostile signatures behind right hashes
    Bytes signature = program_signature();
    signature[generator() % signature.size()] = static_cast<uint8_t>(generator() % 3 ? generator() : 255);
    if (round % 5 == 0) signature.resize(generator() % signature.size());
    const Bytes hostile = artifact_file({{"manifest", manifest}, {"signature", signature}, {"weights", weights}});
    CHECK(load(hostile) != RAL_OK);
  }
  std::remove(path.c_str());
}

}  // namespace

// The sanitizer of threads gives up on children of processes with threads, unless it is told not to.
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }

int main(int argc, char** argv) {
  test_sha256();
  test_layouts<uint8_t>();
  test_layouts<uint16_t>();
  test_layouts<uint32_t>();
  test_layouts<uint64_t>();
  test_errors();
  test_replaced();
  for (const bool shares : {false, true}) test_threads(shares);
  test_serving();
  test_teams();
  test_forks();
  test_file(argc > 1 ? argv[1] : "ral_test.disc");
  std::puts("ral_test: all passed");
  return 0;
}
