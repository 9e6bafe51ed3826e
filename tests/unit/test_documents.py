"""What the documents name is there: files, modules, functions, ops, passes and settings between backticks, and what their commands run."""

from __future__ import annotations

import importlib.util
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from disc.codegen.x86.plans import KINDS
from disc.passes.pipelines import REGISTRY, pipeline

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")))
FOLDERS = ("disc", "tools", "bench", "tests", "deploy")
FILE = re.compile(r"[\w.*{},/-]*\.(py|pyi|cc|h|c|md|json|mlir|toml|yaml|sh|proto|html|txt)")
SOURCES = {".py", ".pyi", ".cc", ".h", ".c", ".proto", ".mlir", ".toml", ".yaml", ".sh", ".html", ".txt"}

# Text between backticks that names nothing of this repository → what it is.
FOREIGN = {
    "CAP_LEASE": "of Linux",
    "RAY_SERVE_PROXY_PREFER_LOCAL_NODE_ROUTING": "of Ray",
    "DeploymentHandle": "of Ray",
    "round_robin": "of gRPC",
    "/srv/disc/serve.toml": "in the image that deploy/Containerfile makes",
    "/openapi.json": "a route of the server",
    "/status.json": "a route of the server",
    "sequence_starts": "put together by `pack-sequences`",
    "sequence_ends": "put together by `pack-sequences`",
}
# Files of the worked examples, which are not kept.
EXAMPLES = {
    "tests/ir/NAME.mlir",
    "tests/codegen/NAME.mlir",
    "tests/codegen/copy.mlir",
    "tests/ir/fold-reverses.mlir",
    "disc/passes/{shape,graph,fusion}/fold_reverses.py",
}
# Files of other projects, or made by a command, that comments and docstrings name.
ELSEWHERE = {
    "malloc.h",
    "job.json",
    "schedules.json",
    "order.json",
    "model.py",
    "result.json",
    "broken.mlir",
    "before.json",
    "after.json",
    "RESULT.json",
    "FILE.json",
    "config.json",
    "tokenizer.json",
    "JOB.json",
}
# Files that only a user has, or that a command writes.
MADE = {"model.disc", "serve.toml", "encoder.py", "fast.py", "tour.py", "ask.py", "accuracy.md"}


def prose(document: str) -> str:
    """The text without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", (ROOT / document).read_text(), flags=re.M | re.S)


def spans(document: str) -> Iterator[str]:
    for match in re.finditer(r"(?<!`)`([^`\n]+)`(?!`)", prose(document)):
        yield match[1]


@cache
def files() -> tuple[Path, ...]:
    """Relative paths of the files in the checkout that a document may name."""
    top = [path.relative_to(ROOT) for path in ROOT.iterdir() if path.is_file()]
    inner = [path.relative_to(ROOT) for name in (*FOLDERS, "docs") for path in (ROOT / name).rglob("*") if "__pycache__" not in path.parts]
    return (*top, *inner)


@cache
def words() -> frozenset[str]:
    """Every identifier of the sources, and every name with hyphens."""
    texts = ((ROOT / path).read_text(errors="replace") for path in files() if path.suffix in SOURCES and path.name != Path(__file__).name)
    return frozenset(word for text in texts for word in re.findall(r"[A-Za-z_]\w*(?:-\w+)+|[A-Za-z_]\w*", text))


@cache
def dotted_words() -> frozenset[str]:
    """`disc.x` of IR: ops, attributes, module attributes."""
    texts = ((ROOT / path).read_text() for path in files() if path.suffix in (".py", ".mlir") and path.parts[0] == "disc")
    return frozenset(word for text in texts for word in re.findall(r"\"((?:disc|kernel|stablehlo|chlo)\.\w+)\"", text))


def expanded(path: str) -> list[str]:
    """`a/{b,c}.py` → `a/b.py`, `a/c.py`."""
    match = re.search(r"\{([^}]*)\}", path)
    return [path] if match is None else [one for inner in match[1].split(",") for one in expanded(path.replace(match[0], inner, 1))]


def is_file(path: str) -> bool:
    """Whether a file or folder of the checkout ends in `path`, whole names of folders matched."""
    return path.startswith(".") or (ROOT / path).is_dir() or any(file.match(path.rstrip("/")) for file in files())


def is_object(name: str) -> bool:
    """Whether `a.b.C.d` is a module, or a word of the file of one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        base = ROOT.joinpath(*parts[:length])
        file = next((file for file in (base.with_suffix(".py"), base / "__init__.py", base) if file.exists()), None)
        if file is not None:
            inside = file.read_text() if file.is_file() else ""
            return all(re.search(rf"\b{part}\b", inside) for part in parts[length:])
    return False


