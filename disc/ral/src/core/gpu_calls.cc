// Calls of a GPU: tensors in this process's memory are copied there and back, and faults come late.
#include "core/bytes.h"
#include "core/exec.h"
#include "core/layout.h"

using ral::error;
using ral::Status;

namespace ral {
bool are_here(const ral_tensor* tensors, int32_t count) {
  for (int32_t i = 0; i < count; ++i) {
    if (tensors[i].device != RAL_CPU) return false;
  }
  return true;
}
}  // namespace ral

// Of an earlier call, which had returned before its launches were done.
Status ral_exec::reported_fault() {
  ral::Fault fault;
  if (!program_.on_device->take_fault(&fault)) return {};
  Status failed = ral::failed_check(program_.signature, fault.check, fault.index, fault.size);
  failed.message += " (in an earlier call, which is why this one did not run)";
  return failed;
}

// Inputs of this process's memory: all of a call, or single numbers beside tensors on the device.
bool ral_exec::place_inputs() {
  static const char nothing[ral::kAlignment] = {};
  placed_.clear();
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (inputs_[i].device != RAL_CPU) continue;
    const int64_t bytes = ral::bytes_of(inputs_[i]);
    const auto* here = static_cast<const char*>(inputs_[i].data);
    inputs_[i].data = const_cast<char*>(nothing);
    if (bytes == 0) continue;
    inputs_[i].data = alloc(bytes);
    if (!inputs_[i].data || !stream_->upload(inputs_[i].data, here, bytes, failure())) return false;
    placed_.push_back({static_cast<const char*>(inputs_[i].data), here, bytes, i});
  }
  return true;
}

bool ral_exec::place_strided() {
  for (const auto& [number, tensor] : strided_) {
    inputs_[number].data = alloc(ral::bytes_of(tensor));
    if (!inputs_[number].data || !stream_->gather(inputs_[number].data, tensor, failure())) return false;
  }
  return true;
}

// Gives an output whose tensor lies in this process's memory a place on the device, where the code writes it.
Status ral_exec::stage_output(size_t index) {
  Output& output = outputs_[index];
  const int64_t bytes = ral::bytes_of(output.tensor);
  output.place = stream_->allocate(bytes, failure());
  if (output.place) return {};
  return status_.ok() ? error(RAL_ERROR_MEMORY, "cannot allocate " + std::to_string(bytes) + " bytes on " + program_.device->text() +
                                                    " for output '" + program_.signature.outputs[index].name + "'")
                      : status_;
}

// What a staged call has made and written comes to this process's memory, when the stream is waited for.
bool ral_exec::return_results() {
  for (const Output& output : outputs_) {
    const int64_t bytes = output.made ? ral::bytes_of(output.tensor) : 0;
    if (bytes > 0 && !stream_->download(output.tensor.data, output.place, bytes, failure())) return false;
  }
  for (const Placed& each : placed_) {
    if (!program_.signature.inputs[each.input].written) continue;
    if (!stream_->download(const_cast<char*>(each.here), each.there, each.bytes, failure())) return false;
  }
  return true;
}

// Says with which sizes a device failed, or had no memory.
void ral_exec::name_inputs() {
  std::string text = status_.message.empty() ? "out of memory" : "";
  for (size_t i = 0; i < inputs_.size(); ++i) {
    text += (i ? ", " : "; the inputs were ") + program_.signature.inputs[i].name + " " + ral::dims_text(inputs_[i].dims, inputs_[i].rank);
  }
  status_.message += text;
}

int32_t ral_exec::watch(int64_t check_id) {
  if (check_id < 0 || check_id >= static_cast<int64_t>(program_.signature.checks.size())) {
    return record(RAL_ERROR_INTERNAL, "watch: check " + std::to_string(check_id) + " is out of range (compiler bug)");
  }
  stream_->watch(check_id);
  return 0;
}
