// Checks of what the caller hands in, before any generated code runs.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/bytes.h"
#include "core/devices.h"
#include "core/exec.h"
#include "core/layout.h"

using ral::error;
using ral::Status;

namespace {

std::string name_of(const char* kind, const std::string& name, size_t index, const char* counted) {
  return std::string(kind) + " '" + name + "' (" + counted + std::to_string(index) + "): ";
}

constexpr size_t kNamedInputs = 8;  // more names than that hide the count

// " ('input_ids', 'mask')", or "" where there are too many to read.
std::string names_of(const std::vector<ral::ValueInfo>& infos) {
  if (infos.empty() || infos.size() > kNamedInputs) return "";
  std::string names;
  for (const ral::ValueInfo& info : infos) names += (names.empty() ? " ('" : ", '") + info.name + "'";
  return names + ")";
}

// "[2, 17]".
std::string shape_of(const ral_tensor& tensor) {
  std::string dims;
  for (int32_t d = 0; d < tensor.rank; ++d) dims += (d == 0 ? "" : ", ") + std::to_string(tensor.dims[d]);
  return "[" + dims + "]";
}

}  // namespace

// name: gives the start of a message.
template <typename Name>
Status ral_exec::check_device(const ral_tensor& tensor, Name name) const {
  const ral::Device& wanted = *program_.device;
  if (tensor.device == wanted.number() && tensor.device_id == wanted.id()) return {};
  if (staged_) return {};
  return error(RAL_ERROR_DEVICE,
               name() + "is on " + ral::device_text(tensor.device, tensor.device_id) + ", the loaded code is for " + wanted.text());
}

Status ral_exec::check_inputs(const ral_tensor* inputs, int32_t count) const {
  const auto& infos = program_.signature.inputs;
  if (count != static_cast<int32_t>(infos.size())) {
    return error(RAL_ERROR_RANK, "expected " + std::to_string(infos.size()) + (infos.size() == 1 ? " input" : " inputs") + names_of(infos) +
                                     ", got " + std::to_string(count));
  }
  for (size_t i = 0; i < infos.size(); ++i) {
    const ral::ValueInfo& info = infos[i];
    const ral_tensor& input = inputs[i];
    const bool is_number = on_gpu_ && input.device == RAL_CPU && input.rank == 0 && info.rank == 0;  // beside tensors on the GPU
    Status here = is_number ? Status{} : check_device(input, [&] { return name_of("input", info.name, i, "argument "); });
    if (!here.ok()) return here;
    if (input.dtype != info.dtype) {
      return error(RAL_ERROR_DTYPE, name_of("input", info.name, i, "argument ") + "expected dtype " + ral::dtype_name(info.dtype) +
                                        ", got " + ral::dtype_name(input.dtype));
    }
    if (input.rank != info.rank) {
      return error(RAL_ERROR_RANK, name_of("input", info.name, i, "argument ") + "expected rank " + std::to_string(info.rank) + ", got " +
                                       std::to_string(input.rank) + " (shape " + shape_of(input) + ")");
    }
    bool empty = false;
    for (int32_t d = 0; d < info.rank; ++d) {
      const int64_t expected = info.dims[static_cast<size_t>(d)];
      empty |= input.dims[d] == 0;
      if (input.dims[d] < 0 || (expected >= 0 && input.dims[d] != expected)) {
        return error(RAL_ERROR_SHAPE, name_of("input", info.name, i, "argument ") + "dim " + std::to_string(d) + " must be " +
                                          (expected >= 0 ? std::to_string(expected) : "at least 0") + ", got " +
                                          std::to_string(input.dims[d]));
      }
    }
    if (!info.row_major.empty() && !ral::is_row_major(input, ral::dtype_size(info.dtype))) {
      return error(RAL_ERROR_SHAPE, name_of("input", info.name, i, "argument ") +
                                        "must be contiguous: the program decides by its strides at " + info.row_major);
    }
    if (!input.data && !empty) return error(RAL_ERROR_INTERNAL, name_of("input", info.name, i, "argument ") + "its data is NULL");
  }
  return {};
}

