"""Small programs for the tests of the runtime: C sources built with gcc, and the manifests that describe them."""

from __future__ import annotations

import functools
import subprocess
import tempfile
from pathlib import Path

from disc.artifact.manifest import InputRecord, Manifest, OutputRecord

INCLUDE = Path(__file__).parents[2] / "disc" / "ral" / "include"

# c = a + b for f32 [S0, 4], threads over rows; input b must have as many rows as a. Weight 0 is a scalar that is added.
ADD = """
#include "ral.h"
static void rows(const int64_t* args, int64_t begin, int64_t end, void* scratch) {
  const float *a = (const float*)args[0], *b = (const float*)args[1], *bias = (const float*)args[3];
  float* c = (float*)args[2];
  for (int64_t i = begin * 4; i < end * 4; ++i) c[i] = a[i] + b[i] + *bias;
}
int32_t disc_entry(ral_exec* exec, const ral_host_api* api, const ral_tensor* in, const void* const* weights, int64_t* counters) {
  if (in[1].dims[0] != in[0].dims[0]) return api->fail(exec, 0, in[1].dims[0], in[0].dims[0]);
  int64_t dims[2] = {in[0].dims[0], 4};
  float* c = api->output(exec, 0, dims);
  if (!c || !api->alloc(exec, 64 * dims[0])) return 1;
  counters[dims[0] % 2 == 0] += 1;
  int64_t args[4] = {(int64_t)in[0].data, (int64_t)in[1].data, (int64_t)c, (int64_t)weights[0]};
  return api->launch(exec, 0, rows, args, dims[0], 16 * 1000, 256);
}
"""

# As ADD, through blocks of the call that are got and given back, copied, filled and read.
ADD_THROUGH_BLOCKS = """
#include "ral.h"
static void rows(const int64_t* args, int64_t begin, int64_t end, void* scratch) {
  const float *a = (const float*)args[0], *b = (const float*)args[1], *bias = (const float*)args[3];
  for (int64_t i = begin * 4; i < end * 4; ++i) ((float*)args[2])[i] = a[i] + b[i] + *bias;
}
static void count(const int64_t* args, int64_t begin, int64_t end, void* scratch) { *(int64_t*)args[0] += end - begin; }
int32_t disc_entry(ral_exec* exec, const ral_host_api* api, const ral_tensor* in, const void* const* weights, int64_t* counters) {
  int64_t n = in[0].dims[0], bytes = 16 * n, seen = 0, dims[2] = {n, 4};
  if (in[1].dims[0] != n) return api->fail(exec, 0, in[1].dims[0], n);
  for (int turn = 0; turn < 3; ++turn) {
    int64_t* counted = api->alloc(exec, 8);
    void *a = api->alloc(exec, bytes << turn), *b = api->alloc(exec, bytes);
    if (!counted || !a || !b || api->fill(exec, counted, 8, 0) || api->copy(exec, a, in[0].data, bytes)) return 1;
    if (api->copy(exec, b, in[1].data, bytes) || api->launch(exec, 0, count, (int64_t[]){(int64_t)counted}, n, 1, 0)) return 1;
    if (api->read(exec, counted, &seen)) return 1;
    if (seen != n) return api->fail(exec, 0, seen, n);
    if (turn == 2) {
      float* c = api->output(exec, 0, dims);
      if (!c || api->launch(exec, 0, rows, (int64_t[]){(int64_t)a, (int64_t)b, (int64_t)c, (int64_t)weights[0]}, n, 1, 256)) return 1;
    }
    if (api->free(exec, a) || api->free(exec, counted) || (turn && api->free(exec, b))) return 1;
  }
  return 0;
}
"""

# The identity for any dtype and rank: copies input 0 to output 0. BYTES is the element size.
COPY = """
#include <string.h>
#include "ral.h"
int32_t disc_entry(ral_exec* exec, const ral_host_api* api, const ral_tensor* in, const void* const* weights, int64_t* counters) {
  int64_t size = BYTES;
  for (int i = 0; i < in[0].rank; ++i) size *= in[0].dims[i];
  void* out = api->output(exec, 0, in[0].dims);
  if (!out) return 1;
  memcpy(out, in[0].data, size);
  return 0;
}
"""

# Two results of shape [2] from one i64 scalar: (n, n + 1) and (2n, 2n).
TWO = """
#include "ral.h"
int32_t disc_entry(ral_exec* exec, const ral_host_api* api, const ral_tensor* in, const void* const* weights, int64_t* counters) {
  int64_t n = *(const int64_t*)in[0].data, dims[1] = {2};
  int64_t* first = api->output(exec, 0, dims);
  int64_t* second = api->output(exec, 1, dims);
  if (!first || !second) return 1;
  first[0] = n; first[1] = n + 1;
  second[0] = second[1] = 2 * n;
  return 0;
}
"""

# An f32 tensor of the shape that input 0 (i64 [RANK]) holds, not filled.
SHAPED = """
#include "ral.h"
int32_t disc_entry(ral_exec* exec, const ral_host_api* api, const ral_tensor* in, const void* const* weights, int64_t* counters) {
  return api->output(exec, 0, (const int64_t*)in[0].data) ? 0 : 1;
}
"""


@functools.cache
def build(source: str, *defines: str) -> bytes:
    """The shared object of a C source."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "code.so"
        options = ["-O1", "-shared", "-fPIC", "-std=c11", f"-I{INCLUDE}", *(f"-D{define}" for define in defines)]
        subprocess.run(["gcc", *options, "-x", "c", "-", "-o", str(target)], input=source.encode(), check=True)
        return target.read_bytes()


def manifest(
    inputs: list[InputRecord],
    outputs: list[OutputRecord],
    *,
    single: bool = True,
    checks: tuple[str, ...] = (),
    kernels: tuple[str, ...] = (),
    counters: tuple[str, ...] = (),
) -> Manifest:
    """A manifest with nothing but what the runtime reads."""
    return {
        "compiler": "test",
        "inputs": inputs,
        "outputs": outputs,
        "single": single,
        "symbols": [],
        "checks": [{"message": message} for message in checks],
        "kernels": [{"name": name} for name in kernels],
        "counters": list(counters),
        "options": {},
    }


def add_manifest() -> Manifest:
    """Of `ADD`."""
    return manifest(
        [{"name": "a", "dtype": "f32", "dims": ["S0", 4]}, {"name": "b", "dtype": "f32", "dims": ["S1", 4]}],
        [{"name": "c", "dtype": "f32", "rank": 2}],
        checks=("dim 0 of input 'b' must equal dim 0 of input 'a'",),
        kernels=("add_rows",),
        counters=("odd_rows", "even_rows"),
    )


def copy_manifest(dtype: str, rank: int) -> Manifest:
    """Of `COPY`."""
    dims: list[int | str] = [f"S{i}" for i in range(rank)]
    return manifest([{"name": "x", "dtype": dtype, "dims": dims}], [{"name": "y", "dtype": dtype, "rank": rank}])


def two_manifest() -> Manifest:
    """Of `TWO`."""
    outputs: list[OutputRecord] = [{"name": name, "dtype": "i64", "rank": 1} for name in ("first", "second")]
    return manifest([{"name": "n", "dtype": "i64", "dims": []}], outputs, single=False)
