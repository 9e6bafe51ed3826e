"""The operators and functions of a model: those that are not known are refused, all at once; functions are inlined."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import onnx
from onnx import defs, inliner

from disc.errors import UnsupportedFormatError, UnsupportedOp, UnsupportedOpError, printable

DEFAULT_DOMAINS = ("", "ai.onnx")
MAX_NODES = 1_000_000  # once all functions are inlined
_ROUNDS = 8  # functions of the standard that use others of its functions
Key = tuple[str, str]
HasRule = Callable[[str, str], bool]


def refuse_unknown(model: onnx.ModelProto, name: str, opset: int, has_rule: HasRule) -> set[Key]:
    """The operators that the standard defines as functions of others, and that have no rule.

    Raises: UnsupportedOpError naming every node whose operator has no rule and no definition.
    """
    own = {(each.domain, each.name) for each in model.functions}
    refused: list[UnsupportedOp] = []
    defined: set[Key] = set()
    bodies = (model.graph.node, *(each.node for each in model.functions))
    for number, node in ((i, node) for body in bodies for i, node in every_node(body)):
        key = (_domain(node.domain), node.op_type)
        if has_rule(*key) or (node.domain, node.op_type) in own or key in own:
            continue
        if _is_defined(node, opset):
            defined.add(key)
            continue
        refused.append(UnsupportedOp(f"onnx.{full_name(node)}", _reason(node, opset), place(name, node, number)))
    if refused:
        raise UnsupportedOpError(refused)
    return defined


def inlined(model: onnx.ModelProto, name: str, opset: int, defined: set[Key], has_rule: HasRule) -> onnx.ModelProto:
    """The model without calls of its own functions, and of those that the standard defines and that have no rule.

    Requires `check_functions`. Raises: UnsupportedFormatError for functions that the inliner refuses; UnsupportedOpError as
    `refuse_unknown`.
    """
    try:
        if model.functions:
            model = inliner.inline_local_functions(model, convert_version=False)
            defined = refuse_unknown(model, name, opset, has_rule)  # bodies, and calls that the inliner leaves
        for _ in range(_ROUNDS):
            if not defined:
                return model
            _state_defaults(model, opset, defined)
            model = _inlined_of_standard(model, defined)
            left = refuse_unknown(model, name, opset, has_rule)
            if left == defined:
                break
            defined = left
    except (RuntimeError, ValueError) as error:
        raise UnsupportedFormatError(f"{name}: its functions cannot be inlined: {first_line(error)}") from error
    raise UnsupportedOpError([UnsupportedOp(f"onnx.{op}", "the standard's definition of it does not apply") for _, op in sorted(defined)])


def _inlined_of_standard(model: onnx.ModelProto, defined: set[Key]) -> onnx.ModelProto:
    """Definitions that depend on the types of inputs ask for the type of one that is left out, too, whose name is empty."""
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("", onnx.TensorProto.FLOAT, []))
    model = inliner.inline_selected_functions(model, sorted(defined), inline_schema_functions=True)
    named = [each for each in model.graph.value_info if each.name]
    del model.graph.value_info[:]
    model.graph.value_info.extend(named)
    return model


def _state_defaults(model: onnx.ModelProto, opset: int, defined: set[Key]) -> None:
    """Gives nodes that are to be inlined the attributes that they leave to their defaults: the inliner takes these for absent."""
    for _, node in every_node(model.graph.node):
        if (_domain(node.domain), node.op_type) in defined:
            schema, given = defs.get_schema(node.op_type, opset), {each.name for each in node.attribute}
            stated = [each for name, each in schema.attributes.items() if name not in given and each.default_value.type]
            for each in stated:
                node.attribute.append(each.default_value)
                node.attribute[-1].name = each.name


def every_node(body: Iterable[onnx.NodeProto]) -> Iterator[tuple[int, onnx.NodeProto]]:
    """The nodes of a graph with their numbers in it, those of its subgraphs too."""
    for number, node in enumerate(body):
        yield number, node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
                yield from every_node(graph.node)


def place(model: str, node: onnx.NodeProto, number: int) -> str:
    """Where a node stands, as messages say it: "model.onnx:/encoder/Add:12", the last its number, from 1."""
    return f"{model}:{node_name(node, number)}:{number + 1}"


def node_name(node: onnx.NodeProto, number: int) -> str:
    """What a node is called in messages: its name, or its operator and number. number: from 0, in its graph."""
    return (printable(node.name) or f"{printable(node.op_type)}_{number + 1}").replace('"', "'")


def full_name(node: onnx.NodeProto) -> str:
    """The operator, with its domain where it is not the default one."""
    return printable(node.op_type if node.domain in DEFAULT_DOMAINS else f"{node.domain}.{node.op_type}")


def first_line(error: Exception) -> str:
    """The beginning of what a library says of a file."""
    return " ".join(printable(line) for line in str(error).strip().splitlines()[:4])[:400] or type(error).__name__


def _domain(domain: str) -> str:
    return "" if domain in DEFAULT_DOMAINS else domain


def _is_defined(node: onnx.NodeProto, opset: int) -> bool:
    if node.domain not in DEFAULT_DOMAINS or not defs.has(node.op_type, opset):
        return False
    schema = defs.get_schema(node.op_type, opset)
    return bool(schema.has_function or schema.has_context_dependent_function)  # pyright: ignore[reportAttributeAccessIssue]


def _reason(node: onnx.NodeProto, opset: int) -> str:
    if node.domain not in DEFAULT_DOMAINS:
        return "disc has no rule for this operator of the domain"
    return "disc has no rule for it" if defs.has(node.op_type, opset) else f"operator set {opset} has no such operator"


def check_functions(model: onnx.ModelProto, name: str) -> None:
    """Raises: UnsupportedFormatError for functions that call themselves, or that are more than MAX_NODES nodes once inlined."""
    functions = {(each.domain, each.name): each for each in model.functions}
    sizes: dict[Key, int] = {}

    def size(key: Key, calling: tuple[Key, ...]) -> int:
        if key in calling:
            raise UnsupportedFormatError(f"{name}: function '{printable(key[1])}' calls itself")
        if key not in sizes:
            sizes[key] = nodes(functions[key].node, (*calling, key))
        return sizes[key]

    def nodes(body: Iterable[onnx.NodeProto], calling: tuple[Key, ...]) -> int:
        count = 0
        for _, node in every_node(body):
            key = (node.domain, node.op_type)
            count += size(key, calling) if key in functions else 1
        if count > MAX_NODES:
            raise UnsupportedFormatError(f"{name}: more than {MAX_NODES} nodes once its functions are inlined")
        return count

    nodes(model.graph.node, ())
