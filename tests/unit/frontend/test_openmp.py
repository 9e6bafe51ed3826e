"""Programs of torch.compile on the threads of PyTorch's OpenMP library: in forked children, from several threads, around PyTorch's own ops."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import disc

# The last line does what stands in the place of TEST.
PROGRAM = """
import os, threading
import torch
import disc

torch.set_num_threads(2)

@torch.library.custom_op("openmp_test::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return (x.flatten().repeat(64, 1).sum(0) / 32).reshape(x.shape)

@doubled.register_fake
def _(x): return torch.empty_like(x)

x, w = torch.randn(256, 256), torch.randn(256, 256) / 16

compiled = lambda function: torch.compile(function, backend="disc", dynamic=True, options={"threads": 2})

def forked():
    run = compiled(lambda x, w: torch.relu(x @ w).sum(1))
    expected = run(x, w)
    torch.ones(1 << 20).exp()
    for _ in range(3):
        child = os.fork()
        if child == 0:
            for _ in range(10):
                good = torch.equal(run(x, w), expected)
            os._exit(0 if good else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert torch.equal(run(x, w), expected)

def threads():
    run = compiled(lambda x, w: torch.relu(x @ w).sum(1))
    expected = run(x, w)
    failures = []
    def call():
        for _ in range(30):
            torch.ones(1 << 18).exp()
            if not torch.equal(run(x, w), expected): failures.append(1)
    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers: caller.start()
    for caller in callers: caller.join()
    assert not failures

def around_ops():
    run = compiled(lambda x, w: torch.relu(doubled(x @ w) @ w).sum(1))
    for _ in range(5):
        torch.testing.assert_close(run(x, w), torch.relu(x @ w * 2 @ w).sum(1), rtol=1e-4, atol=1e-2)

TEST()
"""


# A custom op that runs a launch of disc, then regions of its own.
OP = """
#include <omp.h>
#include "ral.h"
static void nothing(const int64_t* args, int64_t begin, int64_t end, void* scratch) {}
void regions(const ral_function_call* call) {
  int64_t n = call->operands[0].dims[0];
  float* y = call->results[0].data;
  call->parallel(call, nothing, 0, 1000, 1000 * 1000 * RAL_COST_PER_NANOSECOND, 0);
  int inside = omp_in_parallel(), threads = 0;
  #pragma omp parallel
  {
    #pragma omp single
    threads = omp_get_num_threads();
  }
  #pragma omp for schedule(static)
  for (int64_t i = 0; i < n; ++i) y[i] = inside + 10 * threads;
}
"""
OP_USER = """
import sys, torch, disc
torch.set_num_threads(2)
@torch.library.custom_op("openmp_test::regions", mutates_args=())
def regions(x: torch.Tensor) -> torch.Tensor: return torch.ones_like(x)
@regions.register_fake
def _(x): return torch.empty_like(x)
disc.register_op("openmp_test::regions", library=sys.argv[1], symbol="regions")
run = torch.compile(lambda x: regions(x), backend="disc", options={"threads": 2})
for _ in range(3):
    assert torch.equal(run(torch.zeros(1000)), torch.full((1000,), 20.0))
"""

# Forked when PyTorch has threads, and disc has not been imported.
CHILD = """
import os, torch
torch.set_num_threads(2)
torch.ones(1 << 22).exp()
child = os.fork()
if child == 0:
    torch.set_num_threads(1)  # as PyTorch's own loaders of data do: its ops would wait for ever
    import disc
    from disc.frontend.openmp import parallel_regions
    assert parallel_regions() is None
    run = torch.compile(lambda x: torch.relu(x @ x).sum(1), backend="disc", dynamic=True, options={"threads": 2})
    x = torch.ones(512, 512)
    good = all(bool((run(x) == 512.0 * 512).all()) for _ in range(3))
    os._exit(0 if good else 1)
from disc.frontend.openmp import parallel_regions
assert os.waitpid(child, 0)[1] == 0 and parallel_regions() is not None
"""


def test_a_custom_op_has_regions_of_its_own(tmp_path: Path) -> None:
    library, include = tmp_path / "libregions.so", Path(disc.__file__).parent / "ral" / "include"
    command = ["gcc", "-O2", "-fopenmp", "-shared", "-fPIC", f"-I{include}", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=OP.encode(), check=True)
    subprocess.run([sys.executable, "-c", OP_USER, str(library)], check=True, timeout=300)


def test_a_child_of_a_process_without_disc() -> None:
    subprocess.run([sys.executable, "-c", CHILD], check=True, timeout=300)


@pytest.mark.parametrize("test", ["forked", "threads", "around_ops"])
def test_programs_on_the_threads_of_pytorch(test: str) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM.replace("TEST", test)], check=True, timeout=300)
