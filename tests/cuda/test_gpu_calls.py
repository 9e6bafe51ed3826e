"""The binding, `Executable` and models on the stand-in driver, in processes of their own: a process has one driver."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.models import MODELS

HERE = Path(__file__).parent
MODELS_AT_ONCE = "mlp rows chosen hosted unique state"
LONG = ("layer", "image", *(each for each in MODELS if each not in MODELS_AT_ONCE.split()))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in."""
    library = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    options = ["-O1", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-pthread"]
    subprocess.run(["gcc", *options, str(HERE / "fake_driver.c"), "-o", str(library)], check=True)
    return library


@pytest.fixture(scope="module")
def products(library: Path) -> Path:
    """The stand-in for cuBLASLt, which is linked to that for the driver."""
    products = library.with_name("libcublasLt.so.13")
    options = ["-O1", "-shared", "-fPIC", f"-Wl,-soname,{products.name}", "-pthread"]
    subprocess.run(["gcc", *options, str(HERE / "fake_products.c"), str(library), "-o", str(products)], check=True)
    return products


def _run(program: str, *arguments: object) -> str:
    environment = {**os.environ, "DISC_CACHE": "0", "PYTHONPATH": str(HERE.parent.parent)}
    command = [sys.executable, str(HERE / program), *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert run.returncode == 0, run.stderr[-6000:]
    return run.stdout


def test_declarations() -> None:
    """What the runtime declares of the driver is what NVIDIA's header, which Triton brings along, says."""
    package = Path(str(importlib.util.find_spec("triton").origin)).parent  # pyright: ignore[reportOptionalMemberAccess]
    ral = HERE.parent.parent / "disc" / "ral"
    folders = [f"-I{ral / 'src'}", f"-I{ral / 'include'}", "-isystem", str(package / "backends" / "nvidia" / "include")]
    subprocess.run(["g++", "-std=c++20", "-fsyntax-only", *folders, str(HERE / "driver_layouts.cc")], check=True)


@pytest.mark.long
def test_copy_kernels_are_generated() -> None:
    subprocess.run([sys.executable, str(HERE.parent.parent / "tools" / "make_copy_kernels.py"), "--check"], check=True)


def test_arrays_on_gpus(library: Path) -> None:
    assert _run("gpu_calls.py", library) == "passed\n"


def test_grids_and_launches_ahead(library: Path) -> None:
    """Persistent programs are as many as SMs; rows that programs share take a launch for each round of reductions, also as CUDA graphs."""
    assert _run("gpu_schedules.py", library) == "passed\n"


@pytest.mark.parametrize("there", [True, pytest.param(False, marks=pytest.mark.long)])
def test_products_of_a_library(library: Path, products: Path, there: bool) -> None:
    """A tree's choice of cuBLASLt is taken where it is there, and where the product, sizes and addresses are as it wants them."""
    assert _run("gpu_products.py", library, *([products] if there else [])) == "passed\n"


@pytest.mark.parametrize("names", [MODELS_AT_ONCE, *(pytest.param(each, marks=pytest.mark.long) for each in LONG)])
def test_models_on_gpus(library: Path, names: str) -> None:
    """Compiled, loaded and called, with every launch executed: results are eager's, and nothing is left behind."""
    assert [line.split()[0] for line in _run("gpu_models.py", library, *names.split()).splitlines()] == names.split()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file for a CPU and for GPUs of two generations."""
    path = tmp_path_factory.mktemp("program") / "add.disc"
    _run("gpu_errors.py", "make", path)
    return path


@pytest.mark.parametrize("case", ["no_driver", "too_old", "no_gpu", "other_gpu", "present"])
def test_errors(library: Path, program: Path, case: str) -> None:
    """What may be amiss with a machine, a call and its tensors has an error of its own; elsewhere the CPU's program runs."""
    assert _run("gpu_errors.py", case, program, library) == "passed\n"


def test_another_processor() -> None:
    """Python says so; so does the build, before a compiler does."""
    lie = "import os, types; os.uname = lambda: types.SimpleNamespace(machine='aarch64'); import disc"
    found = subprocess.run([sys.executable, "-c", lie], capture_output=True, text=True, check=False)
    assert "TargetError: disc's runtime is for x86-64 CPUs, alone or beside NVIDIA GPUs; this machine's is aarch64" in found.stderr
