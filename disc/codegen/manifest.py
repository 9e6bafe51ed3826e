"""The artifact's manifest of a program, and of the code for each target."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from torch_mlir import ir

from disc.codegen.host.entry import counter_names
from disc.codegen.host.flow import MOST_BYTES
from disc.codegen.host.program import Check, Program, Source
from disc.codegen.host.steps import Launch, Value, weight_name
from disc.codegen.plan.kernel import Version
from disc.codegen.plan.listing import Assembled
from disc.ir.graph import Node, Snapshot, parse_attributes
from disc.ir.op_table import BINDING
from disc.ir.ops import block_ops, main_block, main_function
from disc.ir.state import COMPLEX, ROW_MAJOR, complex_results, read_state
from disc.ir.symbols import KERNEL
from disc.ir.weights import Weight
from disc.shapes import Dim, ShapeEnv

VersionFacts = Mapping[str, Mapping[str, object]]
COMPLEX_OF = {"f32": "complex64", "f64": "complex128"}
LEAST_NUMBER = -(1 << 63)  # of an i64


def read_source(text: str) -> Source:
    """ "arg0.1" → dim 1 of argument 0; "arg3" → the value of argument 3."""
    argument, _, dim = text.removeprefix("arg").partition(".")
    return Source(int(argument), int(dim) if dim else None)


def input_names(module: ir.Module) -> list[str]:
    """The user's names of the inputs ("arg0" where the front end gave none)."""
    own = _argument_attributes(module)
    named = [ir.StringAttr(each["disc.name"]).value if each is not None and "disc.name" in each else None for each in own]
    return [f"arg{number}" if name is None else name for number, name in enumerate(named)]


def _argument_attributes(module: ir.Module) -> list[ir.DictAttr | None]:
    """Of each argument of @main."""
    function, count = main_function(module), len(main_block(module).arguments)
    if "arg_attrs" not in function.attributes:
        return [None] * count
    attributes = ir.ArrayAttr(function.attributes["arg_attrs"])
    return [ir.DictAttr(attributes[number]) for number in range(count)]


def manifest_tables(program: Program, module: ir.Module, env: ShapeEnv, spoiled: Collection[int]) -> Mapping[str, object]:
    """The part of the manifest that is the same for all targets: inputs, outputs, symbols. spoiled: the numbers of the inputs that the code
    of any target spoils."""
    state = read_state(module)
    written = {*(state.written if state is not None else ()), *program.updated, *spoiled}
    return {
        "inputs": [
            {
                **record,
                **({"written": True} if number in written else {}),
                **({"spoiled": True} if number in spoiled else {}),
            }
            for number, record in enumerate(input_records(module, program.arguments))
        ],
        "outputs": output_records(module, program.outputs),
        "symbols": [
            *(_symbol_entry(env, name, source) for name, source in program.sources.items()),
            *_made_entries(module, env),
        ],
        **_batch_entry(module),
        **_decisions_entry(module, program.checks),
        **_fixed_dims_entry(module),
        **_folded_entry(module),
    }


def state_table(
    module: ir.Module, program: Program, built_weights: Sequence[tuple[str, Weight]], first: Sequence[int]
) -> dict[str, object]:
    """The manifest's `state`, where the program has any. first: the numbers of the first values among the weights."""
    state = read_state(module)
    if state is None:
        return {}
    values = [built_weights[number][1] for number in first]
    buffers = [
        {"name": name, "dtype": value.dtype, "dims": list(value.array.shape), "weight": number}
        for name, value, number in zip(state.buffers, values, first, strict=True)
    ]
    table: dict[str, object] = {"buffers": buffers, "written": list(state.written), "seeded": state.seeded}
    return {"state": {**table, "updated": list(program.updated)} if program.updated else table}


def target_tables(program: Program, weights: Sequence[int], assembled: Assembled) -> dict[str, object]:
    """The part of one target: checks, kernels, counters, the numbers of the weights that its code counts, the library functions, and what
    made the kernels' code where that is another compiler."""
    return {
        "checks": [{"message": check.message} for check in program.checks],
        "kernels": _kernel_entries(program, assembled.versions),
        "counters": counter_names(program.launches),
        "weights": list(weights),
        **({"functions": program.library} if program.library else {}),
        **({"tools": dict(assembled.tools)} if assembled.tools else {}),
    }


def input_records(module: ir.Module, arguments: Sequence[Node] | Sequence[Value]) -> list[dict[str, object]]:
    """Names, types and dims of the arguments of @main."""
    found: list[dict[str, object]] = []
    for name, own, node in zip(input_names(module), _argument_attributes(module), arguments, strict=True):
        element, dims = _type_of_user(node, own is not None and COMPLEX in own)
        record: dict[str, object] = {"name": name, "dtype": element, "dims": [dim.const if dim.is_const else str(dim) for dim in dims]}
        if own is not None and ROW_MAJOR in own:
            record["row_major"] = ir.StringAttr(own[ROW_MAJOR]).value
        found.append(record)
    return found


def output_records(module: ir.Module, outputs: Sequence[Node] | Sequence[Value]) -> list[dict[str, object]]:
    """Types and dims of what @main returns."""
    found: list[dict[str, object]] = []
    whole = complex_results(module)
    for number, node in enumerate(outputs):
        element, dims = _type_of_user(node, number in whole)
        found.append({"name": f"output{number}", "dtype": element, "rank": len(dims), "dims": [str(dim) for dim in dims]})
    return found


