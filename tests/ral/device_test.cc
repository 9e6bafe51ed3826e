// Programs with control flow (loop_program.c) on the CPU and on a device that runs late: `device_test`. Exits with 1 at the first failure.
#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "fake_device.h"
#include "ral.h"
#include "testing.h"

namespace {

using Numbers = std::vector<int64_t>;

enum Program : int64_t { kLoop, kGrow, kGather, kWait };
constexpr int64_t kWeight = 5;

FakeDevice fake;
int32_t fake_number = 0;

Bytes signature() {
  Bytes bytes;
  for (const uint32_t value : {1u, 2u}) put(bytes, value);  // version, inputs
  put_value(bytes, "x", RAL_I64, 1, {-1});
  put_value(bytes, "what", RAL_I64, 1, {2});
  put<uint32_t>(bytes, 1);
  put_value(bytes, "y", RAL_I64, 1, {});
  put_texts(bytes, {"stopped at step {actual}"});
  put_texts(bytes, {"halve", "any", "square", "count", "gather"});
  put_texts(bytes, {"steps"});
  put<uint32_t>(bytes, 1);
  put_text(bytes, "weight");
  put<int64_t>(bytes, 0);
  put<int64_t>(bytes, sizeof kWeight);
  return bytes;
}

ral_status load(const char* wanted, ral_context** context) {
  static const Bytes plain = read_file(LOOP_PROGRAM), recorded = read_file(FAKE_LOOP_PROGRAM), described = signature();
  const ral_code sections[] = {{"x86-64", plain.data(), plain.size()}, {"fake:x86-64", recorded.data(), recorded.size()}};
  const void* weights[] = {&kWeight};
  const ral_program program{nullptr, 0, described.data(), described.size(), sections, 2, weights, 1};
  const ral_options options{RAL_ABI_VERSION, 4, wanted};
  return ral_load_memory(&program, &options, context);
}

ral_context* loaded(bool on_fake) {
  ral_context* context = nullptr;
  CHECK(load(on_fake ? "fake:x86-64" : "x86-64", &context) == RAL_OK);
  CHECK(ral_device_number(context) == (on_fake ? fake_number : RAL_CPU));
  return context;
}

// Numbers in the memory of a device, as an input.
class Input {
 public:
  Input(const Numbers& numbers, bool on_fake) : numbers_(numbers), dims_{static_cast<int64_t>(numbers.size())} {
    const ral_device device = fake.description("fake");
    const int64_t bytes = dims_[0] * 8;
    if (on_fake) block_ = device.allocate(device.state, std::max<int64_t>(bytes, 1));
    if (on_fake && bytes) device.copy(device.state, block_, numbers.data(), bytes);
    if (on_fake) device.synchronize(device.state);
  }
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;
  ~Input() {
    const ral_device device = fake.description("fake");
    if (block_) device.free(device.state, block_);
  }
  ral_tensor tensor() {
    const auto number = static_cast<uint8_t>(block_ ? fake_number : RAL_CPU);
    return {block_ ? block_ : numbers_.data(), dims_, nullptr, 1, RAL_I64, number, 0};
  }

