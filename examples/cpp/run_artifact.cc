// Loads an artifact and calls it: run_artifact MODEL.disc SIZES..., one set of sizes such as 2x17 per input. Floats are 0.5, integers 1.
#include <ral.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using Context = std::unique_ptr<ral_context, void (*)(ral_context*)>;

void check(ral_status status) {
  if (status != RAL_OK) throw std::runtime_error(ral_last_error());
}

Context load(const char* path) {
  ral_context* context = nullptr;
  check(ral_load_file(path, nullptr, &context));
  return {context, ral_unload};
}

std::vector<int64_t> sizes_of(const std::string& text) {
  std::vector<int64_t> sizes;
  const char* at = text.c_str();
  while (*at) {
    char* end = nullptr;
    sizes.push_back(std::strtoll(at, &end, 10));
    const bool more = *end == 'x' && end[1];
    if (end == at || sizes.back() < 0 || (*end && !more)) throw std::runtime_error("'" + text + "' is no set of sizes such as 2x17");
    at = more ? end + 1 : end;
  }
  return sizes;
}

size_t bytes_of(const std::vector<int64_t>& sizes, int64_t element) {
  int64_t bytes = element;
  for (const int64_t size : sizes) {
    if (size && bytes > INT64_MAX / size) throw std::bad_alloc();
    bytes *= size;
  }
  return static_cast<size_t>(bytes);
}

// An input: its data and sizes live as long as it does.
struct Input {
  std::vector<int64_t> sizes;
  std::vector<std::byte> data;
  ral_tensor tensor{};

  Input(const ral_value_info& info, std::vector<int64_t> given) : sizes(std::move(given)) {
    data.resize(bytes_of(sizes, ral_dtype_size(info.dtype)));
    if (info.dtype == RAL_F32) {
      std::vector<float> values(data.size() / sizeof(float), 0.5f);
      std::memcpy(data.data(), values.data(), data.size());
    } else if (info.dtype == RAL_I64) {
      std::vector<int64_t> values(data.size() / sizeof(int64_t), 1);
      std::memcpy(data.data(), values.data(), data.size());
    } else {
      throw std::runtime_error(std::string(info.name) + " is of " + ral_dtype_name(info.dtype) + ": this example fills f32 and i64");
    }
    tensor.data = data.data();
    tensor.dims = sizes.data();
    tensor.rank = static_cast<int32_t>(sizes.size());
    tensor.dtype = static_cast<uint16_t>(info.dtype);
  }
};

void print(const char* name, const ral_tensor& result) {
  std::printf("%s: %s[", name, ral_dtype_name(result.dtype));
  int64_t count = 1;
  for (int32_t i = 0; i < result.rank; ++i) {
    std::printf("%s%lld", i ? ", " : "", static_cast<long long>(result.dims[i]));
    count *= result.dims[i];
  }
  std::printf("]");
  if (result.dtype == RAL_F32)
    for (int64_t i = 0; i < std::min<int64_t>(count, 3); ++i) std::printf(" %.6g", static_cast<const float*>(result.data)[i]);
  std::printf("\n");
}

void run(int argc, char** argv) {
  const Context context = load(argv[1]);
  const int32_t inputs = ral_input_count(context.get()), outputs = ral_output_count(context.get());
  if (argc - 2 != inputs) throw std::runtime_error("the model takes " + std::to_string(inputs) + " inputs");
  std::vector<Input> given;
  given.reserve(static_cast<size_t>(inputs));
  for (int32_t i = 0; i < inputs; ++i) given.emplace_back(ral_input_info(context.get(), i), sizes_of(argv[2 + i]));
  std::vector<ral_tensor> tensors;
  for (const Input& input : given) tensors.push_back(input.tensor);
  std::vector<ral_tensor> results(static_cast<size_t>(outputs));
  check(ral_call(context.get(), tensors.data(), inputs, nullptr, results.data(), outputs));
  for (int32_t i = 0; i < outputs; ++i) {
    print(ral_output_info(context.get(), i).name, results[static_cast<size_t>(i)]);
    ral_release(&results[static_cast<size_t>(i)]);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: run_artifact MODEL.disc SIZES...\n");
    return 2;
  }
  try {
    run(argc, argv);
    return 0;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "there is not enough memory for these sizes\n");
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
