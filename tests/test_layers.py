"""The floors of docs/architecture.md: a file imports only from floors below its own. Read off the sources, without running them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# A unit (files that may import each other) and its floor. The longest name that is a prefix decides.
UNITS: dict[str, tuple[str, float]] = {
    "disc.errors": ("errors", 1), "disc.config": ("config", 1), "disc.extras": ("extras", 1), "disc.progress": ("progress", 2),
    "disc.shapes": ("shapes", 2), "disc._dim": ("shapes", 2), "disc.artifact": ("artifact", 2), "disc.signing": ("signing", 2.5), "disc.cache": ("cache", 2),
    "disc.targets": ("targets", 2), "disc.schedules": ("schedules", 2),
    "disc.ir": ("ir", 3), "disc.ral": ("ral", 3),
    "disc.frontend": ("frontend", 4), "disc.passes": ("passes", 4), "disc.speculation": ("speculation", 4), "disc.codegen": ("codegen", 4),
    "disc.explain": ("explain", 4), "disc.machine": ("explain", 4), "disc.serving": ("serving", 4),
    "disc.api": ("api", 5), "disc.tuning": ("tuning", 5.2), "disc.compile_job": ("compile_job", 5.2), "disc.remote": ("remote", 5.3), "disc.cluster": ("cluster", 5.3),
    "disc.cli": ("cli", 6), "disc.__main__": ("cli", 6),
    "disc": ("package", 5.5),
}  # fmt: skip
ORDERED = {"disc.config": 1.5}  # within floor 1: config raises errors
# (importer, imported) → why it may, against the floors; each must be inside a function, so that nothing is loaded until it is asked for.
ALLOWED: dict[tuple[str, str], str] = {
    ("disc", "disc.api"): "`disc.compile` loads torch and MLIR on first use, so that `import disc` needs NumPy alone",
    ("disc.frontend.dynamo", "disc.api"): "torch.compile calls the back end, which hands the imported graph to the public compiler",
    ("disc.ral.executable", "disc.explain"): "`Executable.explain` is a method of the public interface, written on a floor above",
}
COMPUTED = frozenset({"module_name"})  # cli_compile: the user's own module, by name
OUTSIDE = frozenset({"tools", "tests", "bench"})


@dataclass(frozen=True)
class Import:
    """One module that a file imports. lazy: inside a function."""

    name: str
    line: int
    lazy: bool


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted((ROOT / "disc").rglob("*.py"))}


@cache
def imports_of(module: str) -> tuple[Import, ...]:
    """Every import that runs, in functions too; those for type checkers alone do not."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return tuple(_imports(ast.parse(path.read_text()), package, False))


def _imports(node: ast.AST, package: str, lazy: bool) -> Iterator[Import]:
    if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        children: list[ast.AST] = list(node.orelse)
    else:
        children = list(ast.iter_child_nodes(node))
        for name in _imported_names(node, package):
            yield Import(name, getattr(node, "lineno", 0), lazy)
    inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for child in children:
        yield from _imports(child, package, inside)


def _imported_names(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        base = ".".join([*parents, *([node.module] if node.module else [])])
        for alias in node.names:
            inner = f"{base}.{alias.name}"
            yield inner if inner in MODULES else base
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "import_module", "__import__"):
        if isinstance(node.args[0], ast.Constant):
            yield str(node.args[0].value)
        elif ast.unparse(node.args[0]) not in COMPUTED:
            raise AssertionError(f"line {node.lineno}: the floors cannot be checked through a computed import")


def unit_of(module: str) -> tuple[str, float]:
    return UNITS[max((name for name in UNITS if module == name or _extends(module, name)), key=len)]


def _extends(module: str, name: str) -> bool:
    """`disc.ir.ops` and `disc.cli_run` belong to `disc.ir` and `disc.cli`."""
    return module.startswith((name + ".", name + "_")) or (name.startswith("disc._") and module.startswith(name))


def breaks_floors(importer: str, imported: str) -> bool:
    if imported.split(".")[0] != "disc":
        return False
    (unit, floor), (other, below) = unit_of(importer), unit_of(imported)
    return unit != other and not (below < floor or ORDERED.get(imported, below) < ORDERED.get(importer, floor))


@pytest.mark.parametrize("module", MODULES)
def test_a_file_imports_only_from_floors_below(module: str) -> None:
    wrong = [
        f"{MODULES[module].relative_to(ROOT)}:{each.line} imports {each.name}"
        for each in imports_of(module)
        if breaks_floors(module, each.name) and not (each.lazy and (module, each.name) in ALLOWED)
    ]
    assert not wrong, "\n".join(wrong)


def test_every_exception_is_still_needed() -> None:
    for importer, imported in ALLOWED:
        assert any(each.name == imported for each in imports_of(importer)), f"{importer} no longer imports {imported}"


def reached(module: str) -> dict[str, str]:
    """Every module that importing `module` loads, and who imports it; what exceptions allow is left out."""
    found, pending = {module: module}, [module]
    while pending:
        current = pending.pop()
        for each in imports_of(current) if current in MODULES else ():
            if each.name not in found and (current, each.name) not in ALLOWED:
                found[each.name] = current
                pending.append(each.name)
    return found


@pytest.mark.parametrize("module", ["disc", "disc.artifact", *(name for name in MODULES if name.startswith(("disc.ral", "disc.serving")))])
def test_the_runtime_needs_neither_torch_nor_mlir(module: str) -> None:
    wrong = [f"{importer} imports {name}" for name, importer in reached(module).items() if name.split(".")[0] in ("torch", "torch_mlir")]
    assert not wrong, "\n".join(wrong)


def test_nothing_imports_tools_tests_or_bench() -> None:
    wrong = [f"{module}:{each.line}" for module in MODULES for each in imports_of(module) if each.name.split(".")[0] in OUTSIDE]
    assert not wrong, wrong


def test_config_alone_reads_the_environment() -> None:
    reads = re.compile(r"\bos\.(environ|environb|getenv|getenvb|putenv)\b|from os import .*\b(environ|getenv)")
    assert [module for module, path in MODULES.items() if reads.search(path.read_text())] == ["disc.config"]


def test_nothing_is_pickled() -> None:
    loads = re.compile(r"\b(pickle|cPickle|dill|cloudpickle|joblib|shelve|marshal)\b(?!=False)|allow_pickle=True")
    text = {module: path.read_text().replace("allow_pickle=False", "") for module, path in MODULES.items()}
    assert [module for module in MODULES if loads.search(text[module])] == []


@pytest.mark.parametrize(
    ("importer", "imported", "wrong"),
    [
        ("disc.passes.stitch", "disc.codegen.plan", True),
        ("disc.passes.stitch", "disc.ir.graph", False),
        ("disc.ir.graph", "disc.ral.executable", True),
        ("disc.config", "disc.errors", False),
        ("disc.errors", "disc.config", True),
        ("disc.shapes", "disc._dim_facts", False),
        ("disc.cache", "disc.artifact", True),
        ("disc.api", "disc", True),
        ("disc.cli_run", "disc.api", False),
        ("disc.explain", "disc.ral.executable", False),
    ],
)
def test_the_rule_itself(importer: str, imported: str, wrong: bool) -> None:
    assert breaks_floors(importer, imported) is wrong
