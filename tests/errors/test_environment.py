"""Folders and variables of the environment that do not do: what compiles, commands and `disc doctor` say to them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import disc
from disc.cli.main import main
from disc.config import read_environment
from disc.errors import DiscError, DiscWarning, OutputError
from disc.speculation.records import resume
from disc.speculation.tree import packaged_tree, write_tree


@pytest.fixture(params=["file", "file/cache", "/proc/nowhere"])
def unusable(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder that cannot be."""
    (tmp_path / "file").write_text("")
    return str(tmp_path / request.param)


def compiled(cache: bool = True) -> disc.Executable:
    return disc.compile(nn.ReLU(), (torch.randn(3),), options=disc.Options(cache=cache))


def test_a_dump_that_cannot_be_written(unusable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISC_DUMP", unusable)
    with pytest.raises(OutputError, match=f"'{unusable}/001-.*': cannot be written: "):
        compiled(cache=False)


def test_folders_of_servers_and_of_tuning(unusable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("DISC_CACHE_DIR", unusable)
    for arguments in (["compile-server", "--port", "0"], ["compile-server", "--port", "0", "--folder", unusable]):
        assert main(arguments) == 1
        assert f"disc: '{unusable}" in (said := capsys.readouterr().err) and "': cannot be written: " in said
    with pytest.raises(OutputError, match="cannot be written"):
        resume(Path(unusable) / "tune" / "records.jsonl")
    with pytest.raises(OutputError, match="cannot be written"):
        write_tree(Path(unusable), packaged_tree())


def test_doctor_sees_a_cache_that_cannot_be(unusable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("DISC_CACHE_DIR", unusable)
    assert main(["doctor"]) == 1
    (line,) = [each for each in capsys.readouterr().out.splitlines() if each.startswith("cache ")]
    assert "cannot be written (" in line and "set DISC_CACHE_DIR" in line
    for arguments in (["cache", "ls"], ["cache", "verify"], ["cache", "clear"]):
        assert main(arguments) == 0


def test_doctor_sees_a_cache_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setenv("DISC_CACHE_DIR", str(tmp_path))
    assert main(["doctor"]) == 1
    assert "may be written by other users, who could put code into it" in capsys.readouterr().out


def test_the_warning_of_a_cache_says_what_to_do(unusable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISC_CACHE_DIR", unusable)
    with pytest.warns(DiscWarning, match=f"'{unusable}' cannot be used: [A-Z][a-z ]+; set DISC_CACHE_DIR to another folder, or"):
        compiled()


@pytest.mark.parametrize("value", ["false", "off", "yes", "/tmp/cache"])
def test_a_switch_that_is_none(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them left the cache on."""
    monkeypatch.setenv("DISC_CACHE", value)
    with pytest.raises(DiscError, match="0 turns the compile cache off, 1 on; DISC_CACHE_DIR names its folder"):
        read_environment()


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("DISC_CACHE_DIR", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert read_environment().cache_dir == Path("/.cache/disc")


def test_what_the_machine_lacks_is_no_mistake_of_disc(tmp_path: Path) -> None:
    """Entries that may not be removed."""
    command = """
import os, sys
from disc.cli import machine, main
def refuse(self):
    raise PermissionError(13, "Permission denied", sys.argv[1])
machine.Cache.clear = refuse
sys.exit(main.main(["cache", "clear"]))
"""
    environment = {**os.environ, "DISC_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", command, "entry.disc"], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "disc: entry.disc: Permission denied\n")
