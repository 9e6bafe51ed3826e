"""Programs of torch.compile on the threads of PyTorch's OpenMP library: in forked children, from several threads, around PyTorch's own ops."""

from __future__ import annotations

import subprocess
import sys

import pytest

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


@pytest.mark.parametrize("test", ["forked", "threads", "around_ops"])
def test_programs_on_the_threads_of_pytorch(test: str) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM.replace("TEST", test)], check=True, timeout=300)
