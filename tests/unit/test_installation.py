"""What a user of the package meets before a model: its name on the index, what a missing part asks for, the version, types."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import torch
import wheels
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import disc
from disc.cli.machine import EXTRAS
from disc.cli.main import main
from disc.errors import DISTRIBUTION, how_to_install

ROOT = Path(__file__).parents[2]
WRITTEN = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, GROUPS = WRITTEN["project"], WRITTEN["dependency-groups"]
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
    assert PROJECT["scripts"] == {"disc": "disc.cli.__main__:main"}
    assert PROJECT["entry-points"]["torch_dynamo_backends"] == {"disc": "disc.frontend.dynamo:backend"}


LOCK = {
    canonicalize_name(name): version
    for name, version in (line.split("==") for line in (ROOT / "tools" / "constraints.txt").read_text().splitlines() if line[0] != "#")
}


def test_people_get_ranges_and_the_tests_what_was_tested() -> None:
    ranged = [each for name, each in PROJECT["optional-dependencies"].items() if name not in ("compile", "all")]
    for text in {text for requirements in ranged for text in requirements if not text.startswith(DISTRIBUTION)}:
        name, specifiers = re.fullmatch(r"([\w.-]+)(?:\[[\w,-]+\])?(.*)", text).groups()  # pyright: ignore[reportOptionalMemberAccess]
        assert re.fullmatch(r">=[\d.]+,<\d+(\.\d+)?", specifiers), text
        assert Requirement(text).specifier.contains(LOCK[canonicalize_name(name)]), f"{text}: run python tools/lock.py"


def test_what_people_install_has_no_tools_of_ours() -> None:
    assert not set(GROUPS) & set(PROJECT["optional-dependencies"])
    everything = Requirement(PROJECT["optional-dependencies"]["all"][0]).extras
    assert everything == set(PROJECT["optional-dependencies"]) - {"all"}


def test_every_extra_is_named_and_found() -> None:
    """By README, and by `disc doctor`, which looks for each package of it; what compiling needs it lists one by one."""
    extras = {name: [Requirement(text) for text in texts] for name, texts in PROJECT["optional-dependencies"].items() if name != "all"}
    (named,) = re.findall(r"The extras are (.+?)\. torch of", " ".join((ROOT / "README.md").read_text().split()))
    assert set(re.findall(r"`(\w+)`", named)) == set(extras)
    assert set(EXTRAS) == set(extras) - {"compile"}
    for name, modules in EXTRAS.items():
        own = [each for each in extras[name] if each.name != DISTRIBUTION]
        needed = {canonicalize_name(each.name) for each in own}
        needed |= {canonicalize_name(each.name) for outer in extras[name] for inner in outer.extras for each in extras.get(inner, [])}
        packages = packages_distributions()
        found = {canonicalize_name(each) for module in modules for each in packages.get(module.partition(".")[0], [])}
        installed = {each for each in needed if any(each == canonicalize_name(other) for names in packages.values() for other in names)}
        assert installed <= found, f"{name}: disc doctor does not look for {installed - found}"


def test_the_lock_is_whole() -> None:
    """Of all that is installed here and that an extra or a group brings, and what that needs in turn, the lock has the version."""
    asked = [
        *PROJECT["dependencies"],
        *(text for table in (PROJECT["optional-dependencies"], GROUPS) for each in table.values() for text in each),
    ]
    left, seen, absent = [Requirement(text) for text in asked if not text.startswith(DISTRIBUTION)], set[str](), set[str]()
    while left:
        wanted = left.pop()
        if str(wanted) in seen:
            continue
        seen.add(str(wanted))
        name = canonicalize_name(wanted.name)
        if name not in LOCK:
            absent.add(name)
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for each in map(Requirement, needs):
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *wanted.extras)):
                left.append(each)
    assert not absent, f"run python tools/lock.py: {', '.join(sorted(absent))}"
    assert len(seen) > 60


LISTED = [
    "numpy>=2.1",
    "typer<1,>=0.29",
    "disc-compiler[text] ; extra == 'serve'",
    'grpcio<2,>=1.85.1; extra == "serve"',
    "rich<16,>=15; extra == 'text'",
    'atheris==2.3.0; python_version < "3.12" and extra == "fuzz"',
]


def test_the_command_names_packages_not_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: LISTED if name == DISTRIBUTION else None)
    assert how_to_install("serve") == "pip install 'rich<16,>=15' 'grpcio<2,>=1.85.1'"
    assert how_to_install("text", "serve") == "pip install 'rich<16,>=15' 'grpcio<2,>=1.85.1'"
    assert how_to_install() == "pip install 'numpy>=2.1' 'typer<1,>=0.29'"
    assert how_to_install("fuzz") == "pip install atheris==2.3.0"


def test_the_command_in_a_checkout_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", absent)
    assert how_to_install("compile", "tune") == "pip install '.[compile,tune]' (in the checkout of disc)"
    assert how_to_install() == "pip install . (in the checkout of disc)"


@pytest.mark.parametrize(
    ("missing", "code", "says"),
    [
        ("typer", "import disc.cli.main", "the disc command needs typer; install it with: pip install "),
        ("rich", "import disc.cli.main", "the disc command needs rich; install it with: pip install "),
        ("torch_mlir", "import disc; disc.compile", "disc.compile needs torch_mlir; install the compiler with: pip install "),
        (
            "torch_mlir",
            "from disc.cli.main import main; main(['compile', 'x.onnx'])",
            "disc: disc.compile needs torch_mlir; install the compiler with: pip install ",
        ),
        ("grpc", "from disc.cli.main import main; main(['serve', 'x.disc'])", "disc serve needs grpc; install it with: pip install "),
        (
            "ray",
            "from disc.cli.main import main; main(['ray', 'serve', 'x.disc'])",
            "disc ray serve needs ray; install it with: pip install ",
        ),
        ("cryptography", "import disc; disc.load('x.disc', key='x.pem')", "signatures need cryptography; install it with: pip install "),
    ],
)
def test_a_missing_part_says_what_to_install(missing: str, code: str, says: str, tmp_path: Path) -> None:
    hidden = f"import sys; sys.modules[{missing!r}] = None; {code}"
    done = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert says in done.stderr, done.stderr


IMPORTED = [
    "artifact", *(f"artifact.{name}" for name in ("bounds", "file", "manifest", "output", "pointers", "records", "skeletons", "structure", "structures")),
    "config", "errors", "frontend", "frontend.registered",
    "ral", *(f"ral.{name}" for name in (
        "_ral", "caches", "elsewhere", "executable", "gpu_programs", "mistakes", "nested_inputs", "results", "state", "torch_functions",
        "torch_profiler", "widen",
    )),
]  # fmt: skip
# Of the standard library, besides what NumPy imports: some versions of Python and NumPy import more of these, or fewer.
STANDARD = {
    "_json", "atexit", "contextlib", "copy", "dataclasses", "functools", "importlib._abc", "importlib.util", "inspect", "json", "json.decoder",
    "json.encoder", "json.scanner", "mmap", "org", "org.python", "org.python.core", "re", "struct", "threading", "typing",
}  # fmt: skip


def test_what_import_disc_imports() -> None:
    """By name: each module that comes with `import disc` is time that every process pays, also one that loads an artifact alone."""
    code = "import sys, numpy; before = set(sys.modules); import disc; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    found = set(done.stdout.split())
    ours = {name for name in found if name.partition(".")[0] == "disc"}
    assert ours == {"disc", *(f"disc.{name}" for name in IMPORTED)}
    assert found - ours <= STANDARD


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_version(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([option]) == 0
    assert capsys.readouterr().out == f"disc {PROJECT['version']}\n"


@pytest.mark.parametrize("command", [(), ("compile",), ("cache", "ls")])
def test_short_help(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "-h"]) == 0
    assert f"Usage: {' '.join(('disc', *command))}" in capsys.readouterr().out


@pytest.mark.parametrize("module", ["disc", "disc.cli"])
def test_as_a_module(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, "-V"], capture_output=True, text=True, check=True)
    assert done.stdout == f"disc {PROJECT['version']}\n"


def test_no_command_is_the_help_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 1
    written = capsys.readouterr()
    assert "Usage: disc" in written.out and written.err == ""


def test_repr_of_an_executable() -> None:
    linear = disc.compile(torch.nn.Linear(4, 3).eval(), (torch.randn(2, 4),), options=disc.Options(threads=1))
    assert repr(linear) == f"<disc.Executable (input: f32[S0, 4]) -> (f32[S0, 3]), {linear.isa}, 1 thread>"
    shown = {name for name in dir(linear) if name[0] != "_"}
    assert shown == {
        "batch", "explain", "flat", "graphs", "inputs", "isa", "manifest", "outputs", "profile", "save", "state", "stats", "sweep",
        "synchronize", "threads", "trace", "verify",
    }  # fmt: skip


def test_pythons_that_no_wheel_can_be_built_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken, old, bare = (tmp_path / name for name in ("python3.12", "python3.10", "python3.13"))
    for path, script in (
        (broken, "echo no such version; exit 127"),
        (old, "echo 3 10 /usr cpython"),
        (bare, f"echo 3 13 {tmp_path} cpython"),
    ):
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    assert wheels.found([str(broken), str(old), str(bare), str(tmp_path / "absent"), sys.executable]) == [
        (sys.executable, sys.version_info[1])
    ]
    errors = capsys.readouterr().err
    for words in (
        "does not run: no such version",
        "is cpython 3.10; disc needs CPython 3.11",
        "/Python.h",
        "no " + str(tmp_path / "absent"),
    ):
        assert words in errors
    assert wheels.main([str(old)]) == 1


def test_wheels_that_fit_this_machine_alone() -> None:
    python = wheels.Interpreter("python3.12", 12)
    wheels.check_name("disc_compiler-0.1.0-cp312-cp312-manylinux_2_34_x86_64.whl", python)
    wheels.check_name("disc_compiler-0.1.0-cp312-cp312-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl", python)
    for name in ("disc_compiler-0.1.0-cp312-cp312-linux_x86_64.whl", "disc_compiler-0.1.0-cp311-cp311-manylinux_2_34_x86_64.whl"):
        with pytest.raises(wheels.WheelError, match="should be a manylinux wheel for cp312"):
            wheels.check_name(name, python)


@pytest.mark.long
def test_the_wheel_with_numpy_alone(tmp_path: Path) -> None:
    """Built, installed into an environment of its own, and run there, with the tools of a release."""
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "wheels.py", "--output", tmp_path, sys.executable], capture_output=True, text=True
    )
    assert done.returncode == 0 and "golden artifacts right" in done.stdout, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith("/METADATA"))
    assert metadata.endswith((ROOT / "README.md").read_text())
    assert {"LICENSE", "third_party/dlpack/LICENSE", "third_party/pocketfft/LICENSE.md"} <= {
        name.partition("/licenses/")[2] for name in names
    }
