"""What a compile says of its steps."""

from __future__ import annotations

import threading
import time
import warnings
from pathlib import Path

import pytest

import disc
from disc.cli.main import main
from disc.errors import DiscWarning
from disc.ir import progress
from disc.passes.shape.name_dims import NameDims

DOUBLE = (
    "func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {\n  %y = stablehlo.add %x, %x : tensor<?xf32>\n  return %y : tensor<?xf32>\n}\n"
)


@pytest.fixture
def double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "double.mlir").write_text(DOUBLE)
    return tmp_path / "double.mlir"


def test_every_step_is_told_in_order(double: Path) -> None:
    steps: list[tuple[str, float]] = []
    disc.compile(double, options=disc.Options(cache=False), on_step=lambda name, share: steps.append((name, share)))
    names = [name for name, _ in steps]
    assert names[:2] == ["export", "import"] and names[-1] == "generate-code" and "name-dims" in names
    assert [share for _, share in steps] == sorted(share for _, share in steps)


def test_a_step_that_takes_long_is_named_once_while_it_runs(double: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SLOW_SECONDS", 0.05)
    named, apply = threading.Event(), NameDims.apply

    def slow(self: NameDims, *given: object) -> None:
        assert named.wait(30), "nothing was said while the step ran"
        time.sleep(0.2)
        apply(self, *given)  # pyright: ignore[reportArgumentType]

    said: list[str] = []

    def show(message: Warning | str, category: type[Warning], filename: str, *_: object) -> None:
        assert category is DiscWarning and filename == __file__, "it names the line that compiles, though another thread warns"
        said.append(str(message))
        if "name-dims" in str(message):
            named.set()

    monkeypatch.setattr(NameDims, "apply", slow)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", show)
        disc.compile(double, options=disc.Options(cache=False))
    assert sum("the step 'name-dims' has run for" in each for each in said) == 1


def test_nothing_stays_behind(double: Path) -> None:
    before = threading.active_count()
    disc.compile(double, options=disc.Options(cache=False))
    double.write_text("nonsense")
    with pytest.raises(disc.DiscError):
        disc.compile(double, options=disc.Options(cache=False))
    assert threading.active_count() == before


def test_the_command_says_its_steps_when_asked(double: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "double.mlir", "--no-cache", "-v"]) == 0
    assert "% name-dims\n" in capsys.readouterr().err
    assert main(["compile", "double.mlir", "--no-cache"]) == 0
    assert capsys.readouterr().err == ""


def test_the_command_prints_every_step_once(double: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (double.parent / "one_factory.py").write_text(
        "import torch\n\ndef build():\n    return torch.nn.Linear(4, 3).eval(), (torch.randn(2, 4),)\n"
    )
    for model in ("double.mlir", "one_factory:build"):
        assert main(["compile", model, "-o", "x.disc", "--no-cache", "-v"]) == 0
        lines = [line for line in capsys.readouterr().err.splitlines() if "%" in line]
        assert [line.split()[1] for line in lines[:2]] == ["export", "import"] and len(lines) > 10
