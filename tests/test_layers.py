"""The floors of docs/architecture.md: a file imports only from folders below its own. Read off the sources, without running them."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Floors of the house: a file imports from folders below its own, never from a sibling. A folder may have floors of its own, by subfolder;
# what lies in no subfolder is on the last of them, or on the first where the list begins with "".
FLOORS: tuple[tuple[str, ...], ...] = (
    ("errors", "config"),
    ("shapes", "targets", "artifact"),
    ("ir", "ral"),
    ("speculation",),
    ("frontend", "codegen", "explain", "serving"),
    ("passes",),  # its pipelines end with the choice of kernels, which is code generation's
    ("api",),
    ("serving.compile_service", "serving.ray"),  # they compile
    ("",),  # disc/__init__.py: the public names
    ("hf",),
    ("cli",),
    ("__main__",),
)
WITHIN: dict[str, tuple[tuple[str, ...], ...]] = {
    "passes": (("shape", "graph", "fusion"), ("",)),
    "codegen": (("plan",), ("mlir",), ("host", "x86", "cuda"), ("",)),
    "codegen.x86": (("math",), ("",), ("gemm",), ("rows", "conv"), ("attention",), ("choose",), ("kernels",), ("backend",)),
    "ral": (("",),),
}
# These run the compiler; all else of serving needs neither torch nor MLIR.
COMPILING = frozenset({"disc.serving.compile_service.client", "disc.serving.compile_service.job", "disc.serving.ray.cluster"})
COMPUTED = frozenset({"module_name"})  # cli.factory: the user's own module, by name
PYTESTS = frozenset({"conftest", "__init__"})  # which pytest itself tells apart by their folders
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


def place(module: str, floors: tuple[tuple[str, ...], ...], inside: str) -> tuple[str, int]:
    """The unit that a module belongs to among those of a folder (`disc`, "codegen", ...), and its floor."""
    rest = module.removeprefix(f"disc.{inside}" if inside else "disc").removeprefix(".")
    units = {name: floor for floor, names in enumerate(floors) for name in names}
    unit = max((name for name in units if not name or rest == name or rest.startswith(name + ".")), key=len)
    return unit, units[unit]


def breaks_floors(importer: str, imported: str) -> bool:
    if imported.split(".")[0] != "disc" or ordered(importer, imported):
        return False
    (unit, floor), (other, below) = place(importer, FLOORS, ""), place(imported, FLOORS, "")
    if unit != other:
        return below >= floor
    for folder, floors in WITHIN.items():
        if all(each == f"disc.{folder}" or each.startswith(f"disc.{folder}.") for each in (importer, imported)):
            (unit, floor), (other, below) = place(importer, floors, folder), place(imported, floors, folder)
            if unit != other and below >= floor:
                return True
    return False


def ordered(importer: str, imported: str) -> bool:
    """`config` raises what `errors` defines."""
    return (importer, imported) == ("disc.config", "disc.errors")


@pytest.mark.parametrize("module", MODULES)
def test_a_file_imports_only_from_floors_below(module: str) -> None:
    wrong = [
        f"{MODULES[module].relative_to(ROOT)}:{each.line} imports {each.name}"
        for each in imports_of(module)
        if breaks_floors(module, each.name)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_files_import_each_other_in_a_circle() -> None:
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " imports ".join([*path[path.index(module) :], module])
        if module not in done:
            for each in imports_of(module):
                if each.name in MODULES and each.name != module:
                    visit(each.name, (*path, module))
            done.add(module)

    for module in MODULES:
        visit(module, ())


def test_pipelines_alone_of_the_passes_knows_code_generation() -> None:
    found = {module for module in MODULES for each in imports_of(module) if each.name.startswith("disc.codegen")}
    assert {module for module in found if module.startswith("disc.passes")} == {"disc.passes.pipelines"}


def test_imports_are_absolute() -> None:
    relative = re.compile(r"^\s*from \.", re.MULTILINE)
    assert [module for module, path in MODULES.items() if relative.search(path.read_text())] == []


def test_the_house_has_few_doors() -> None:
    """At most 18 entries in `disc/`: what a newcomer sees first. `python -m disc` is another handle of the door `cli`."""
    entries = {path.name for path in (ROOT / "disc").iterdir()} - {"__pycache__", "__main__.py"}
    assert len(entries) <= 18, sorted(entries)


def test_plans_and_host_know_no_device() -> None:
    """Not through other files either."""
    for module in MODULES:
        if module.startswith(("disc.codegen.plan", "disc.codegen.host")):
            wrong = [name for name in reached(module) if name.startswith("disc.codegen.x86")]
            assert not wrong, f"{module} reaches {wrong[0]}"


def test_a_device_is_loaded_where_it_is_looked_up() -> None:
    """`codegen/backend.py` alone names the modules of a device, in functions that load them."""
    for module in MODULES:
        named = [each for each in imports_of(module) if each.name.startswith("disc.codegen.x86")]
        if not module.startswith("disc.codegen.x86"):
            assert module == "disc.codegen.backend" or not named, f"{module} imports {named[0].name}"
            assert all(each.lazy for each in named), f"{module} imports {named[0].name} where it is loaded itself"


def reached(module: str) -> dict[str, str]:
    """Every module that importing `module` loads, and who imports it. What `disc` registers is left out: it is loaded when it is asked for."""
    found, pending = {module: module}, [module]
    while pending:
        current = pending.pop()
        for each in imports_of(current) if current in MODULES else ():
            if each.name not in found and not (current == "disc" and each.lazy):
                found[each.name] = current
                pending.append(each.name)
    return found


@pytest.mark.parametrize(
    "module",
    ["disc", "disc.artifact", *(name for name in MODULES if name.startswith(("disc.ral", "disc.serving")) and name not in COMPILING)],
)
def test_the_runtime_needs_neither_torch_nor_mlir(module: str) -> None:
    wrong = [f"{importer} imports {name}" for name, importer in reached(module).items() if name.split(".")[0] in ("torch", "torch_mlir")]
    assert not wrong, "\n".join(wrong)


def test_passes_of_a_file_need_no_torch() -> None:
    """It takes two seconds to load, of every golden test."""
    wrong = [f"{importer} imports {name}" for name, importer in reached("disc.cli.debug.opt").items() if name.split(".")[0] == "torch"]
    assert not wrong, "\n".join(wrong)


def test_nothing_imports_tools_tests_or_bench() -> None:
    wrong = [f"{module}:{each.line}" for module in MODULES for each in imports_of(module) if each.name.split(".")[0] in OUTSIDE]
    assert not wrong, wrong


def names_twice(paths: Iterable[Path]) -> list[str]:
    """Names of modules that several of the files have."""
    counts = Counter(path.stem for path in paths)
    return sorted(name for name, count in counts.items() if count > 1)


def test_modules_of_tests_and_tools_have_names_of_their_own() -> None:
    """pytest puts the folder of every test on the path, so `import programs` takes that of the folder that came last: of another test, whose
    module may set variables of the whole process."""
    files = [path for path in (*(ROOT / "tests").rglob("*.py"), *(ROOT / "tools").glob("*.py")) if path.stem.isidentifier()]
    assert names_twice(path for path in files if path.stem not in PYTESTS) == []
    assert names_twice([Path("tests/cuda/programs.py"), Path("tests/ral/programs.py"), Path("tests/models.py")]) == ["programs"]


def test_config_alone_reads_the_environment() -> None:
    reads = re.compile(r"\bos\.(environ|environb|getenv|getenvb|putenv)\b|from os import .*\b(environ|getenv)")
    assert [module for module, path in MODULES.items() if reads.search(path.read_text())] == ["disc.config"]


def test_python_is_parsed_under_one_lock() -> None:
    """Threads that parse at once break CPython 3.11's count of the depth (`disc/ir/python_source.py`)."""
    assert [module for module, path in MODULES.items() if re.search(r"\bast\.(parse|literal_eval)\(", path.read_text())] == [
        "disc.ir.python_source"
    ]


