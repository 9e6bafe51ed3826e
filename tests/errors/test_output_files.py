"""What `save`, `disc compile -o`, `disc sign -o` and `disc run --output` refuse to replace, follow, keep and say."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from disc.artifact.output import whole_file
from disc.cli import main as cli
from disc.errors import DiscError, OutputError
from disc.ral import executable
from disc.ral.executable import Executable

GOLDEN = Path(__file__).parents[1] / "golden" / "0.1.0" / "linear.disc"


@pytest.fixture
def loaded() -> Executable:
    return executable.load(GOLDEN)


def test_pipes_devices_and_folders_are_not_replaced(loaded: Executable, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    os.symlink("/dev/null", tmp_path / "null")  # a link, so that a mistake here would not touch the machine's own node
    for name, kind in (("pipe", "a named pipe"), ("folder", "a folder"), ("null", "a device")):
        with pytest.raises(OutputError, match=f"^'{tmp_path / name}' is {kind}, which will not be replaced by a file"):
            loaded.save(tmp_path / name)
    assert stat.S_ISFIFO(os.lstat(tmp_path / "pipe").st_mode)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert sorted(os.listdir(tmp_path)) == ["folder", "null", "pipe"]


def test_a_link_is_followed(loaded: Executable, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    target, link, dangling = tmp_path / "models" / "target", tmp_path / "link", tmp_path / "dangling"
    target.write_bytes(b"old")
    target.chmod(0o600)
    link.symlink_to(target)
    dangling.symlink_to("models/new")
    for path in (link, dangling):
        loaded.save(path)
        assert path.is_symlink() and path.read_bytes() == GOLDEN.read_bytes()
    assert stat.S_IMODE(target.stat().st_mode) == 0o600  # as the file had it
    assert sorted(os.listdir(tmp_path / "models")) == ["new", "target"]


def test_new_files_have_the_permissions_of_new_files(loaded: Executable, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        loaded.save(tmp_path / "a.disc")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.disc").stat().st_mode) == 0o640


def test_names_that_cannot_be_written(loaded: Executable, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "astray").symlink_to("no/where")
    cases = {
        "no/where.disc": f"'{tmp_path}/no/where.disc': the folder {tmp_path}/no does not exist",
        "astray": f"'{tmp_path}/astray': the folder {tmp_path}/no does not exist",
        "loop": f"'{tmp_path}/loop': cannot be written: Too many levels of symbolic links",
        "a\0b": f"'{tmp_path}/a\\x00b': cannot be written: no file can have this name",
        "x" * 256: "cannot be written: File name too long",
    }
    for name, message in cases.items():
        with pytest.raises(OutputError) as caught:
            loaded.save(f"{tmp_path}/{name}")
        assert message in str(caught.value)
    longest = tmp_path / ("x" * 255)
    loaded.save(longest)
    assert executable.load(longest).isa == loaded.isa


def test_a_full_disk(loaded: Executable, tmp_path: Path) -> None:
    """As a limit on the size of files: the error names the file that was to be written, and nothing is left."""
    command = """
import resource, signal, sys
from disc.cli import main as cli
from disc.errors import OutputError
from disc.ral import executable
loaded = executable.load(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (40000, 40000))
try:
    loaded.save(sys.argv[2])
except OutputError as error:
    assert str(error) == f"'{sys.argv[2]}': cannot be written: File too large", error
    assert error.errno
else:
    raise AssertionError
code = cli.main(["run", sys.argv[1], "--random", "input=20000x8", "--output", sys.argv[2] + ".npy"])
sys.exit(10 + code)
"""
    done = subprocess.run([sys.executable, "-c", command, str(GOLDEN), str(tmp_path / "a")], capture_output=True, text=True, check=False)
    assert done.returncode == 11, done.stderr
    assert done.stderr.startswith(f"disc: '{tmp_path}/a.npy': cannot be written: ") and done.stderr.count("\n") == 1
    assert not os.listdir(tmp_path)


def test_commands_say_what_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe.npy")
    for arguments, message in (
        (["explain", str(GOLDEN), "--html", str(tmp_path / "no" / "a.html")], "no does not exist"),
        (["run", str(GOLDEN), "--random", "input=2x8", "--output", str(tmp_path / "pipe.npy")], "is a named pipe"),
        (["compile", "sum_factory:build", "-o", str(tmp_path / "pipe.npy")], "is a named pipe"),
    ):
        assert cli.main(arguments) == 1
        captured = capsys.readouterr()
        assert message in captured.err and "mistake in disc" not in captured.err


def test_errors_of_the_body_are_its_own(tmp_path: Path) -> None:
    for error in (ValueError("x"), KeyboardInterrupt(), DiscError("y")):
        with pytest.raises(type(error)), whole_file(tmp_path / "a") as file:
            file.write(b"part")
            raise error
    assert not os.listdir(tmp_path)
