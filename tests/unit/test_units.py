"""Every field of a dataclass that is a number says what it counts: the docstring of the class names it, or it has a comment of its own, or
its name is a unit. The test sees that somebody wrote about the field, not that it is right."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

DISC = Path(__file__).resolve().parents[2] / "disc"
NUMBER = re.compile(r"(?:(?:tuple|list|Sequence)\[)*(?:int|float)\b")  # of an annotation, from its beginning
UNIT = re.compile(r"(?:^|_)(?:bits|bytes|gbytes|gflops|ns|us|ms|s|seconds|percent)$")  # names that say it themselves


def is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def is_explained(name: str, text: str, comments: str) -> bool:
    """Whether the name is a unit, the docstring names the field, or a comment stands beside it or above it."""
    return bool(UNIT.search(name) or re.search(rf"\b{re.escape(name)}\b", text) or comments)


def comment_of(lines: list[str], first: int, last: int) -> str:
    """The comments on the lines of a field (counted from 1), and those right above it."""
    found = [line.partition("#")[2] for line in lines[first - 1 : last] if "#" in line]
    above = first - 1
    while above and lines[above - 1].lstrip().startswith("#"):
        found.append(lines[above - 1])
        above -= 1
    return " ".join(found)


def silent_fields(source: str) -> Iterator[str]:
    """ "Class.field" of every number that nothing explains."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ClassDef) or not is_dataclass(node):
            continue
        text = ast.get_docstring(node) or ""
        for field in node.body:
            if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
                continue
            comments = comment_of(lines, field.lineno, field.end_lineno or field.lineno)
            if NUMBER.match(ast.unparse(field.annotation)) and not is_explained(field.target.id, text, comments):
                yield f"{node.name}.{field.target.id}"


@pytest.mark.parametrize("path", sorted(DISC.rglob("*.py")), ids=lambda path: str(path.relative_to(DISC)))
def test_numbers_say_what_they_count(path: Path) -> None:
    assert list(silent_fields(path.read_text())) == []


@pytest.mark.parametrize(
    ("fields", "silent"),
    [("a: int", True), ("a: int | None = None", True), ("a: tuple[float, ...] = ()", True), ("a: int  # rows", False), ("# rows\n    a: int", False),
     ("a_bytes: int", False), ("seconds: float", False), ("b: int", False), ("a: str", False), ("a: dict[int, str]", False)],
)  # fmt: skip
def test_the_rule_itself(fields: str, silent: bool) -> None:
    source = f'@dataclass(frozen=True)\nclass A:\n    """b: rows."""\n\n    {fields}\n'
    assert bool(list(silent_fields(source))) is silent
