"""Each folder of examples/ does what its README says, pasted into a copy of it. (examples/cpp: test_cpp_example.py.)"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from commands import shell

EXAMPLES = Path(__file__).parents[2] / "examples"
# What the last command prints. Weights are random, but seeded: the order, not every digit, is asserted.
PRINTED = {
    "embedding_server": r"( 1\.000 +[\d.-]+ +[\d.-]+ the cat sat on the mat\n)( *[\d.-]+ +1\.000 +[\d.-]+ a cat sat on a mat\n)"
    r"( *[\d.-]+ +[\d.-]+ +1\.000 the dog ran very far\n)",
    "image_server": r"64 x 64: class \d, probability 0\.\d{3}\n(120 x 90: class \d, probability 0\.\d{3}\n){2}37 x 201: class \d, .*\n",
    "sentence_pipeline": r"(0\.\d{3} .*\n){3}largest difference to eager: [\d.]+e-0[789]\n",
}
SETUP = "tools/setup.sh"  # makes the environment that this runs in
END = {"embedding_server": "kill %1 && wait %1\n"}


def test_each_is_tried() -> None:
    assert {each.name for each in EXAMPLES.iterdir()} == {*PRINTED, "cpp"}


@pytest.mark.parametrize("name", PRINTED)
def test_example(name: str, tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLES / name, tmp_path / name)
    blocks = re.findall(r"^```bash\n(.*?)^```$", (folder / "README.md").read_text(), re.M | re.S)
    (script,) = (each for each in blocks if SETUP not in each)
    done = shell(folder, script + END.get(name, ""))
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
    assert re.search(PRINTED[name], done.stdout), done.stdout
