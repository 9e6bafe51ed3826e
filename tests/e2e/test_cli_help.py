"""The help of every command: examples that the command line takes, and no name of a Python type where an option takes no value."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from disc.cli.help import EXAMPLES
from disc.cli.main import app, main

ROOT: Any = typer.main.get_command(app)


def commands(group: Any, *names: str) -> Iterator[tuple[str, Any]]:
    """Each command that does something, by its words behind `disc`."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *names, name)
        else:
            yield " ".join((*names, name)), command


ALL = dict(commands(ROOT))


def test_every_command_has_examples() -> None:
    assert set(EXAMPLES) == set(ALL)


@pytest.mark.parametrize("name", [*ALL, "", "cache", "debug", "ray"])
def test_options_without_a_value_name_no_type(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*name.split(), "--help"]) == 0
    text = capsys.readouterr().out
    options = text.partition(" Options ")[2]
    assert re.search(r"--help +-h +Show this", options), text
    assert not re.search(r"bool|list\[|int range", options)
    assert all(line in " ".join(text.split()) for line in EXAMPLES.get(name, ()))


@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for line in lines])
def test_the_command_line_takes_every_example(line: str) -> None:
    """Up to the call of the command: `make_context` raises for what it does not know."""
    words = shlex.split(line)
    assert words[0] == "disc"
    command = ROOT
    while hasattr(command, "commands"):
        words = words[1:]
        command = command.commands[words[0]]
    assert command in ALL.values()
    if "--schema" not in words:  # which prints at once
        command.make_context(words[0], words[1:])