// An input that is written to must be the caller's memory itself, and nothing else's.
Status ral_exec::check_written(const ral_tensor* inputs) const {
  const auto& infos = program_.signature.inputs;
  for (size_t i = 0; i < infos.size(); ++i) {
    if (!infos[i].written) continue;
    const int64_t element = ral::dtype_size(infos[i].dtype);
    const std::string name = name_of("input", infos[i].name, i, "argument ");
    if (!ral::is_row_major(inputs[i], element)) return error(RAL_ERROR_ALIAS, name + "is written to, and is not contiguous");
    const ral::Extent range = ral::extent(inputs[i], element);
    for (size_t j = 0; j < infos.size(); ++j) {
      if (i == j || !range.overlaps(ral::extent(inputs[j], ral::dtype_size(infos[j].dtype)))) continue;
      return error(RAL_ERROR_ALIAS, name + "is written to, and overlaps input '" + infos[j].name + "'");
    }
  }
  return {};
}

// The inputs in whose memory results may be computed, which is the caller's own and nothing else's.
void ral_exec::find_replaced(const ral_tensor* inputs) {
  const ral::Signature& signature = program_.signature;
  if (std::none_of(signature.outputs.begin(), signature.outputs.end(), [](const ral::ValueInfo& info) { return info.replaces >= 0; })) return;
  std::vector<std::pair<ral::Extent, size_t>> extents;
  for (size_t i = 0; i < signature.inputs.size(); ++i) {
    extents.emplace_back(ral::extent(inputs[i], ral::dtype_size(signature.inputs[i].dtype)), i);
  }
  std::vector<bool> shared(extents.size(), false);
  std::erase_if(extents, [](const auto& each) { return each.first.begin == each.first.end; });
  std::sort(extents.begin(), extents.end(), [](const auto& one, const auto& other) { return one.first.begin < other.first.begin; });
  size_t furthest = 0;  // which of those before ends last
  for (size_t i = 1; i < extents.size(); ++i) {
    if (extents[i].first.overlaps(extents[furthest].first)) shared[extents[i].second] = shared[extents[furthest].second] = true;
    if (extents[i].first.end > extents[furthest].first.end) furthest = i;
  }
  for (const ral::ValueInfo& info : signature.outputs) {
    if (info.replaces < 0) continue;
    const auto input = static_cast<size_t>(info.replaces);
    replaced_[input] = !shared[input] && ral::is_row_major(inputs[input], ral::dtype_size(info.dtype));
  }
}

Status ral_exec::check_given(const ral_tensor* inputs, const ral_tensor* given) const {
  const ral::Signature& signature = program_.signature;
  for (size_t i = 0; i < signature.outputs.size(); ++i) {
    const ral::ValueInfo& info = signature.outputs[i];
    const std::string name = name_of("output", info.name, i, "");
    const int64_t element = ral::dtype_size(info.dtype);
    if (Status status = check_device(given[i], [&] { return name; }); !status.ok()) return status;
    if (given[i].dtype != info.dtype) {
      return error(RAL_ERROR_DTYPE,
                   name + "the result has dtype " + ral::dtype_name(info.dtype) + ", the given buffer " + ral::dtype_name(given[i].dtype));
    }
    if (given[i].rank != info.rank) {
      return error(RAL_ERROR_RANK,
                   name + "the result has rank " + std::to_string(info.rank) + ", the given buffer " + std::to_string(given[i].rank));
    }
    int64_t bytes = 0;
    if (!ral::tensor_bytes(given[i].dims, given[i].rank, element, &bytes))
      return error(RAL_ERROR_SHAPE, name + "the given buffer has impossible dims");
    if (!ral::is_row_major(given[i], element)) return error(RAL_ERROR_ALIAS, name + "the given buffer is not contiguous");
    if (!given[i].data && bytes > 0) return error(RAL_ERROR_INTERNAL, name + "the data of the given buffer is NULL");
    const ral::Extent range = ral::extent(given[i], element);
    for (size_t j = 0; j < signature.inputs.size(); ++j) {
      if (!range.overlaps(ral::extent(inputs[j], ral::dtype_size(signature.inputs[j].dtype)))) continue;
      return error(RAL_ERROR_ALIAS, name + "the given buffer overlaps input '" + signature.inputs[j].name + "'");
    }
    for (size_t j = 0; j < i; ++j) {
      if (!range.overlaps(ral::extent(given[j], ral::dtype_size(signature.outputs[j].dtype)))) continue;
      return error(RAL_ERROR_ALIAS, name + "the given buffer overlaps the one given for output '" + signature.outputs[j].name + "'");
    }
  }
  return {};
}
