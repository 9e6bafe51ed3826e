"""Makes the pages of the documentation site that are not written by hand, and gathers the others: `tools/docs.sh` runs it before mkdocs.

python tools/docs.py FOLDER    # the pages of the site
python tools/docs.py --write   # docs/settings.md and deploy/serve.schema.json
python tools/docs.py --check   # exit status 1 where they are not what the sources say
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from disc import config  # noqa: E402
from disc.serving.settings import settings_schema  # noqa: E402

SETTINGS = ROOT / "docs" / "settings.md"
SCHEMA = ROOT / "deploy" / "serve.schema.json"
HEAD = """# Settings

Made by `tools/docs.py` from the sources: of compiling, of the environment, and of `serve.toml`. A misspelt key is an error that names it.

Editors know the keys of `serve.toml`, too: `disc serve --schema > serve.schema.json` writes a JSON Schema (`deploy/serve.schema.json`), and
`#:schema serve.schema.json` as the first line of `serve.toml` names it, for those with [Taplo](https://taplo.tamasfe.dev).
"""
# A heading, the table in the schema of the settings ("" = the whole file), and where it stands.
TABLES = (
    ("`serve.toml`: the server", "", "top level"),
    ("Limits of requests", "Limits", "[limits]"),
    ("A model", "ModelSettings", "[defaults], [models.NAME]"),
    ("Lengths that may be padded", "Sequence", "sequence = { ... } of a model"),
    ("Texts", "Text", "text = { ... } of a model"),
    ("TLS", "Tls", "tls = { ... }"),
    ("Access", "Access", "access = { ... }"),
    ("Traces", "Tracing", "tracing = { ... }"),
    ("Metrics", "Metrics", "metrics = { ... }"),
)
# JSON's types, in Python's words, which the errors use as well.
TYPES = {"integer": "int", "number": "float", "string": "str", "boolean": "bool"}
# The theme gives every column 5rem and more: on a phone, tables with a number or a word in a column ran off the screen.
TABLES_STYLE = """.md-typeset table:not([class]) :is(th, td) { min-width: 0; padding-inline: .6em; }
.md-typeset table:not([class]) td:first-child code { word-break: keep-all; overflow-wrap: normal; }
@media (max-width: 45em) { .md-typeset table:not([class]) :is(th, td) { padding-inline: .3em; } }
"""
API = """# Python API

::: disc.api.compile

::: disc.config.Options

::: disc.ral.executable.Executable

::: disc.ral.executable.load

::: disc.api.batched

::: disc.hf.DiscModel

::: disc.hf.sentences.DiscTransformer

::: disc.hf.generation.DiscModelForCausalLM

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


def settings_page() -> str:
    """Raises KeyError for a key without a description."""
    schema = settings_schema()
    tables = (line for heading, name, place in TABLES for line in _table(heading, schema["$defs"][name] if name else schema, place))
    return "\n".join([HEAD, *_environment(), *_options(), *tables])


def schema_file() -> str:
    return json.dumps(settings_schema(), indent=2, ensure_ascii=False) + "\n"


def _environment() -> Iterator[str]:
    text = " ".join((config.Environment.__doc__ or "").split())
    yield from ("## The environment", "", "| variable | |", "|---|---|")
    for mark in re.finditer(r"(DISC_\w+|DISC_\w+=\d) ?(?::|turns) (.*?)\.(?= DISC_| cache_size|$)", text):
        words = mark[2] if ":" in mark[0].partition(mark[2])[0] else f"turns {mark[2]}"
        yield f"| `{mark[1]}` | {words} |"
    yield ""


def _options() -> Iterator[str]:
    words = described(config.Options)
    yield from ("## Options of compiling: `disc.Options`", "", "| key | type | default | |", "|---|---|---|---|")
    for field in dataclasses.fields(config.Options):
        type_text = str(field.type).replace("|", "or")
        yield f"| `{field.name}` | {type_text} | `{field.default!r}` | {words[field.name]} |"
    yield ""


def _table(heading: str, table: dict[str, Any], place: str) -> Iterator[str]:
    yield from (f"## {heading}", "", f"In `serve.toml`: `{place}`.", "", "| key | type | default | |", "|---|---|---|---|")
    for name, key in table["properties"].items():
        default = f"`{json.dumps(key['default'])}`" if "default" in key else "needed" if name in table.get("required", ()) else ""
        yield f"| `{name}` | {type_of(key)} | {default} | {' '.join(key['description'].split())} |"
    yield ""


def type_of(key: dict[str, Any]) -> str:
    """The type of a key and its bounds: "int, 0 to 65535". Raises KeyError for what no setting has been so far."""
    if "$ref" in key:
        return "table"
    if "enum" in key:
        return " or ".join(f"`{json.dumps(each)}`" for each in key["enum"])
    if key["type"] == "object":
        return f"table of {type_of(key['additionalProperties'])}s"
    if key["type"] == "array":
        return f"list of {type_of(key['items'])}"
    words = TYPES[key["type"]]
    if "maximum" in key:
        return f"{words}, {key['minimum']} to {key['maximum']}"
    if "exclusiveMinimum" in key:
        return f"{words}, more than {key['exclusiveMinimum']}"
    return f"{words}, from {key['minimum']}" if "minimum" in key else words


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
    (folder / "tables.css").write_text(TABLES_STYLE)


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
        SCHEMA.write_text(schema_file())
    elif arguments == ["--check"]:
        return int(SETTINGS.read_text() != settings_page() or SCHEMA.read_text() != schema_file())
    elif len(arguments) == 1 and not arguments[0].startswith("-"):
        gather(Path(arguments[0]))
    else:
        print(__doc__)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
