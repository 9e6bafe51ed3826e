"""What a manifest says of a model that decides by values: its skeleton (the model without its tensor code) as instructions, the forms of
the blocks that it calls, and how its instances and results lie in tensors.

The skeleton's functions are lists of integers that `ral/src/tasks/` interprets: an instruction is the number of an op and its operands, by
`_ral.SKELETON_OPS`. Everything in it is checked when it is loaded (`tasks/verify.cc`).

Instances and results are *slots*. Position p of a slot of kind integer, truth, real, tensor is element p of its tensor; node: the number
of a node, -1 = None; optional: an integer, -1 = None; items: a list, the positions [offsets[p], offsets[p + 1]) of its part; parts: a
tuple, position p of each of its parts; nothing: None; choice: the place of a text or of another object among the slot's choices, -1 = None,
-2 = a text that is none of them, nor any that the code names. A slot's positions are those of its *domain*: 0 instances, 1 nodes, others
the elements of a list.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NotRequired, TypedDict, cast

from disc.artifact.structures import TableRecord

if TYPE_CHECKING:
    from disc.artifact.manifest import InputRecord, OutputRecord

KINDS = ("integer", "truth", "real", "node", "optional", "items", "parts", "tensor", "nothing", "choice")
INTEGER, TRUTH, REAL, NODE, OPTIONAL, ITEMS, PARTS, TENSOR, NOTHING, CHOICE = KINDS
DTYPES = {INTEGER: "i64", TRUTH: "i1", REAL: "f64", NODE: "i64", OPTIONAL: "i64", ITEMS: "i64", CHOICE: "i64"}
OTHER = -2  # of a slot of choices: a text that is none of them
TAGS = ("unset", "none", "bool", "int", "float", "text", "row", "list", "tuple", "range", "iter", "node", "part", "object", "dict")
BINARY = ("add", "sub", "mult", "div", "floordiv", "mod", "pow")
COMPARE = ("eq", "noteq", "lt", "lte", "gt", "gte", "is", "isnot", "in", "notin")
BUILTINS = ("len", "range", "enumerate", "zip", "zip_strict", "reversed", "list", "tuple", "int", "float", "bool", "abs", "min", "max",
            "sum", "any", "all", "sorted_by", "min_by", "max_by", "error", "tensor")  # fmt: skip
METHODS = ("append", "extend", "pop", "insert", "clear", "reverse", "copy", "get", "keys", "values", "items", "setdefault")
READS = ("bool", "float", "int", "item", "tolist")
TOKENS = ("row", "index", "float", "none", "bool", "int", "text", "object", "list", "tuple")
OUTPUTS = ("made", "given", "constant", "tuple", "list", "argument", "dict")
INSTANCES, NODES = 0, 1  # domains

Constant = Sequence[int]  # (tag, number); of a float its bits


class SlotRecord(TypedDict):
    """name: of its tensor, empty where it has none. domain: of its positions; inner: of a list's elements. table: of a tensor; parts:
    numbers of slots behind this one. tuple: of a list, that it was a tuple of any length. choices: constants, all of them texts or
    objects. keys: of results that are dicts, by their parts."""

    kind: str
    name: str
    domain: int
    inner: int
    table: int
    parts: list[int]
    tuple: bool
    choices: NotRequired[list[list[int]]]
    keys: NotRequired[list[str]]


LIKES = ("object", "tuple", "mapping")
EQUALITIES = ("identity", "nodes", "unknown")


class NodeRecord(TypedDict):
    """A class of nodes. fields: (attribute or key, slot, slot that says whether a node has it; -1: all have) of what it holds. like: what
    its objects are besides, parts: of a tuple, the slots of its fields; equality: what a node may equal besides itself: nothing, other
    nodes, or that is not known."""

    name: str
    fields: list[list[object]]
    like: str
    parts: list[int]
    equality: str


class FunctionRecord(TypedDict):
    """name, file: for errors. lines: (place in the code, line). memo: results may be used again for the same arguments."""

    name: str
    file: str
    parameters: int
    registers: int
    memo: bool
    code: list[int]
    lines: list[list[int]]


class SkeletonRecord(TypedDict):
    """language: what its numbers mean (`language_of`). name: of the parameter that an instance is. root, result: the slots of instances and
    results; kind: that of the class of a node, -1 where there is one class. rows: (table, base64) of what blocks compute of weights alone.
    The lists without a class of their own are those of `ral/src/python/tasks.cc`."""

    language: str
    name: str
    functions: list[FunctionRecord]
    constants: list[list[int]]
    texts: list[str]
    names: list[list[object]]
    objects: list[list[object]]
    tables: list[TableRecord]
    rows: list[list[object]]
    regions: list[list[object]]
    kinds: list[list[object]]
    slots: list[SlotRecord]
    results: list[SlotRecord]
    nodes: list[NodeRecord]
    root: int
    result: int
    kind: int
    domains: int


def language_of(ops: Sequence[tuple[str, str]]) -> str:
    """What the numbers of a skeleton mean to this version of disc, as a digest. Those that another version wrote may mean other ops, so
    that none of them are run. ops: `_ral.SKELETON_OPS`."""
    import hashlib  # `import disc` goes without it

    words = (tuple(ops), KINDS, TAGS, BINARY, COMPARE, BUILTINS, METHODS, READS, TOKENS, OUTPUTS, LIKES, EQUALITIES)
    return hashlib.sha256(repr(words).encode()).hexdigest()[:16]


def tensors_of(slots: Sequence[SlotRecord]) -> list[SlotRecord]:
    """The slots that have a tensor, in the order of inputs or outputs."""
    return [each for each in slots if each["name"]]


def malformed_skeleton(record: SkeletonRecord, inputs: Sequence[InputRecord], outputs: Sequence[OutputRecord]) -> str | None:
    """What is wrong with the record of an untrusted file whose values have their types; None if it may be true. The code itself is checked
    when it is loaded."""
    for key, values in (("slots", inputs), ("results", outputs)):
        slots = cast("list[SlotRecord]", record[key])
        found = tensors_of(slots)
        if [each["name"] for each in found] != [each["name"] for each in values] or len({each["name"] for each in found}) < len(found):
            return f"manifest.skeleton.{key}: not the inputs or outputs"
        for number, slot in enumerate(slots):
            problem = _slot(slot, number, slots, record)
            if problem is not None:
                return f"manifest.skeleton.{key}[{number}]: {problem}"
        for slot, value in zip(found, values, strict=True):
            dtype = record["tables"][slot["table"]]["dtype"] if slot["kind"] == TENSOR else DTYPES.get(slot["kind"])
            if value["dtype"] != dtype:
                return f"manifest.skeleton.{key}: {value['name']!r} is {value['dtype']}, not {dtype}"
    if not (0 <= record["root"] < len(record["slots"]) and 0 <= record["result"] < len(record["results"])):
        return "manifest.skeleton: no slot of instances, or none of results"
    for node in record["nodes"]:
        if node["like"] not in LIKES or node["equality"] not in EQUALITIES:
            return f"manifest.skeleton.nodes: {node['name']!r} is of no kind"
        for field in node["fields"]:
            if (
                len(field) != 3
                or not isinstance(field[0], str)
                or not isinstance(field[1], int)
                or not isinstance(field[2], int)
                or not 0 <= field[1] < len(record["slots"])
                or not -1 <= field[2] < len(record["slots"])
            ):
                return f"manifest.skeleton.nodes: {node['name']!r} has a field that is none"
    return None


def _slot(slot: SlotRecord, number: int, slots: Sequence[SlotRecord], record: SkeletonRecord) -> str | None:
    if slot["kind"] not in KINDS or bool(slot["name"]) != (slot["kind"] not in (PARTS, NOTHING)):
        return f"of kind {slot['kind']!r}"
    if slot["kind"] == TENSOR and not 0 <= slot["table"] < len(record["tables"]):
        return "of no table"
    if any(not number < part < len(slots) for part in slot["parts"]) or (slot["kind"] == ITEMS and len(slot["parts"]) != 1):
        return "parts that it cannot have"
    keys = slot.get("keys", [])
    if keys and (slot["kind"] != PARTS or len(keys) != len(slot["parts"]) or not all(isinstance(each, str) for each in keys)):
        return "keys that it cannot have"
    choices = slot.get("choices", [])
    if bool(choices) != (slot["kind"] == CHOICE) or any(not _is_choice(each, choices[0], record) for each in choices):
        return "choices that it cannot have"
    return None


def _is_choice(choice: Sequence[int], first: Sequence[int], record: SkeletonRecord) -> bool:
    held: dict[int, Sequence[object]] = {TAGS.index("text"): record["texts"], TAGS.index("object"): record["objects"]}
    return len(choice) == 2 and choice[0] in held and choice[:1] == first[:1] and 0 <= choice[1] < len(held[choice[0]])


def choices_of(record: SkeletonRecord, slot: SlotRecord) -> list[str]:
    """The texts that a slot's choices are, or the names of its objects ("Kind.LEAF"), by their numbers."""
    found = slot.get("choices", [])
    return [record["texts"][number] if has_texts(slot) else str(record["objects"][number][1]) for _, number in found]


