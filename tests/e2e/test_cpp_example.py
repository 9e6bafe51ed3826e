"""examples/cpp is built against the package as users find it, and gives what Python gives."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import shell
from torch import Tensor, nn

import disc

EXAMPLE = Path(__file__).parents[2] / "examples" / "cpp"


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(10, 8), nn.Linear(8, 3)

    def forward(self, ids: Tensor, weights: Tensor) -> dict[str, Tensor]:
        return {"tags": self.out(self.table(ids) * weights[..., None]), "best": weights.amax(-1)}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy") / "cpp"
    shutil.copytree(EXAMPLE, folder)
    (script,) = re.findall(r"^```bash\n(.*?)^```$", (EXAMPLE / "README.md").read_text(), re.M | re.S)
    *build, call = script.splitlines(keepends=True)
    assert call.startswith("./build/run_artifact block.disc "), "which the tests below do, with a smaller model"
    done = shell(folder, "".join(build))
    assert done.returncode == 0, done.stderr
    return folder / "build" / "run_artifact"


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("artifact") / "tagger.disc"
    disc.compile(Tagger().eval(), (torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 3))).save(path)
    return path


def test_it_gives_what_python_gives(program: Path, artifact: Path) -> None:
    exe = disc.load(artifact)
    for sizes in ((2, 5), (1, 1), (0, 4)):
        text = "x".join(map(str, sizes))
        done = subprocess.run([program, artifact, text, text], capture_output=True, text=True, check=True)
        results = exe.flat(np.ones(sizes, np.int64), np.full(sizes, 0.5, np.float32))
        expected = []
        for name, value in zip(("tags", "best"), results, strict=True):
            assert isinstance(value, np.ndarray)
            first = "".join(f" {each:.6g}" for each in value.ravel()[:3])
            expected.append(f"{name}: f32[{', '.join(map(str, value.shape))}]{first}")
        assert done.stdout.splitlines() == expected


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (["2x5"], "the model takes 2 inputs"),
        (["2x5", "2x4"], "dim 1 of input 'weights' must equal dim 1 of input 'ids'"),
        *((["2x5", text], f"'{text}' is no set of sizes such as 2x17") for text in ("axb", "-1x5", "2x", "2y5", "2xx5")),
        (["9999999999x9999999999", "2x5"], "there is not enough memory for these sizes"),
    ],
)
def test_mistakes(program: Path, artifact: Path, sizes: list[str], message: str) -> None:
    done = subprocess.run([program, artifact, *sizes], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and message in done.stderr


def test_a_file_that_is_no_artifact(program: Path, tmp_path: Path) -> None:
    path = tmp_path / "text.disc"
    path.write_text("no artifact")
    done = subprocess.run([program, path], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "artifact" in done.stderr
