"""GPUs in `explain`: limits by their maker's figures, blocks that an SM runs at a time."""

from __future__ import annotations

import pytest

from disc.explain.gpus import gpu_limits, gpu_of, resident_blocks
from disc.explain.report import KernelReport, VersionReport
from disc.explain.text import grid_text, resource_rows
from disc.ral import _ral


def test_code_names_its_generation() -> None:
    found = gpu_of("cuda:x86-64-v3+sm_90")
    assert found is not None and found.architecture == 90
    assert gpu_of("x86-64-v4+avx512bf16") is None and gpu_of("cuda:x86-64-v3+sm_75") is None


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks"),
    [
        (128, 32, 0, 16),  # threads: 2,048
        (32, 16, 0, 32),  # blocks
        (128, 168, 18432, 3),  # registers: 12 warps of 5,376
        (128, 169, 0, 2),  # of 5,632: 11 warps, which are 8, as an SM has four parts
        (256, 96, 147456, 1),  # shared memory
        (1024, 64, 0, 1),
    ],
)
def test_blocks_of_an_sm(threads: int, registers: int, shared: int, blocks: int) -> None:
    """By NVIDIA's rules for compute capability 9.0: 64 Ki registers, given to warps by 256, 228 KiB of shared memory of which a block takes 1."""
    gpu = gpu_of("cuda:x86-64-v3+sm_90")
    assert gpu is not None
    assert resident_blocks(gpu, threads, registers, shared) == blocks


def test_limits_are_those_of_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [("NVIDIA H200", 90, 132, 0), ("NVIDIA A100-SXM4-80GB", 80, 54, 0), ("NVIDIA GB300", 103, 148, 0)]
    monkeypatch.setattr(_ral, "find_gpus", lambda: {"driver": 13000, "gpus": gpus})
    large, half, later = (gpu_limits(number) for number in range(3))
    assert (large.gbytes, large.of("bf16").gflops) == (4800, 989_000)
    assert large.of("").gflops == large.gflops < large.of("tf32x3").gflops == large.of("tf32").gflops / 3
    assert (half.gbytes, half.of("bf16").gflops) == (2039, 156_000)
    assert "B200" in later.source


def test_words() -> None:
    version = VersionReport("f", "", 2, ("S0", "4"), {"threads": 128}, 32, 4, 0.25)
    assert grid_text(version) == "S0 x 4: 32 blocks, 4 on an SM at a time, 25% of its threads"
    assert grid_text(VersionReport("f", "", 2)) == ""


def test_resources_of_versions_on_a_gpu_are_a_table() -> None:
    """A row for each; none for a CPU's."""
    resources = {"threads": 128, "registers": 255, "stack": 16, "shared": 4096}
    versions = (VersionReport("f", "", 2, (), resources, None, 2, 0.125), VersionReport("g", "", 0, (), {"threads": 64}, None, 16, 0.5))
    assert resource_rows([_kernel("name", versions), _kernel("other", (VersionReport("f", "", 1),))]) == [
        ("name", "0", "128", "255", "16", "4096", "2", "12%", "2"), ("name", "1", "64", "0", "0", "0", "16", "50%", "0")
    ]  # fmt: skip


def _kernel(name: str, versions: tuple[VersionReport, ...]) -> KernelReport:
    return KernelReport(
        name=name, kind="loop", ops=(), lines=(), inputs=(), results=(), notes=(), plan="", scratch="", tasks="", flops=None, bytes=None,
        versions=versions, launches=(), measured=None,
    )  # fmt: skip