def has_texts(slot: SlotRecord) -> bool:
    """Whether a slot's choices are texts."""
    return any(tag == TAGS.index("text") for tag, _ in slot.get("choices", []))


# --- text ---------------------------------------------------------------------------------------------------------------------------


def skeleton_text(record: SkeletonRecord, ops: Sequence[tuple[str, str]]) -> Iterator[str]:
    """The functions as text, an instruction a line. ops: `_ral.SKELETON_OPS`."""
    for number, function in enumerate(record["functions"]):
        memo = " memo" if function["memo"] else ""
        yield f"func @{number} {function['name']} ({function['parameters']} parameters, {function['registers']} registers){memo}"
        lines = {place: line for place, line in function["lines"]}
        at, code = 0, function["code"]
        while at < len(code):
            name, operands = ops[code[at]]
            parts, behind = _operands(record, name, operands, code, at + 1)
            line = f"  # line {lines[at]}" if at in lines else ""
            yield f"  {at:4}: {name} {', '.join(parts)}{line}"
            at = behind


def _operands(record: SkeletonRecord, op: str, operands: str, code: Sequence[int], at: int) -> tuple[list[str], int]:
    parts: list[str] = []
    for operand in operands:
        value = code[at]
        at += 1
        if operand in "dr":
            parts.append(f"%{value}")
        elif operand == "c":
            parts.append(_constant_text(record, record["constants"][value]))
        elif operand == "n":
            parts.append(f'"{record["names"][value][0]}"')
        elif operand == "t":
            parts.append(f"^{value}")
        elif operand == "i":
            parts.append(_number_text(record, op, value))
        else:
            opened, closed = ("(", ")") if operand == "*" else ("-> (", ")")
            parts.append(opened + ", ".join(f"%{each}" for each in code[at : at + value]) + closed)
            at += value
    return parts, at


_NUMBERED = {"binary": BINARY, "compare": COMPARE, "builtin": BUILTINS, "builtin_of": BUILTINS, "method": METHODS, "read": READS}


def _number_text(record: SkeletonRecord, op: str, value: int) -> str:
    if op == "call_block":
        return f"@{record['regions'][value][0]}"
    return _NUMBERED[op][value] if op in _NUMBERED else str(value)


def _constant_text(record: SkeletonRecord, constant: Constant) -> str:
    tag = TAGS[int(constant[0])]
    number = int(constant[1])
    if tag == "text":
        return repr(record["texts"][number])
    if tag == "object":
        return f"<{record['objects'][number][1]}>"
    if tag == "float":
        return repr(struct.unpack("<d", struct.pack("<q", number))[0])
    return {"none": "None", "bool": str(bool(number))}.get(tag, str(number))
