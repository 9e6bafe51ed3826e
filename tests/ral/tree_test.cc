// Compiled host programs with loops, branches and calls (make_host_programs.py) on the CPU and on a device that runs late: `tree_test FOLDER`.
// Exits with 1 at the first failure.
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "fake_device.h"
#include "ral.h"
#include "testing.h"

namespace {

FakeDevice fake;
int32_t fake_number = 0;

struct Numbers {
  bool compared = true;
  std::vector<int64_t> dims, elements;
};

struct Case {
  std::vector<Numbers> inputs, outputs, after;
};

struct Program {
  std::string name;
  Bytes code, fake_code, signature;
  bool spoils = false;  // whether results may lie where inputs did
  std::vector<Case> cases;
};

class Reader {
 public:
  explicit Reader(const Bytes& bytes) : numbers_(bytes.size() / 8) { std::memcpy(numbers_.data(), bytes.data(), numbers_.size() * 8); }
  int64_t next() {
    CHECK(place_ < numbers_.size());
    return numbers_[place_++];
  }
  Numbers tensor() {
    Numbers found;
    const int64_t rank = next();
    found.compared = rank >= 0;
    int64_t count = found.compared ? 1 : 0;
    for (int64_t i = 0; i < rank; ++i) count *= found.dims.emplace_back(next());
    for (int64_t i = 0; i < count; ++i) found.elements.push_back(next());
    return found;
  }
  std::vector<Numbers> tensors(int32_t count) {
    std::vector<Numbers> found;
    for (int32_t i = 0; i < count; ++i) found.push_back(tensor());
    return found;
  }
  bool done() const { return place_ == numbers_.size(); }

 private:
  std::vector<int64_t> numbers_;
  size_t place_ = 0;
};

ral_status load(const Program& program, bool on_fake, ral_context** context) {
  const ral_code sections[] = {{"x86-64-v3", program.code.data(), program.code.size()},
                               {"fake:x86-64-v3", program.fake_code.data(), program.fake_code.size()}};
  const ral_program described{nullptr, 0, program.signature.data(), program.signature.size(), sections, 2, nullptr, 0};
  const ral_options options{RAL_ABI_VERSION, 4, on_fake ? "fake:x86-64-v3" : "x86-64-v3"};
  return ral_load_memory(&described, &options, context);
}

Program read_program(const std::string& folder, const std::string& name) {
  const std::string path = folder + "/" + name;
  Program program{name, read_file(path + ".so"), read_file(path + ".fake.so"), read_file(path + ".signature"), false, {}};
  ral_context* context = nullptr;
  CHECK(load(program, false, &context) == RAL_OK);
  Reader reader(read_file(path + ".cases"));
  program.spoils = reader.next() != 0;
  const int32_t inputs = ral_input_count(context), outputs = ral_output_count(context);
  for (int64_t count = reader.next(); count > 0; --count) {
    Case found{reader.tensors(inputs), reader.tensors(outputs), reader.tensors(inputs)};
    program.cases.push_back(found);
  }
  CHECK(reader.done() && !program.cases.empty());
  ral_unload(context);
  return program;
}

// The inputs of one call, in memory of the device.
class Inputs {
 public:
  Inputs(const Case& values, bool on_fake) : on_fake_(on_fake), values_(values.inputs) {
    for (Numbers& each : values_) {
      const ral_device device = fake.description("fake");
      const auto bytes = static_cast<int64_t>(each.elements.size() * 8);
      void* data = each.elements.data();
      if (on_fake) data = device.allocate(device.state, std::max<int64_t>(bytes, 1));
      if (on_fake && bytes) device.copy(device.state, data, each.elements.data(), bytes);
      const auto number = static_cast<uint8_t>(on_fake ? fake_number : RAL_CPU);
      tensors_.push_back({data, each.dims.data(), nullptr, static_cast<int32_t>(each.dims.size()), RAL_I64, number, 0});
    }
    if (on_fake) fake.description("fake").synchronize(&fake);
  }
  Inputs(const Inputs&) = delete;
  Inputs& operator=(const Inputs&) = delete;
  ~Inputs() {
    for (const ral_tensor& each : tensors_) {
      if (on_fake_) fake.description("fake").free(&fake, each.data);
    }
  }
  const std::vector<ral_tensor>& tensors() const { return tensors_; }