def problem(span: str) -> str | None:
    """What `span` names that is not there."""
    if span in FOREIGN or span in MADE or span in EXAMPLES:
        return None
    if FILE.fullmatch(span) or re.fullmatch(r"(?:disc|tools|bench|tests|docs|deploy)/[\w.*{},/-]*", span):
        missing = [path for path in expanded(span) if not is_file(path)]
        return f"no file {missing}" if missing else None
    if re.fullmatch(r"(?:disc|bench|tests|tools)(?:\.\w+)+", span):
        return None if is_object(span) or span in dotted_words() else "neither a module, an object nor an op"
    if re.fullmatch(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+", span) and not span.startswith(("stablehlo.", "chlo.", "aten.")):
        unknown = [part for part in span.split(".") if part not in words()]
        return f"no such words in the sources: {unknown}" if unknown else None
    if re.fullmatch(r"[a-z]+(?:-[a-z0-9]+)+|[A-Z]?\w*(?:_\w+|[a-z][A-Z]\w*)", span):
        return None if span in words() else "no such word in the sources"
    return None


@pytest.mark.parametrize("document", DOCUMENTS)
def test_names_are_there(document: str) -> None:
    wrong = {span: told for span in spans(document) if (told := problem(span)) is not None}
    assert not wrong, f"{document}: {wrong}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_and_links_are_there(document: str) -> None:
    text = (ROOT / document).read_text()
    scripts = {
        path
        for path in re.findall(r"\b((?:tools|bench|tests)/[\w/.-]+\.(?:py|sh|mlir))\b", text)
        if path not in EXAMPLES and not (ROOT / path).exists()
    }
    modules = {name for name in re.findall(r"python -m ([\w.]+)", text) if importlib.util.find_spec(name) is None}
    links = {
        f"{path}#{place}" for path, place in re.findall(r"\]\(([\w./-]*)#?([\w-]*)\)", text) if not leads_somewhere(document, path, place)
    }
    assert not scripts | modules | links


def leads_somewhere(document: str, path: str, place: str) -> bool:
    """Whether a link to a file of the checkout, and a heading in it, has a target."""
    target = (ROOT / document).parent / path if path else ROOT / document
    headings = re.findall(r"^#+ (.*)$", target.read_text(), re.M) if place and target.exists() else []
    return target.exists() and (not place or place in [re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings])


def test_every_pass_is_described_in_its_order() -> None:
    table = (ROOT / "docs/architecture.md").read_text().partition("## Passes")[2].partition("\n## ")[0]
    described = re.findall(r"^\| `([\w-]+)` \|", table, re.M)
    assert sorted(described) == sorted(REGISTRY)
    order = list(dict.fromkeys(each.name for each in pipeline("int8")))
    assert [name for name in described if name in order] == order


def test_every_kernel_is_described() -> None:
    table = (ROOT / "docs/kernels.md").read_text().partition("| plan |")[2].partition("\n\n")[0]
    described = [name for cell in re.findall(r"^\| \[(.*?)\]", table, re.M) for name in re.findall(r"`([\w-]+)`", cell)]
    assert sorted(described) == sorted(KINDS.keys() - {"product", "tree", "region", "search"})  # these are parts of others


def file_names_in_comments(path: Path) -> Iterator[str]:
    with tokenize.open(path) as stream:
        for token in tokenize.generate_tokens(stream.readline):
            if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.string.startswith('"""')):
                yield from re.findall(r"(?<![\w./*<-])((?:[\w.]+/)*\w+\.(?:py|cc|h|html|md|sh|json))\b", token.string)


def test_files_that_comments_name_are_there() -> None:
    sources = [path for path in files() if path.suffix == ".py" and path.parts[0] in ("disc", "tools", "bench")]
    named = {(path.as_posix(), name) for path in sources for name in file_names_in_comments(ROOT / path)}
    missing = {(path, name) for path, name in named if Path(name).name not in ELSEWHERE and not is_file(name)}
    assert len(named) > 50 and not {pair for pair in missing if "transformers/" not in pair[1]}


def test_what_is_not_there_is_found() -> None:
    assert leads_somewhere("README.md", "docs/kernels.md", "few-rows") and not leads_somewhere("README.md", "docs/kernels.md", "no-rows")
    assert problem("codegen/x86/no_such.py") and problem("micro_kernels/*.py") and problem("codegen/{plan,nowhere}/rows.py")
    assert problem("disc.no_such_module") and problem("disc.errors.NoSuchError") and problem("no-such-pass") and problem("no_such_function")
    assert not problem("disc.errors.DiscError") and not problem("disc.reshape") and not problem("fold-pads") and not problem("ral.h")
