"""Makes the pages of the documentation site that are not written by hand, and gathers the others: `tools/docs.sh` runs it before mkdocs.

python tools/docs.py FOLDER    # the pages of the site
python tools/docs.py --write   # docs/settings.md
python tools/docs.py --check   # exit status 1 where docs/settings.md is not what the sources say
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from disc import config  # noqa: E402
from disc.serving import settings  # noqa: E402

SETTINGS = ROOT / "docs" / "settings.md"
HEAD = """# Settings

Made by `tools/docs.py` from the sources: of compiling, of the environment, and of `serve.toml`. A misspelt key is an error that names it.
"""
# A heading, the class, and where its keys stand in serve.toml ("" = they do not).
TABLES = (
    ("Options of compiling: `disc.Options`", config.Options, ""),
    ("`serve.toml`: the server", settings.ServerSettings, "top level"),
    ("Limits of requests", settings.Limits, "[limits]"),
    ("A model", settings.ModelSettings, "[defaults], [models.NAME]"),
    ("Lengths that may be padded", settings.Sequence, "sequence = { ... } of a model"),
    ("Texts", settings.Text, "text = { ... } of a model"),
    ("TLS", settings.Tls, "tls = { ... }"),
    ("Access", settings.Access, "access = { ... }"),
    ("Traces", settings.Tracing, "tracing = { ... }"),
    ("Metrics", settings.Metrics, "metrics = { ... }"),
)
API = """# Python API

::: disc.api.compile

::: disc.config.Options

::: disc.ral.executable.Executable

::: disc.ral.executable.load

::: disc.api.batched

::: disc.hf.DiscModel

::: disc.hf.sentences.DiscTransformer

::: disc.errors
"""


def described(kind: type) -> dict[str, str]:
    """What the docstring says of each field: the words behind "name: " or "name, other: ", up to the next field."""
    names = "|".join(each.name for each in dataclasses.fields(kind))
    text = " ".join((kind.__doc__ or "").split())
    marks = list(re.finditer(rf"(?:^|(?<=[.;] )|(?<=\) ))((?:{names})(?:, (?:{names}))*): ", text))
    found: dict[str, str] = {}
    for mark, following in zip(marks, [*marks[1:], None][: len(marks)], strict=True):
        words = text[mark.end() : following.start() if following else len(text)].strip().rstrip(";.")
        found.update(dict.fromkeys(mark[1].split(", "), words))
    return found


def default_of(field: dataclasses.Field[object]) -> str:
    if field.default is not dataclasses.MISSING:
        return f"`{field.default!r}`"
    return "" if field.default_factory is dataclasses.MISSING else "a table"


def settings_page() -> str:
    """Raises KeyError for a field that its docstring does not describe."""
    return "\n".join([HEAD, *_environment(), *(line for table in TABLES for line in _table(*table))])


def _environment() -> Iterator[str]:
    text = " ".join((config.Environment.__doc__ or "").split())
    yield from ("## The environment", "", "| variable | |", "|---|---|")
    for mark in re.finditer(r"(DISC_\w+|DISC_\w+=\d) ?(?::|turns) (.*?)\.(?= DISC_| cache_size|$)", text):
        words = mark[2] if ":" in mark[0].partition(mark[2])[0] else f"turns {mark[2]}"
        yield f"| `{mark[1]}` | {words} |"
    yield ""


def _table(heading: str, kind: type, place: str) -> Iterator[str]:
    words = described(kind)
    yield from (f"## {heading}", "")
    if place:
        yield from (f"In `serve.toml`: `{place}`.", "")
    yield from ("| key | type | default | |", "|---|---|---|---|")
    for field in dataclasses.fields(kind):
        type_text = str(field.type).replace("|", "or")
        yield f"| `{field.name}` | {type_text} | {default_of(field)} | {words[field.name]} |"
    yield ""


def gather(folder: Path) -> None:
    """All pages: README as the first one, docs/, CHANGELOG, CONTRIBUTING, and the API, which mkdocstrings fills."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pages = {"index.md": ROOT / "README.md", "changelog.md": ROOT / "CHANGELOG.md", "contributing.md": ROOT / "CONTRIBUTING.md"}
    pages |= {path.name: path for path in sorted((ROOT / "docs").glob("*.md"))}
    places = {path: name for name, path in pages.items()}
    for name, path in pages.items():
        (folder / name).write_text(relinked(path, places))
    (folder / "api.md").write_text(API)


def relinked(path: Path, places: dict[Path, str]) -> str:
    """The page with its links to other pages of the site, and its links to other files as their names. Raises ValueError for a dead one."""

    def link(match: re.Match[str]) -> str:
        words, target, place = match[1], match[2], match[3] or ""
        if not target or "://" in target:
            return match[0]
        file = (path.parent / target).resolve()
        if not file.exists():
            raise ValueError(f"{path.relative_to(ROOT)}: there is no {target}")
        return f"[{words}]({places[file]}{place})" if file in places else f"{words} (`{file.relative_to(ROOT)}`)"

    return re.sub(r"\[([^\]\n]*)\]\(([^)#\s]*)(#[^)\s]*)?\)", link, path.read_text())


def main(arguments: list[str]) -> int:
    if arguments == ["--write"]:
        SETTINGS.write_text(settings_page())
    elif arguments == ["--check"]:
        return int(SETTINGS.read_text() != settings_page())
    elif len(arguments) == 1 and not arguments[0].startswith("-"):
        gather(Path(arguments[0]))
    else:
        print(__doc__)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
