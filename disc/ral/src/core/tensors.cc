// Tensors of programs on GPUs that stay from call to call.
#include <algorithm>
#include <memory>
#include <new>

#include "core/bytes.h"
#include "core/context.h"
#include "core/layout.h"

using ral::error;
using ral::Status;

Status ral_context::keep_tensor(const ral_tensor& from, ral_tensor* made) {
  const auto rank = static_cast<size_t>(from.rank);
  const int64_t bytes = ral::bytes_of(from), head = ral::round_up(static_cast<int64_t>((2 * rank + 1) * sizeof(int64_t)));
  int64_t capacity = 0;
  void* data = nullptr;
  auto* dims = static_cast<int64_t*>(device->acquire_lasting(head, bytes, &data, &capacity));
  if (!dims) return error(RAL_ERROR_MEMORY, "cannot allocate " + std::to_string(bytes) + " bytes on " + device->text());
  std::copy_n(from.dims, rank, dims);
  ral::row_major_strides(from.dims, from.rank, dims + rank);
  dims[2 * rank] = capacity;
  *made = {data, dims, dims + rank, from.rank, from.dtype, device->number(), device->id()};
  const auto release = [](ral_tensor* tensor) { ral::release_output(tensor); };
  std::unique_ptr<ral_tensor, decltype(release)> unfinished(made);
  Status status = copy_numbers(from, *made, nullptr);
  if (status.ok()) static_cast<void>(unfinished.release());
  return status;
}

Status ral_context::copy_numbers(const ral_tensor& from, const ral_tensor& to, void* stream) {
  const int64_t element = ral::dtype_size(from.dtype), bytes = ral::bytes_of(from);
  if (from.rank != to.rank || !std::equal(from.dims, from.dims + from.rank, to.dims)) {
    return error(RAL_ERROR_SHAPE, "a tensor of size " + ral::dims_text(from.dims, from.rank) + " is copied to one of size " +
                                      ral::dims_text(to.dims, to.rank));
  }
  if (!ral::is_row_major(from, element) || !ral::is_row_major(to, element)) return error(RAL_ERROR_ALIAS, "a tensor is not contiguous");
  const bool waits = from.device == RAL_CPU || to.device == RAL_CPU;
  const auto calls = on_device->open();
  Status status, later;
  if (!calls->begin(stream, waits, &status)) return status;
  try {
    if (bytes > 0) calls->copy(to.data, from.data, bytes, &status);
  } catch (const std::bad_alloc&) {  // for the message of a failure
    status = error(RAL_ERROR_MEMORY, "");
  }
  ral::Fault none;
  calls->finish(status.ok() ? &status : &later, &none);
  return status;
}
