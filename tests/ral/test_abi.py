"""What generated code and C programs rely on: the layout of ral.h, and that another ABI is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from programs import INCLUDE

import disc
from disc.codegen.host import abi
from disc.speculation.schedules import FEATURES

ROOT = Path(__file__).resolve().parents[2]
RAL_FOLDER = Path(disc.__file__).parent / "ral"

OLD = """
#include <stdio.h>
#include "ral.h"
int main(void) {
  const ral_options options = {1, 1, NULL};  /* ABI 1 */
  ral_context* context = NULL;
  if (ral_load_file("/dev/null", &options, &context) != RAL_ERROR_INTERNAL || context) return 1;
  puts(ral_last_error());
  return 0;
}
"""


def test_offsets_are_those_of_the_header() -> None:
    """`python tools/make_abi.py` was run after the header changed."""
    subprocess.run([sys.executable, str(ROOT / "tools" / "make_abi.py"), "--check"], check=True)


def test_the_features_of_schedules_are_the_runtimes() -> None:
    assert abi.FEATURES == FEATURES


def test_a_program_of_an_older_abi_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "old"
    link = [f"-L{RAL_FOLDER}", "-lral", f"-Wl,-rpath,{RAL_FOLDER}"]
    subprocess.run(["gcc", "-std=c11", f"-I{INCLUDE}", "-x", "c", "-", "-o", str(program), *link], input=OLD.encode(), check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    assert done.stdout == "ral_load_file: the caller was built for ABI 1, this library has ABI 2\n"


def test_the_libraries_export_their_own_functions_alone() -> None:
    """Where the C++ library is linked statically, its symbols would take the place of PyTorch's, or PyTorch's of ours, in one process."""

    def exported(pattern: str) -> set[str]:
        (path,) = RAL_FOLDER.glob(pattern)
        lines = subprocess.run(["nm", "-D", "--defined-only", str(path)], capture_output=True, text=True, check=True).stdout.splitlines()
        return {line.split()[-1].partition("@")[0] for line in lines}

    functions = exported("libral.so")
    assert functions and all(name.startswith(("ral_", "RAL_")) for name in functions), sorted(functions)
    assert exported("_ral.*.so") == {"PyInit__ral"}