def test_nothing_is_pickled() -> None:
    loads = re.compile(r"\b(pickle|cPickle|dill|cloudpickle|joblib|shelve|marshal)\b(?!=False)|allow_pickle=True")
    text = {module: path.read_text().replace("allow_pickle=False", "") for module, path in MODULES.items()}
    assert [module for module in MODULES if loads.search(text[module])] == []


@pytest.mark.parametrize(
    ("importer", "imported", "wrong"),
    [
        ("disc.codegen.plan.rows", "disc.passes.fusion.stitch", True),
        ("disc.passes.fusion.stitch", "disc.passes.graph.simplify", True),
        ("disc.passes.pipelines", "disc.passes.graph.simplify", False),
        ("disc.passes.fusion.stitch", "disc.ir.graph", False),
        ("disc.ir.graph", "disc.ral.executable", True),
        ("disc.config", "disc.errors", False),
        ("disc.errors", "disc.config", True),
        ("disc.shapes.env", "disc.shapes.facts", False),
        ("disc.artifact.cache", "disc.shapes", True),
        ("disc.codegen.host.entry", "disc.codegen.x86.gemm.plan", True),
        ("disc.codegen.x86.gemm.plan", "disc.codegen.x86.conv.window", True),
        ("disc.codegen.build", "disc.codegen.x86.gemm.plan", False),
        ("disc.codegen.plan.rows", "disc.codegen.mlir.builder", True),
        ("disc.api", "disc", True),
        ("disc.serving.core", "disc.api", True),
        ("disc.serving.compile_service.job", "disc.api", False),
        ("disc.cli.run", "disc.api", False),
        ("disc.explain.report", "disc.ral.executable", False),
    ],
)
def test_the_rule_itself(importer: str, imported: str, wrong: bool) -> None:
    assert breaks_floors(importer, imported) is wrong
