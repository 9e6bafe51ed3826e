/* Generated code as the compiler would make it, for library_test.cc: sorts the lines of x, f32 [rows, columns], along the dim that `dim` holds,
 * descending where `descending` is 1; where it is 2 one column more than there are is wanted of the results. */
#include <string.h>
#include "ral.h"

int32_t disc_entry(ral_exec* exec, const ral_host_api* api, const ral_tensor* inputs, const void* const* weights, int64_t* counters);

int32_t disc_entry(ral_exec* exec, const ral_host_api* api, const ral_tensor* inputs, const void* const* weights, int64_t* counters) {
  static const int64_t layout[] = {1, 2, 2, RAL_F32, 2, RAL_F32, 2, RAL_I64, 2};
  const int64_t* dims = inputs[0].dims;
  const int64_t dim = *(const int64_t*)inputs[1].data, descending = *(const int64_t*)inputs[2].data;
  const int64_t wanted = dims[1] + (descending == 2);
  (void)weights;
  void *values = api->output(exec, 0, dims), *indices = api->output(exec, 1, dims);
  if (!values || !indices) return 1;
  counters[0] += 1;
  const int64_t args[] = {(int64_t)inputs[0].data, (int64_t)values, (int64_t)indices, dims[0], dims[1], dims[0], wanted, dims[0], wanted,
                          dim, descending};
  return api->library(exec, 0, 0, 0, layout, args);
}