 private:
  Numbers numbers_;
  int64_t dims_[1];
  void* block_ = nullptr;
};

Numbers result(const ral_tensor& output) {
  Numbers found(static_cast<size_t>(output.dims[0]));
  const ral_device device = fake.description("fake");
  if (output.device == RAL_CPU) {
    std::copy_n(static_cast<const int64_t*>(output.data), found.size(), found.data());
  } else if (!found.empty()) {
    CHECK(device.copy(device.state, found.data(), output.data, output.dims[0] * 8) == 0);
  }
  return found;
}

// One call. `stop`: the step at which a check fails.
ral_status call(ral_context* context, Program program, const Numbers& x, int64_t stop, Numbers* found) {
  const bool on_fake = ral_device_number(context) != RAL_CPU;
  Input data(x, on_fake), what({program, stop}, on_fake);
  const ral_tensor inputs[] = {data.tensor(), what.tensor()};
  ral_tensor output{};
  const ral_status status = ral_call(context, inputs, 2, nullptr, &output, 1);
  if (status == RAL_OK) *found = result(output);
  if (status == RAL_OK) ral_release(&output);
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

const std::vector<size_t> kSizes = {0, 1, 2, 7, 31, 257};

void test_results(ral_context* context, uint32_t seed) {
  std::mt19937 generator(seed);
  for (const Program program : {kLoop, kGrow, kGather}) {
    for (const size_t size : kSizes) {
      const Numbers x = some_numbers(generator, size, program);
      Numbers found;
      CHECK(call(context, program, x, -1, &found) == RAL_OK);
      CHECK(found == expected(program, x));
    }
  }
}

void test_stops(ral_context* context) {
  std::mt19937 generator(7);
  const size_t before = fake.live();
  for (const Program program : {kLoop, kGrow, kGather}) {
    Numbers x = some_numbers(generator, 31, program), found;
    x[0] = 3;
    for (int64_t stop = 0; stop < (program == kGather ? 1 : 2); ++stop) {
      CHECK(call(context, program, x, stop, &found) == RAL_ERROR_SHAPE);
      CHECK(ral_last_error() == "stopped at step " + std::to_string(stop));
      CHECK(fake.live() == before);
    }
    CHECK(call(context, program, x, -1, &found) == RAL_OK && found == expected(program, x));
  }
}

void test_threads(ral_context* context) {
  std::vector<std::thread> callers;
  for (uint32_t seed = 0; seed < 4; ++seed) callers.emplace_back([=] { test_results(context, seed); });
  for (std::thread& caller : callers) caller.join();
}

// A loop without an end stops when another thread says so; calls of other threads go on, and so does this one's next.
void test_cancelling(ral_context* context) {
  std::atomic<int> asked = 0;
  std::atomic<bool> over = false;
  const auto is_over = [](void* state) -> int32_t { return static_cast<std::atomic<bool>*>(state)->load(); };
  const auto counted = [](void* state) -> int32_t { return static_cast<std::atomic<int>*>(state)->fetch_add(1) < 0; };
  const size_t before = fake.live();
  std::thread other([=, &asked] {
    ral_set_stop(counted, &asked);
    test_results(context, 5);
    ral_set_stop(nullptr, nullptr);
  });
  std::thread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    over = true;
  });
  Numbers found;
  ral_set_stop(is_over, &over);
  CHECK(call(context, kWait, {2}, -1, &found) == RAL_ERROR_CANCELLED);
  CHECK(!std::strcmp(ral_last_error(), "the call was cancelled"));
  CHECK(call(context, kWait, {1}, -1, &found) == RAL_OK && found == Numbers{0});
  ral_set_stop(nullptr, nullptr);
  other.join();
  stopper.join();
  CHECK(fake.live() == before);
  test_results(context, 6);
}

// A loop of 1000 rounds in which two blocks take turns holds no more than one of one round.
void test_blocks_are_reused(ral_context* context) {
  const auto held = [&] {
    ral_stats stats;
    ral_get_stats(context, &stats);
    return stats.arena_bytes;
  };
  Numbers found, x(100000, int64_t{1} << 2);
  CHECK(call(context, kLoop, x, -1, &found) == RAL_OK);
  const int64_t once = held();
  x.assign(x.size(), int64_t{1} << 62);
  CHECK(call(context, kLoop, x, -1, &found) == RAL_OK && found == expected(kLoop, x));
  CHECK(held() == once && once >= 2 * 800000 && once < 3 * 800000);
}

// Every request to the device fails once, and from there on nothing may be left over.
void test_failures() {
  std::mt19937 generator(3);
  const size_t outside = fake.live();
  for (const Program program : {kLoop, kGrow, kGather}) {
    const Numbers x = some_numbers(generator, 7, program);
    Input data(x, true), what({program, -1}, true);
    const ral_tensor inputs[] = {data.tensor(), what.tensor()};
    const size_t before = fake.live();
    bool done = false;
    for (int64_t at = 0; !done; ++at) {
      fake.fail_at(at);
      ral_context* context = nullptr;
      ral_status status = load("fake:x86-64", &context);
      ral_tensor output{};
      if (status == RAL_OK) status = ral_call(context, inputs, 2, nullptr, &output, 1);
      done = fake.requests() <= at;
      fake.fail_at(-1);
      CHECK(done ? status == RAL_OK : status == RAL_ERROR_DEVICE || status == RAL_ERROR_MEMORY);
      CHECK(done || std::strstr(ral_last_error(), "device 'fake'") || std::strstr(ral_last_error(), "cannot allocate"));
      if (done) CHECK(result(output) == expected(program, x));
      if (done) ral_release(&output);
      ral_unload(context);
      CHECK(fake.live() == before);
    }
  }
  CHECK(fake.live() == outside);
}

