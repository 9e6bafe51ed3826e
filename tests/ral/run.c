/* Runs an artifact of c = a + b with nothing but ral.h: `run FILE ROWS`. Prints JSON; exits with the status of the first failure. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "ral.h"

static int report(ral_status status) {
  fprintf(stderr, "%s\n", ral_last_error());
  return (int)status;
}

int main(int argc, char** argv) {
  enum { kColumns = 4, kMaxRows = 64, kCalls = 1000 };
  static float data[kMaxRows * kColumns];
  const int64_t dims[2] = {argc > 2 ? atoll(argv[2]) : 0, kColumns};
  const ral_options options = {RAL_ABI_VERSION, 1, NULL};
  ral_context* context = NULL;
  ral_tensor inputs[2], output;
  ral_status status;
  struct timespec start, end;

  if (argc != 3 || dims[0] > kMaxRows) return 100;
  status = ral_load_file(argv[1], &options, &context);
  if (status != RAL_OK) return report(status);
  for (int i = 0; i < kMaxRows * kColumns; ++i) data[i] = (float)i;
  for (int i = 0; i < ral_input_count(context); ++i) inputs[i] = (ral_tensor){data, dims, NULL, 2, RAL_F32, RAL_CPU, 0};
  clock_gettime(CLOCK_MONOTONIC, &start);
  for (int i = 0; i < kCalls; ++i) {
    status = ral_call(context, inputs, 2, NULL, &output, 1);
    if (status != RAL_OK) return report(status);
    if (i + 1 < kCalls) ral_release(&output);
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  printf("{\"dims\": [%lld, %lld], \"values\": [", (long long)output.dims[0], (long long)output.dims[1]);
  for (int64_t i = 0; i < output.dims[0] * output.dims[1]; ++i) printf("%s%g", i ? ", " : "", (double)((const float*)output.data)[i]);
  printf("], \"nanoseconds_per_call\": %g}\n",
         ((double)(end.tv_sec - start.tv_sec) * 1e9 + (double)(end.tv_nsec - start.tv_nsec)) / kCalls);
  ral_release(&output);
  ral_unload(context);
  return 0;
}
