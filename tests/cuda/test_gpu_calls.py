"""The binding and `Executable` on the stand-in driver, in a process of its own: a process has one driver."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_arrays_on_gpus(tmp_path: Path) -> None:
    library = tmp_path / "libcuda.so.1"
    options = ["-O1", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-pthread"]
    subprocess.run(["gcc", *options, str(HERE / "fake_driver.c"), "-o", str(library)], check=True)
    run = subprocess.run([sys.executable, str(HERE / "gpu_calls.py"), str(library)], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "passed\n"), run.stderr