def _type_of_user(value: Node | Value, is_complex: bool) -> tuple[str, Sequence[Dim]]:
    """Two floats in the last dim are one complex number."""
    return (COMPLEX_OF[value.element], value.dims[:-1]) if is_complex else (value.element, value.dims)


def symbol_records(env: ShapeEnv, sources: Mapping[str, str]) -> list[dict[str, object]]:
    """The base symbols."""
    return [_symbol_entry(env, name, read_source(text)) for name, text in sources.items()]


def _fixed_dims_entry(module: ir.Module) -> dict[str, object]:
    texts = parse_attributes(module.operation).get("disc.fixed_dims")
    return {"fixed_dims": list(texts)} if isinstance(texts, list | tuple) else {}


def _folded_entry(module: ir.Module) -> dict[str, object]:
    """What `fold-tables` did."""
    texts = parse_attributes(module.operation).get("disc.folded_tables")
    return {"folded_tables": list(texts)} if isinstance(texts, list | tuple) else {}


def _batch_entry(module: ir.Module) -> dict[str, object]:
    """What `find-batch-dim` found, or why it found none."""
    attributes = parse_attributes(module.operation)
    batch = attributes.get("disc.batch")
    if isinstance(batch, dict):
        return {"batch": {name: value if isinstance(value, str) else list(value) for name, value in batch.items()}}  # pyright: ignore[reportArgumentType]
    refusal = attributes.get("disc.batch_refusal")
    return {} if refusal is None else {"batch_refusal": refusal}


def _decisions_entry(module: ir.Module, checks: Sequence[Check]) -> dict[str, object]:
    """What became of the conditions under which the program was made."""
    counts = parse_attributes(module.operation).get("disc.decisions")
    if not isinstance(counts, dict):
        return {}
    checked = [check.message for check in checks if check.kind == "condition"]
    return {"decisions": {"proved": counts["proved"], "layout": counts["layout"], "checked": checked}}


def _symbol_entry(env: ShapeEnv, name: str, source: Source) -> dict[str, object]:
    """A dim of an input, or a number among the inputs, which nothing has to bound."""
    low, high = env.range(Dim.symbol(name))
    entry: dict[str, object] = {"name": name, "min": LEAST_NUMBER if low is None else low, "divisor": env.divisor(Dim.symbol(name))}
    if high is not None:
        entry["max"] = high
    entry["source"] = f"arg{source.argument}" + ("" if source.dim is None else f".{source.dim}")
    return entry


def _made_entries(module: ir.Module, env: ShapeEnv) -> list[dict[str, object]]:
    block = main_block(module)
    if not any(op.name in BINDING for op in block_ops(block)):
        return []
    return [_made_entry(env, node) for node in Snapshot(env).block(block).nodes if node.op in BINDING]


def _made_entry(env: ShapeEnv, node: Node) -> dict[str, object]:
    """A size that a kernel computes. Its range is checked where it is read, and 64 bits hold it with room."""
    symbol = Dim.symbol(str(node.attrs["symbol"]))
    low, high = env.range(symbol)
    entry: dict[str, object] = {"name": str(symbol), "min": -MOST_BYTES if low is None else low, "divisor": env.divisor(symbol)}
    return {**entry, **({} if high is None else {"max": high}), "source": KERNEL, "what": size_words(node)}


def size_words(node: Node) -> str:
    """What the size is that an op binds, in words: "the size of nonzero's result at model.py:12"."""
    where = f" at {node.line}" if node.line else ""
    return f"{node.attrs.get('what', 'the size')}{where}"


def _kernel_entries(program: Program, facts: VersionFacts) -> list[dict[str, object]]:
    made = {value: f"arg{number}" for number, value in enumerate(program.arguments)}
    for number, launch in enumerate(program.launches):
        made.update((value, f"kernel{number}") for value in launch.results)
    weight = weight_name("")
    return [
        kernel_entry(launch, [made.get(value) or value.name.removeprefix(weight) for value in launch.inputs], facts)
        for launch in program.launches
    ]


def kernel_entry(launch: Launch, operands: Sequence[str], facts: VersionFacts) -> dict[str, object]:
    """What `explain` needs of one launch. operands: what made each input: "arg0", "kernel3", "constant" or the name of a weight. facts: of
    the code of versions."""
    kernel = launch.kernel
    return {
        "name": launch.name, "kernel": kernel.name, "kind": kernel.kind, "ops": list(kernel.ops), "lines": list(kernel.lines),
        "modules": list(kernel.modules),
        "versions": [_version_entry(version, facts) for version in kernel.versions],
        "counters": list(launch.counters), "notes": list(kernel.notes), "tasks": str(kernel.tasks),
        "plan": kernel.plan, "scratch": str(kernel.scratch),
        "flops": str(kernel.flops) if kernel.flops is not None else None, "bytes": str(kernel.bytes) if kernel.bytes is not None else None,
        "inputs": [f"{value.element}[{', '.join(map(str, value.dims))}]" for value in launch.inputs],
        "results": [f"{value.element}[{', '.join(map(str, value.dims))}]" for value in launch.results],
        "operands": list(operands), **({"arithmetic": kernel.arithmetic} if kernel.arithmetic else {}),
    }  # fmt: skip


def _version_entry(version: Version, facts: VersionFacts) -> dict[str, object]:
    blocks, grid = version.blocks, dict[str, object]()
    if blocks is not None:
        grid = {"grid": [str(size) for size in blocks.grid], **({"persistent": True} if blocks.persistent else {})}
    predicted = {"predicted": str(version.predicted)} if version.predicted is not None else {}
    return {"function": version.function, "guard": version.describe(), **predicted, **grid, **facts.get(version.function, {})}