void test_wrong_devices() {
  ral_context *on_cpu = loaded(false), *on_fake = loaded(true);
  int64_t data[2] = {1, 2};
  const int64_t dims[1] = {2}, strides[1] = {2};
  ral_tensor output{};
  const auto refused = [&](ral_context* context, uint8_t device, uint8_t id, const char* message) {
    Input good({1, 2}, ral_device_number(context) != RAL_CPU);
    const ral_tensor inputs[] = {good.tensor(), {data, dims, nullptr, 1, RAL_I64, device, id}};
    CHECK(ral_call(context, inputs, 2, nullptr, &output, 1) == RAL_ERROR_DEVICE);
    CHECK(std::string(ral_last_error()) == message);
  };
  const auto number = static_cast<uint8_t>(fake_number);
  refused(on_cpu, number, 0, "input 'what' (argument 1): is on fake:0, the loaded code is for cpu:0");
  refused(on_fake, RAL_CPU, 0, "input 'what' (argument 1): is on cpu:0, the loaded code is for fake:0");
  refused(on_fake, number, 1, "input 'what' (argument 1): is on fake:1, the loaded code is for fake:0");
  refused(on_cpu, 200, 3, "input 'what' (argument 1): is on device 200:3, the loaded code is for cpu:0");
  Input x({1, 2, 3, 4}, true), what({kGather, -1}, true);
  const ral_tensor good[] = {x.tensor(), what.tensor()}, given{data, dims, nullptr, 1, RAL_I64, RAL_CPU, 0};
  CHECK(ral_call(on_fake, good, 2, &given, nullptr, 1) == RAL_ERROR_DEVICE);
  CHECK(std::string(ral_last_error()) == "output 'y' (0): is on cpu:0, the loaded code is for fake:0");
  ral_tensor apart[] = {x.tensor(), what.tensor()};
  apart[0].dims = dims;
  apart[0].strides = strides;
  CHECK(ral_call(on_fake, apart, 2, nullptr, &output, 1) == RAL_ERROR_DEVICE);
  CHECK(std::string(ral_last_error()) == "input 'x' is not contiguous, and is copied on CPUs and GPUs only");
  ral_unload(on_cpu);
  ral_unload(on_fake);
}

void test_registration() {
  ral_context* context = nullptr;
  CHECK(load("fake:x86-64", &context) == RAL_ERROR_TARGET);
  CHECK(std::strstr(ral_last_error(), "code for fake:x86-64 needs the device 'fake'"));
  ral_device device = fake.description("fake");
  int32_t number = -1;
  const auto refused = [&](const char* message) {
    CHECK(ral_register_device(&device, &number) == RAL_ERROR_INTERNAL);
    CHECK(std::strstr(ral_last_error(), message));
  };
  device.abi = 1;
  refused("the device was built for ABI 1");
  for (const char* name : {"", "a:b", "Fake", "cpu+avx", static_cast<const char*>(nullptr)}) {
    device = fake.description(name);
    refused("no valid name");
  }
  device = fake.description("fake");
  device.fill = nullptr;
  refused("a function of device 'fake' is NULL");
  device = fake.description("cpu");
  refused("there is a device 'cpu' already");
  device = fake.description("fake");
  CHECK(ral_register_device(&device, &fake_number) == RAL_OK && fake_number == 1);
  refused("there is a device 'fake' already");
}

}  // namespace

int main() {
  test_registration();
  for (const bool on_fake : {false, true}) {
    ral_context* context = loaded(on_fake);
    test_results(context, 1);
    test_stops(context);
    test_threads(context);
    test_cancelling(context);
    if (!on_fake) test_blocks_are_reused(context);
    ral_unload(context);
    CHECK(fake.live() == 0);
  }
  std::printf("%lld launches on the fake device\n", static_cast<long long>(fake.launches()));
  CHECK(fake.launches() > 100);
  test_failures();
  test_wrong_devices();
  CHECK(fake.live() == 0);
  std::puts("device_test: all passed");
  return 0;
}
