"""Nothing of the machine that compiled stands in an artifact: source lines are named by their project, and no folder is left."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import disc
from disc.ir.source_lines import source_line, source_name

MODEL = """
import sys
import torch
from torch import nn
import disc

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 8)

    def forward(self, x, ids):
        y = x + self.embedding(ids).sum(1)
        return torch.softmax(y @ y.t(), -1) @ y

torch.manual_seed(0)
example = (torch.randn(3, 8), torch.zeros(3, 2, dtype=torch.int64))
rows = {0: torch.export.Dim.AUTO}
program = disc.compile(Model().eval(), example, dynamic_shapes={"x": rows, "ids": rows})
program.save("model.disc")
try:
    program(example[0], example[1] + 77)
except disc.errors.ShapeConstraintError as error:
    print(error)
"""


def compiled_in(folder: Path) -> tuple[bytes, str]:
    """The artifact, and what the model says of an index out of range."""
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(MODEL)
    environment = {**os.environ, "DISC_CACHE": "0", "PYTHONPATH": str(Path(disc.__file__).parents[1])}
    done = subprocess.run([sys.executable, "model.py"], cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return (folder / "model.disc").read_bytes(), done.stdout


def test_artifacts_hold_no_folder_of_the_machine(tmp_path: Path) -> None:
    """And the same program compiled in another folder is the same artifact, byte for byte."""
    first, said = compiled_in(tmp_path / "one")
    second, _ = compiled_in(tmp_path / "some" / "where" / "else")
    assert first == second
    assert b'"model.py:13"' in first
    folders = {
        tmp_path,
        Path.home(),
        sys.prefix,
        sys.base_prefix,
        tempfile.gettempdir(),
        Path(disc.__file__).parents[1],
        "/usr/",
        "/home/",
        "/build/",
    }
    for folder in folders:
        assert str(folder).encode() not in first, folder
    assert said.startswith("input 'ids': index 77 is out of range for a dim of size 10 at model.py:13 (")


def test_names_of_source_files(tmp_path: Path) -> None:
    (tmp_path / "src" / "package" / "inner").mkdir(parents=True)
    for folder in ("package", "package/inner"):
        (tmp_path / "src" / folder / "__init__.py").touch()
    cases = {
        "/a/venv/lib/python3.11/site-packages/transformers/models/bert/modeling_bert.py": "transformers/models/bert/modeling_bert.py",
        "/usr/lib/python3/dist-packages/x.py": "x.py",
        f"{sysconfig.get_path('stdlib')}/contextlib.py": "contextlib.py",
        f"{tmp_path}/src/package/inner/model.py": "package/inner/model.py",
        f"{Path(__file__).parents[2]}/bench/x.py": "bench/x.py",
        "/nowhere/else/model.py": "else/model.py",
        "/model.py": "model.py",
        "<string>": "<string>",
        "model.py": "model.py",
    }
    for path, name in cases.items():
        assert source_name(path) == name
        assert source_line(f"{path}:12") == f"{name}:12"
    sys.path.insert(0, str(tmp_path / "scripts"))
    try:
        (tmp_path / "scripts").mkdir()
        assert source_name(f"{tmp_path}/scripts/deep/model.py") == "deep/model.py"
    finally:
        del sys.path[0]
