"""README and the pages that go on from it, as people use them: every code block is pasted, in order, into one folder; what is shown of messages
is what is said."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import shell

import disc
from disc.errors import DiscError, UnsupportedOpError

COUNT_COMPILES = """python -c '
import runpy, sys
runpy.run_path(sys.argv[1])
from disc.frontend import dynamo
print("compiled", dynamo.statistics().graphs)'"""
ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/tutorials.md", "docs/commands.md")
NOT_RUN = {  # by the first line → why
    "bash tools/quickstart.sh": "makes an environment, and runs all tests, this one among them",
    "pip install '.[compile,serve]'": "changes the environment; tests/unit/test_installation.py builds the wheel and installs it into another",
}


@dataclass(frozen=True)
class Block:
    """language: "" for what a command prints. line: in its page, for messages."""

    language: str
    text: str
    line: int

    @property
    def file(self) -> str | None:
        """Its name, where its first line is one."""
        match = re.match(r"# (\w+\.py)\n", self.text)
        return match[1] if match else None


def blocks(page: str = "README.md") -> Iterator[Block]:
    text = (ROOT / page).read_text()
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S):
        yield Block(match[1], match[2], text.count("\n", 0, match.start()) + 1)


def not_run(block: Block) -> bool:
    return any(block.text.startswith(start) for start in NOT_RUN)


def pasted_blocks(page: str) -> list[Block]:
    return [block for block in blocks(page) if block.language in ("python", "bash") and not not_run(block)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the blocks are pasted; the folders of the checkout that commands name are in it too, and the files that README shows."""
    folder = tmp_path_factory.mktemp("readme")
    for name in ("tools", "tests", "disc"):
        (folder / name).symlink_to(ROOT / name)
    for block in pasted_blocks("README.md"):
        if block.file:
            (folder / block.file).write_text(block.text)
    return folder


@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs_in_order(folder: Path, page: str) -> None:
    pasted = pasted_blocks(page)
    assert all(block.file for block in pasted if block.language == "python"), "a Python block whose first line is not its file's name"
    shown = set() if page == "README.md" else {block.file for block in pasted_blocks("README.md")}
    for block in pasted:
        if block.file:
            (folder / block.file).write_text(block.text)
            shown.add(block.file)
            if any(f"python {block.file}" in other.text for other in pasted if other.line > block.line and other.language == "bash"):
                continue  # a command below runs it
        needed = set(re.findall(r"^python (\w+\.py)", block.text, re.M)) if block.language == "bash" else set()
        assert needed <= shown, f"{page}:{block.line} runs {needed - shown} before it is shown"
        counts = block.file == "train.py"
        command = f"{COUNT_COMPILES} {block.file}" if counts else f"python {block.file}" if block.file else block.text
        done = shell(folder, command)
        assert done.returncode == 0, f"{page}:{block.line}\n{block.text}\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
        if "ask.py" in block.text:
            assert "[3, 17, 256]" in done.stdout
            assert "block" in done.stdout  # "serving block:1 on ..."
        if counts:  # one graph forward and one backward, for any batch, as it says
            assert "compiled 2" in done.stdout and "Warning" not in done.stderr, done
        if block.file == "tour.py":
            assert "encoder.py" in done.stdout and "(4, 33, 256)" in done.stdout


def test_each_block_that_is_not_run_is_there() -> None:
    for start in NOT_RUN:
        assert sum(block.text.startswith(start) for block in blocks()) == 1, start
    assert {block.language for page in PAGES for block in blocks(page)} == {"python", "bash", ""}


def test_its_messages_are_what_is_said(folder: Path) -> None:
    shown = "\n".join(block.text for block in blocks() if block.language == "")
    block = disc.load(folder / "block.disc") if (folder / "block.disc").exists() else pytest.skip("the blocks before it failed")
    x, mask = np.zeros((2, 3, 256), np.float32), np.ones((2, 3), np.int64)
    for given in ((x, np.ones((2, 4), np.int64)), (x[:, :, :128], mask), (x.astype(np.float64), mask)):
        with pytest.raises(DiscError) as error:
            block(*given)
        assert f"{type(error.value).__name__}: {error.value}\n" in shown


class Ranked(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.airy_ai(x) + torch.special.hermite_polynomial_h(x, x).sum()


def test_its_list_of_unsupported_ops(folder: Path) -> None:
    with pytest.raises(UnsupportedOpError) as error:
        disc.compile(Ranked(), (torch.randn(2, 4),))
    shown = next(block.text for block in blocks() if "UnsupportedOpError" in block.text).splitlines()
    said = [*f"UnsupportedOpError: {error.value}".splitlines(), *error.value.__notes__]
    assert [re.sub(r"\S+\.py:\d+", "model.py:19", line) for line in said] == shown
