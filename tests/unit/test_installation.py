"""What a user of the package meets before a model: its name on the index, what a missing part asks for, the version, types."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import disc
from disc.cli.main import main
from disc.errors import DISTRIBUTION, how_to_install

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FOREIGN = re.compile(r"""(pip|uv)\s+(install|add)[^\n]*['"\s](disc|disc-compiler)(\[|['"]|\s|$)""")


def written() -> list[Path]:
    """All that people read or run."""
    folders = [ROOT / "docs", ROOT / "deploy", ROOT / "disc", ROOT / "tools", ROOT / "bench"]
    found = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".md", ".py", ".sh", ".yaml", ".html", ".toml")]
    return [ROOT / "README.md", ROOT / "pyproject.toml", ROOT / "deploy" / "Containerfile", *found]


def test_nothing_tells_people_to_install_from_the_index() -> None:
    """`disc` is another project there, and nobody has published ours."""
    wrong = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in written()
        for line in path.read_text().splitlines()
        if FOREIGN.search(line) or re.search(r"\bdisc\[\w", line)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_names_agree() -> None:
    assert PROJECT["name"] == DISTRIBUTION != "disc"
    assert PROJECT["scripts"] == {"disc": "disc.cli.main:main"}
    assert PROJECT["entry-points"]["torch_dynamo_backends"] == {"disc": "disc.frontend.dynamo:backend"}


def test_people_get_ranges_and_the_tests_what_was_tested() -> None:
    constraints = dict(
        line.split("==") for line in (ROOT / "tools" / "constraints.txt").read_text().splitlines() if not line.startswith("#")
    )
    ranged = {
        name: each for name, each in PROJECT["optional-dependencies"].items() if name not in ("compile", "bench", "docs", "test", "all")
    }
    for requirements in ranged.values():
        for text in requirements:
            if text.startswith(DISTRIBUTION):
                continue
            name, specifiers = re.fullmatch(r"([\w.-]+)(?:\[[\w,-]+\])?(.*)", text).groups()  # pyright: ignore[reportOptionalMemberAccess]
            assert re.fullmatch(r">=[\d.]+,<\d+", specifiers), text
            assert name in constraints, f"{name}: tools/constraints.txt has no version of it"


LISTED = [
    "numpy>=2.1",
    "disc-compiler[cli] ; extra == 'serve'",
    'grpcio<2,>=1.85.1; extra == "serve"',
    "rich<16,>=15; extra == 'cli'",
    'atheris==2.3.0; python_version < "3.12" and extra == "test"',
]


def test_the_command_names_packages_not_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: LISTED if name == DISTRIBUTION else None)
    assert how_to_install("serve") == "pip install 'rich<16,>=15' 'grpcio<2,>=1.85.1'"
    assert how_to_install("cli", "serve") == "pip install 'rich<16,>=15' 'grpcio<2,>=1.85.1'"
    assert how_to_install("test") == "pip install atheris==2.3.0"


def test_the_command_in_a_checkout_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", absent)
    assert how_to_install("compile", "tune") == "pip install '.[compile,tune]' (in the checkout of disc)"


@pytest.mark.parametrize(
    ("missing", "code", "says"),
    [
        ("typer", "import disc.cli.main", "the disc command needs typer; install it with: pip install "),
        ("rich", "import disc.cli.main", "the disc command needs rich; install it with: pip install "),
        ("torch_mlir", "import disc; disc.compile", "disc.compile needs torch_mlir; install the compiler with: pip install "),
        ("grpc", "from disc.cli.main import main; main(['serve', 'x.disc'])", "disc serve needs grpc; install it with: pip install "),
        ("cryptography", "import disc; disc.load('x.disc', key='x.pem')", "signatures need cryptography; install it with: pip install "),
    ],
)
def test_a_missing_part_says_what_to_install(missing: str, code: str, says: str, tmp_path: Path) -> None:
    hidden = f"import sys; sys.modules[{missing!r}] = None; {code}"
    done = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert says in done.stderr, done.stderr


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_version(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([option]) == 0
    assert capsys.readouterr().out == f"disc {PROJECT['version']}\n"


@pytest.mark.parametrize("command", [(), ("compile",), ("cache", "ls")])
def test_short_help(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "-h"]) == 0
    assert f"Usage: {' '.join(('disc', *command))}" in capsys.readouterr().out


def test_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "disc.cli", "-V"], capture_output=True, text=True, check=True)
    assert done.stdout == f"disc {PROJECT['version']}\n"


def test_no_command_is_the_help_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 1
    written = capsys.readouterr()
    assert "Usage: disc" in written.out and written.err == ""


def test_repr_of_an_executable() -> None:
    linear = disc.compile(torch.nn.Linear(4, 3).eval(), (torch.randn(2, 4),), options=disc.Options(threads=1))
    assert repr(linear) == f"<disc.Executable (input: f32[S0, 4]) -> (f32[S0, 3]), {linear.isa}, 1 threads>"


@pytest.mark.long
def test_the_wheel_with_numpy_alone(tmp_path: Path) -> None:
    """Built, installed into an environment of its own, and run there."""
    disc.compile(torch.nn.Linear(4, 3).eval(), (torch.randn(2, 4),)).save(tmp_path / "linear.disc")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path / "dist"), str(ROOT)]
    subprocess.run(command, check=True, timeout=900)
    (wheel,) = (tmp_path / "dist").glob("disc_compiler-*.whl")
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "-q", str(wheel)], check=True, timeout=900)
    code = f"""
import importlib.metadata, importlib.util, json
from pathlib import Path
import numpy as np, disc
metadata = importlib.metadata.metadata("{DISTRIBUTION}")
print(json.dumps({{
    "shape": disc.load("linear.disc")(np.ones((5, 4), np.float32)).shape, "typed": (Path(disc.__file__).parent / "py.typed").exists(),
    "torch": importlib.util.find_spec("torch") is not None, "name": metadata["Name"], "classifiers": metadata.get_all("Classifier"),
    "readme": metadata.get_payload()[:6],
}}))"""
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60, check=True)
    found = json.loads(done.stdout)
    assert (found["shape"], found["typed"], found["torch"], found["name"]) == ([5, 3], True, False, DISTRIBUTION)
    assert "Typing :: Typed" in found["classifiers"] and found["readme"] == "# disc"
    plain = subprocess.run([str(python.parent / "disc")], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert plain.returncode == 1 and re.search(r"needs \w+; install it with: pip install '(typer|rich)", plain.stderr), plain.stderr
