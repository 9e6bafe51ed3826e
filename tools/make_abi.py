"""Writes disc/codegen/host/abi.py from disc/ral/include/ral.h: what generated host code has to know of the runtime's structures.

`python tools/make_abi.py` writes the file; `--check` only says, by its exit code, whether it is as it should be. The names come out of the
header, their places from the C compiler (CC, or cc).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INCLUDE = ROOT / "disc" / "ral" / "include"
TARGET = ROOT / "disc" / "codegen" / "host" / "abi.py"
TEMPLATE = '''"""What generated host code knows of the runtime's structures. Generated from ral.h by tools/make_abi.py."""

from __future__ import annotations

TENSOR_BYTES = {tensor_bytes}  # of a ral_tensor
TENSOR_OFFSETS = {{{tensor}}}  # bytes, in a ral_tensor
API_OFFSETS = {{  # bytes, in the ral_host_api
{api}
}}
FEATURES = ({features})  # the order of ral_feature
'''


def fields(header: str, struct: str) -> list[str]:
    """The names of a structure's fields, in order."""
    body = header.partition(f"typedef struct {struct} {{")[2].partition(f"}} {struct};")[0]
    functions = re.sub(r"\(\*(\w+)\)\([^)]*\)", r" \1", body)
    return [re.findall(r"\w+", each)[-1] for each in functions.split(";") if each.strip()]


def enumerators(header: str, enum: str) -> list[str]:
    """The names of an enumeration, in order."""
    body = header.partition(f"typedef enum {enum} {{")[2].partition(f"}} {enum};")[0]
    return [each.split("=")[0].strip() for each in body.split(",") if each.strip()]


def compiled(expressions: list[str]) -> list[int]:
    """The values of C expressions behind ral.h."""
    lines = "".join(f'printf("%lld\\n", (long long)({each}));' for each in expressions)
    source = f'#include <stdio.h>\n#include "ral.h"\nint main(void) {{ {lines} return 0; }}'
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "abi"
        command = [os.environ.get("CC", "cc"), "-std=c11", f"-I{INCLUDE}", "-x", "c", "-", "-o", str(program)]
        subprocess.run(command, input=source, text=True, check=True)
        return [int(line) for line in subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()]


def generated() -> str:
    """The text of the file."""
    header = re.sub(r"/\*.*?\*/", "", (INCLUDE / "ral.h").read_text(), flags=re.DOTALL)
    tensor, api = fields(header, "ral_tensor"), fields(header, "ral_host_api")
    features = [each for each in enumerators(header, "ral_feature") if each != "RAL_FEATURE_COUNT"]
    offsets = [f"offsetof(ral_tensor, {each})" for each in tensor] + [f"offsetof(ral_host_api, {each})" for each in api]
    size, *places = compiled(["sizeof(ral_tensor)", *offsets, *features])
    if places[-len(features) :] != list(range(len(features))):
        raise ValueError("ral_feature does not count from 0")
    return TEMPLATE.format(
        tensor_bytes=size,
        tensor=", ".join(f'"{name}": {place}' for name, place in zip(tensor, places[: len(tensor)], strict=True)),
        api="\n".join(f'    "{name}": {place},' for name, place in zip(api, places[len(tensor) : -len(features)], strict=True)),
        features=", ".join(f'"{each.removeprefix("RAL_FEATURE_").lower()}"' for each in features),
    )


def main() -> int:
    """Exit code 1 where `--check` finds a file that is not as it should be."""
    text = generated()
    if "--check" in sys.argv[1:]:
        return int(TARGET.read_text() != text)
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