 private:
  bool on_fake_;
  std::vector<Numbers> values_;
  std::vector<ral_tensor> tensors_;
};

void check_tensor(const ral_tensor& found, const Numbers& wanted) {
  if (!wanted.compared) return;
  CHECK(found.rank == static_cast<int32_t>(wanted.dims.size()));
  CHECK(std::equal(wanted.dims.begin(), wanted.dims.end(), found.dims));
  std::vector<int64_t> elements(wanted.elements.size());
  const auto bytes = static_cast<int64_t>(elements.size() * 8);
  if (bytes && found.device == RAL_CPU) std::memcpy(elements.data(), found.data, static_cast<size_t>(bytes));
  if (bytes && found.device != RAL_CPU) CHECK(fake.description("fake").copy(&fake, elements.data(), found.data, bytes) == 0);
  CHECK(elements == wanted.elements);
}

// Calls, and compares where it is done. Nothing may be left over.
ral_status call(ral_context* context, const Case& values, bool on_fake) {
  const Inputs inputs(values, on_fake);
  std::vector<ral_tensor> outputs(values.outputs.size());
  const ral_status status = ral_call(context, inputs.tensors().data(), static_cast<int32_t>(inputs.tensors().size()), nullptr,
                                     outputs.data(), static_cast<int32_t>(outputs.size()));
  if (status != RAL_OK) return status;
  for (size_t i = 0; i < outputs.size(); ++i) check_tensor(outputs[i], values.outputs[i]);
  for (size_t i = 0; i < values.after.size(); ++i) check_tensor(inputs.tensors()[i], values.after[i]);
  for (ral_tensor& output : outputs) ral_release(&output);
  return RAL_OK;
}

void test_results(const Program& program, bool on_fake) {
  ral_context* context = nullptr;
  CHECK(load(program, on_fake, &context) == RAL_OK);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (const Case& values : program.cases) CHECK(call(context, values, on_fake) == RAL_OK);
    });
  }
  for (std::thread& caller : callers) caller.join();
  ral_unload(context);
}

// Every request to the device fails once, up to `most` of them. A call that may have written over inputs that it spoils says so, any other
// has left those as they were.
void test_failures(const Program& program, int64_t most) {
  const Case& values = program.cases.back();
  const size_t outside = fake.live();
  bool done = false;
  for (int64_t at = 0; !done && at < most; ++at) {
    ral_context* context = nullptr;
    CHECK(load(program, true, &context) == RAL_OK);
    const Inputs inputs(values, true);
    std::vector<ral_tensor> outputs(values.outputs.size());
    const int64_t launches = fake.asked_launches();
    fake.fail_at(at);
    const ral_status status = ral_call(context, inputs.tensors().data(), static_cast<int32_t>(inputs.tensors().size()), nullptr,
                                       outputs.data(), static_cast<int32_t>(outputs.size()));
    done = fake.requests() <= at;
    fake.fail_at(-1);
    const bool launched = fake.asked_launches() > launches;
    if (done) {
      CHECK(status == RAL_OK);
      for (ral_tensor& output : outputs) ral_release(&output);
    } else if (status == RAL_ERROR_WRITTEN) {
      CHECK(program.spoils);
    } else {
      CHECK(status == RAL_ERROR_DEVICE || status == RAL_ERROR_MEMORY);
      CHECK(!(program.spoils && launched));
      for (size_t i = 0; !launched && i < values.inputs.size(); ++i) check_tensor(inputs.tensors()[i], values.inputs[i]);
    }
    ral_unload(context);
  }
  CHECK(fake.live() == outside);
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc == 2);
  const ral_device device = fake.description("fake");
  CHECK(ral_register_device(&device, &fake_number) == RAL_OK);
  std::ifstream names(std::string(argv[1]) + "/programs");
  int programs = 0;
  for (std::string name; std::getline(names, name); ++programs) {
    const Program program = read_program(argv[1], name);
    for (const bool on_fake : {false, true}) test_results(program, on_fake);
    test_failures(program, 60);
    CHECK(fake.live() == 0);
  }
  CHECK(programs > 0);
  std::printf("tree_test: %d programs passed\n", programs);
  return 0;
}
