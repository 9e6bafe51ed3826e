"""Models that decide by values, saved and loaded: tensors, objects and nested JSON give what eager does; what cannot be, by its own error."""

from __future__ import annotations

import copy
import json
import random
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from dynamic_models import CASES, DRNN, WORDS, Node, StackRNN, sentences, shapes
from torch import nn

import disc
from disc.artifact import file as artifact
from disc.artifact.skeletons import BINARY, BUILTINS, COMPARE, METHODS, READS, SkeletonRecord, skeleton_text
from disc.cli.main import main
from disc.config import Options
from disc.errors import (
    ArtifactError,
    CancelledError,
    CycleError,
    InputRankError,
    InputTypeError,
    InstanceError,
    MissingFieldError,
    NodeIndexError,
    NodeKindError,
    SaveError,
    ShapeConstraintError,
    StructureError,
    TooManyNodesError,
)
from disc.ral import _ral
from disc.ral.executable import Executable, stopping
from disc.ral.flat_values import flat_instances, results_of
from disc.ral.skeletal import SkeletalProgram, native_skeleton

HIDDEN = 8
OPTIONS = Options(cache=False, threads=1)


def saved(module: nn.Module, instances: list[Any], path: Path) -> Executable:
    model: Any = disc.batched(module.eval(), options=OPTIONS)
    model.save(path, instances)
    return disc.load(path)


def close(found: Any, expected: Any) -> None:
    """found: NumPy arrays, or dicts, lists and tuples of them."""
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        close([*found.values()], [*expected.values()])
    elif isinstance(expected, tuple | list):
        assert type(found) is type(expected) and len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            close(one, other)
    elif isinstance(expected, torch.Tensor):
        np.testing.assert_allclose(np.asarray(found), expected.detach().numpy(), rtol=1e-4, atol=1e-5)
    else:
        assert found == expected and type(found) is type(expected)


def eager(module: nn.Module, instances: list[Any]) -> list[Any]:
    with torch.no_grad():
        return [module(each) for each in instances]


@dataclass(frozen=True)
class Saved:
    module: nn.Module
    path: Path
    program: Executable


def made(kind: Any, instances: list[Any], folder: Path) -> Saved:
    torch.manual_seed(0)
    module = kind(HIDDEN).eval()
    return Saved(module, folder / "model.disc", saved(module, instances, folder / "model.disc"))


@pytest.fixture(scope="module")
def drnn(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return made(DRNN, shapes(12), tmp_path_factory.mktemp("drnn"))


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return made(StackRNN, sentences(12), tmp_path_factory.mktemp("stack"))


def nested(node: Node) -> dict[str, Any]:
    return {"parents": [nested(each) for each in node.parents]}


@pytest.mark.parametrize("count", [0, 1, 8, 64])
def test_trees_that_are_made_from_the_top(drnn: Saved, count: int) -> None:
    instances = shapes(count, count)
    expected = eager(drnn.module, instances)
    assert [each.name for each in drnn.program.inputs] == ["shape.root", "shape.parents.offsets", "shape.parents"]
    close(drnn.program.batch(instances), expected)
    close(drnn.program.batch([nested(each) for each in instances]), expected)
    record: SkeletonRecord = drnn.program.manifest["skeleton"]  # pyright: ignore[reportTypedDictNotRequiredAccess]
    arrays = flat_instances(record, instances, 1 << 20)
    found: Any = drnn.program(*arrays)
    assert [each.name for each in drnn.program.outputs] == ["output0.offsets", "output0"]
    close(results_of(record, found, count), expected)
    tensors: Any = drnn.program(*map(torch.from_numpy, arrays))
    assert all(isinstance(each, torch.Tensor) for each in tensors)


@pytest.mark.parametrize("count", [0, 1, 8, 64])
def test_actions_that_are_read(stack: Saved, count: int) -> None:
    instances = sentences(count, count, most=9)
    expected = eager(stack.module, instances)
    assert [each.name for each in stack.program.inputs] == ["words.offsets", "words"]
    close(stack.program.batch(instances), expected)
    offsets = np.cumsum([0, *map(len, instances)])
    found: Any = stack.program(offsets, np.array([word for each in instances for word in each], np.int64))
    assert np.shape(found) == (count, HIDDEN)
    close(list(np.asarray(found)), expected)


SLOW = ["DAG-RNN", "GraphRNN", "BiRNN", "LSTM", "GRU", "NestedRNN", "exits"]


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.long) for name in SLOW])
def test_models(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make, instances = CASES[name]
    module = make(HIDDEN).eval()
    program = saved(module, instances(8), tmp_path / "model.disc")
    for given in (instances(10), instances(1)):
        close(program.batch(given), eager(module, given))


def test_lists_are_as_long_and_calls_as_deep_as_they_like(drnn: Saved, stack: Saved) -> None:
    node = Node(0)
    for _ in range(5000):
        node = Node(0, [node])
    (found,) = drnn.program.batch([node])
    assert len(found) == 5001 and all(np.isfinite(each).all() for each in found)  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues]
    close(stack.program.batch([[], [1], list(range(19)) * 8]), eager(stack.module, [[], [1], list(range(19)) * 8]))


class Shared(nn.Module):
    """Counts what is computed: each node's number is read. A node that is reached twice would take time without end."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.emb, self.w = nn.Embedding(WORDS, hidden), nn.Linear(hidden, hidden)

    def forward(self, node):
        x = torch.tanh(self.emb.weight[node.word])
        for parent in node.parents:
            x = torch.tanh(self.w(x + self(parent)))
        if float(x.sum()) > 0.0:
            return x * 0.5
        return x


def test_shared_nodes_are_computed_once_and_cycles_are_found(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Shared(HIDDEN).eval()
    program = saved(module, shapes(12), tmp_path / "model.disc")
    node = Node(1)
    for _ in range(60):  # 2 ** 60 paths
        node = Node(2, [node, node])
    found: Any = program.batch([node])[0]
    assert np.isfinite(found).all()
    top = Node(3)
    top.parents = [Node(1, [top])]
    with pytest.raises(InstanceError) as caught:
        program.batch([Node(1), top])
    assert isinstance(caught.value.failures[1], CycleError)
    assert "test_saved_skeletons.py" in str(caught.value)
    close(caught.value.results[0], eager(module, [Node(1)])[0])


# --- what fails ---------------------------------------------------------------------------------------------------------------------


def test_an_instance_that_fails_leaves_the_others_theirs(stack: Saved) -> None:
    good, bad = sentences(3, 5), [1, WORDS + 1, 2]
    with pytest.raises(InstanceError) as caught:
        stack.program.batch([good[0], bad, *good[1:]])
    assert list(caught.value.failures) == [1]
    assert f"index {WORDS + 1} is out of range" in str(caught.value.failures[1])
    close([caught.value.results[0], *caught.value.results[2:]], eager(stack.module, good))
    offsets = np.array([0, 3])
    with pytest.raises(StructureError, match=f"instance 0 failed: .*index {WORDS + 1} is out of range"):
        stack.program(offsets, np.array(bad))


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


GOOD = (numbers(0), numbers(0, 2, 2, 2), numbers(1, 2))  # root, offsets, parents


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({0: numbers(3)}, NodeIndexError, "input 'shape.root' [0]: 3 is no node; there are 3"),
        ({2: numbers(1, -2)}, NodeIndexError, "input 'shape.parents' [1]: -2 is no node"),
        ({1: numbers(0, 2, 1, 2)}, StructureError, "input 'shape.parents.offsets' has offsets that do not ascend from 0"),
        ({1: numbers(1, 2, 2, 2)}, StructureError, "has offsets that do not ascend from 0"),
        ({1: numbers(0, 2, 2, -3)}, StructureError, "has offsets that do not ascend from 0"),
        ({1: numbers()}, ShapeConstraintError, "has no offsets"),
        ({1: numbers(0, 2, 2, 3)}, ShapeConstraintError, "input 'shape.parents' has 2 elements where others have 3"),
        ({0: np.zeros(1, np.int32)}, InputTypeError, "input 'shape.root' must be int64, got int32"),
        ({0: np.zeros((1, 1), np.int64)}, InputRankError, "input 'shape.root' must have 1 dims, got 2"),
        ({0: "text"}, InputTypeError, "'shape.root' is no tensor but a str"),
        ({0: numbers(-1)}, StructureError, "None has no attribute 'parents'"),
        ({2: numbers(0, 2)}, StructureError, "there is a cycle: nodes 0 -> 0"),
    ],
)
def test_bad_tensors(drnn: Saved, change: dict[int, Any], error: type[Exception], message: str) -> None:
    drnn.program(*GOOD)
    with pytest.raises(error) as caught:
        drnn.program(*(change.get(place, each) for place, each in enumerate(GOOD)))
    assert message in str(caught.value)
    assert type(caught.value) is error
    drnn.program(*GOOD)


@pytest.mark.parametrize(
    ("instance", "error", "message"),
    [
        ({"parents": 3}, NodeKindError, "shape[0].parents: it is a int, not a list"),
        ({"parents": [3]}, NodeKindError, "shape[0].parents[0]: it is '3', not a node"),
        ({"parent": []}, NodeKindError, "shape[0]: it has 'parent'; nodes have parents"),
        (3, NodeKindError, "shape[0]: it is '3', not a node"),
        (object(), MissingFieldError, "shape[0]: it has no 'parents'"),
    ],
)
def test_bad_instances(drnn: Saved, instance: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        drnn.program.batch([instance])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("instance", "message"),
    [
        (["one"], "words[0][0]: it is 'one', not an integer"),
        ([1.5], "it is '1.5', not an integer"),
        ([True], "not an integer"),
        ([np.bool_(True)], "not an integer"),
        (3, "not a list"),
    ],
)
def test_bad_lists(stack: Saved, instance: Any, message: str) -> None:
    with pytest.raises(NodeKindError) as caught:
        stack.program.batch([instance])
    assert message in str(caught.value)


def test_other_misuse(drnn: Saved) -> None:
    with pytest.raises(InputTypeError, match="a list of instances, not a int"):
        drnn.program.batch(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputRankError, match=r"expected 3 inputs \(shape.root, shape.parents.offsets, shape.parents\), got 1"):
        drnn.program(numbers(1))
    program = disc.load(drnn.path)
    program.most_nodes = 2
    with pytest.raises(TooManyNodesError, match="3 nodes; at most 2"):
        program(*GOOD)
    with pytest.raises(TooManyNodesError, match="more than 2 nodes"):
        program.batch([Node(0, [Node(1), Node(2)])])


class Odd(nn.Module):
    """Goes on until a value says otherwise; derived classes do what cannot be saved."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(HIDDEN, HIDDEN)

    def run(self, words, x):
        for _ in words:
            x = torch.tanh(self.w(x))
            if float(x.sum()) > 9.0:
                break
        return x


class MakesSet(Odd):
    def forward(self, words):
        return self.run(words, torch.ones(HIDDEN)) * len({*words})


class CallsMethod(Odd):
    def forward(self, words):
        place = words.index(1)
        return self.run(words, torch.ones(HIDDEN)) * place


class MakesText(Odd):
    def forward(self, words):
        count = len(f"{words}")
        return self.run(words, torch.ones(HIDDEN)) * count


class ReturnsDict(Odd):
    def forward(self, words):
        return self.found(self.run(words, torch.ones(HIDDEN)))

    def found(self, x):
        return {1: x * 2.0}


class DrawsNumbers(Odd):
    def forward(self, words):
        return self.run(words, torch.ones(HIDDEN)) + torch.rand(HIDDEN)


class KeepsStates(Odd):
    seen: ClassVar[list[torch.Tensor]] = []

    def forward(self, words):
        x = self.run(words, torch.ones(HIDDEN))
        self.seen.append(x)
        return x


class Guards(Odd):
    def forward(self, words):
        try:
            return self.run(words, torch.ones(HIDDEN))
        finally:
            pass


class ChangesWeight(Odd):
    def forward(self, words):
        with_words = self.run(words, torch.ones(HIDDEN))
        self.w.bias.mul_(0.5)
        return with_words


ORDERED = (DrawsNumbers, KeepsStates, Guards, ChangesWeight)


@pytest.mark.parametrize("kind", ORDERED)
def test_the_line_of_what_keeps_an_order_is_named(kind: Any, tmp_path: Path) -> None:
    model: Any = disc.batched(kind(), options=OPTIONS)
    first = kind.forward.__code__.co_firstlineno
    lines = "|".join(str(line) for line in range(first, first + 6))
    with pytest.raises(SaveError, match=rf"{re.escape(__file__)}:({lines})\b"):
        model.save(tmp_path / "model.disc", [[1, 2], [1], [3, 1, 1]])
    assert re.search(rf"{re.escape(__file__)}:({lines})\b", model.explain().splitlines()[0])


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (MakesSet, r"needs Python: `\{\*words\}`"),
        (CallsMethod, r"`place = words.index\(1\)` needs Python: the call `words.index\(1\)`"),
        (MakesText, r"`count = len\(.*\)` needs Python"),
        (ReturnsDict, r"test_saved_skeletons.py:\d+: tensor code there makes a record, or a dict of keys that are no texts"),
    ],
)
def test_what_needs_python_is_named(kind: Any, message: str, tmp_path: Path) -> None:
    model: Any = disc.batched(kind(), options=OPTIONS)
    with pytest.raises(SaveError, match=message):
        model.save(tmp_path / "model.disc", [[1, 2], [1], [3, 1, 1]])
    assert not (tmp_path / "model.disc").exists()


class Decides(Odd):
    def forward(self, words):
        return self.run(words, torch.ones(HIDDEN))


class HasDefaults(Odd):
    def forward(self, words, scale=2.0, most=None):
        x = self.run(words, torch.ones(HIDDEN))
        return x * scale if most is None else x


class SetsDefault(Odd):
    """The recursion gives what an instance does not, by position or by name."""

    def forward(self, words, depth=0, *, scale=2.0, below=None):
        x = torch.ones(HIDDEN) * scale if below is None else torch.tanh(below) * scale
        if not words:
            return x if depth < 2 else self.w(x)
        if depth == 2:
            return self.run(words, self(words[1:], depth + 1, below=x))
        return self.run(words, self(words[1:], depth=depth + 1, scale=scale * 0.5))


@pytest.mark.parametrize("kind", [HasDefaults, SetsDefault])
def test_parameters_with_defaults(kind: Any, tmp_path: Path) -> None:
    """An instance is one argument; the interpreter counted the others as missing, then refused calls that gave them."""
    instances = [[1, 2], [], [3, 1, 1], [1], [1, 2, 3, 4, 5]]
    torch.manual_seed(0)
    module = kind().eval()
    model: Any = disc.batched(module, options=OPTIONS)
    for _ in range(8):
        close(model.batch(instances), eager(module, instances))
    assert model.stats()["interpreted"]
    model.save(tmp_path / "model.disc", instances)
    close(disc.load(tmp_path / "model.disc").batch(instances), eager(module, instances))


class Tags(Odd):
    """Functions of its own, texts that name attributes and are results, tensors of numbers, lists of lists."""

    def __init__(self) -> None:
        super().__init__()
        self.scale_noun, self.scale_verb, self.scale_other = 0.5, 2.0, 1.0
        self.words = nn.Embedding(20, HIDDEN)

    def forward(self, words):
        kinds = ["noun" if each % 3 else "verb" for each in words]
        mean = self.words(torch.tensor(words)).mean(0)
        heads, scale, memo = [0] * len(words), 1.0, {}
        join = lambda a, b: torch.tanh(self.w(a + b)) * scale  # noqa: E731

        def leaf(at):
            return self.words.weight[words[at]] * getattr(self, "scale_" + kinds[at])

        def best(low, high=None, *, depth=0):
            if (low, high) in memo:
                return memo[low, high]
            heads[low] = heads[low] + depth
            found = leaf(low) if high is None else join(best(low, depth=1), best(low + 1, high if low + 2 < high else None))
            memo[low, high] = found
            return found

        first = best(0, len(words) - 1 if len(words) > 1 else None)
        scale = 0.25
        second = join(first, mean) + best(0, len(words) - 1 if len(words) > 1 else None)
        counts, names = zip(*[(count, kind) for count, kind in enumerate(kinds)], strict=True)
        ids = torch.tensor([counts[:1], [len(words)]], dtype=torch.float32)
        side = "right" if float(second.sum()) > 0 else "left"
        last = names[-1] if max(*counts, 1) > 1 else None
        return {"side": side, "kinds": kinds, "last": last, "heads": heads, "x": second + ids.sum(), "ids": ids}


def test_functions_of_its_own_texts_and_tensors_of_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = Tags().eval()
    sentences = [[3, 1, 2], [5], [1, 2], [6, 6, 7], [9, 10, 3], [4], [2, 5]]
    model: Any = disc.batched(module, options=OPTIONS)
    for _ in range(5):
        close(model.batch(sentences), eager(module, sentences))
    assert model.stats()["interpreted"] and "skeleton: native; " in model.explain()
    model.save(tmp_path / "model.disc", sentences)
    program = disc.load(tmp_path / "model.disc")
    fresh = [[8, 11, 12], [13, 1], [12]]
    close(program.batch(fresh), eager(module, fresh))
    with pytest.raises(InstanceError, match="a tensor of another shape than the model was made for"):
        program.batch([[1, 2, 3, 4]])
    assert main(["inspect", str(tmp_path / "model.disc")]) == 0
    assert re.search(r"^side: 0 .* 'left'", capsys.readouterr().out, re.M)


class ManyKinds(Odd):
    def forward(self, tree):
        if not tree["kids"]:
            return torch.ones(HIDDEN)
        joined = torch.stack([self(each) for each in tree["kids"]]).sum(0)
        return torch.tanh(self.w(joined)) * len(tree["kind"])


def test_more_blocks_of_a_place_than_run_without_being_saved(tmp_path: Path) -> None:
    leaf = {"kind": "", "kids": []}
    trees = [{"kind": kind, "kids": [leaf] * count} for kind in ("a", "bb", "ccc") for count in (1, 2, 3)]
    module = ManyKinds().eval()
    program = saved(module, trees, tmp_path / "model.disc")
    close(program.batch(trees), eager(module, trees))


class ReturnsWeight(Odd):
    def __init__(self, buffer: bool) -> None:
        super().__init__()
        none = torch.zeros(HIDDEN)
        if buffer:
            self.register_buffer("none", none)
        else:
            self.none = nn.Parameter(none)

    def forward(self, words):
        return self.run(words, torch.ones(HIDDEN)) if words else self.none


@pytest.mark.parametrize("buffer", [False, True])
def test_a_weight_as_the_result_is_refused(buffer: bool, tmp_path: Path) -> None:
    """It was saved, and every such instance failed."""
    with pytest.raises(SaveError, match=r"returns its weight 'none' itself; let it return a copy, `none.clone\(\)`"):
        disc.batched(ReturnsWeight(buffer), options=OPTIONS).save(tmp_path / "model.disc", [[1, 2], [], [3]])  # pyright: ignore[reportCallIssue]


def test_instances_that_tensors_cannot_say(tmp_path: Path) -> None:
    model: Any = disc.batched(Decides(), options=OPTIONS)
    with pytest.raises(SaveError, match=r"has not run|nothing has run"):
        model.save(tmp_path / "model.disc")
    with pytest.raises(SaveError, match="words is bytes, which tensors cannot say"):
        model.save(tmp_path / "model.disc", [[b"a"], [b"b"]])


# --- the artifact -------------------------------------------------------------------------------------------------------------------


def test_the_lists_of_numbers_are_those_of_the_machine() -> None:
    text = (Path(disc.__file__).parent / "ral/src/tasks/code.h").read_text()
    for name, own in (("Binary", BINARY), ("Compare", COMPARE), ("Builtin", BUILTINS), ("Method", METHODS), ("Read", READS)):
        members = text.partition(f"enum {name} : int32_t {{")[2].partition("}")[0].split(",")
        assert len(members) == len(own) + 1, name


def test_text(stack: Saved) -> None:
    record: SkeletonRecord = stack.program.manifest["skeleton"]  # pyright: ignore[reportTypedDictNotRequiredAccess]
    text = "\n".join(skeleton_text(record, _ral.SKELETON_OPS))
    for line in (
        "func @0 StackRNN.forward (2 parameters",
        "read %",
        "method %",
        "call_block @StackRNN.forward:",
        "builtin %",
        "jump_if_not %",
    ):
        assert line in text, line


def test_it_is_saved_again_and_described(stack: Saved, tmp_path: Path) -> None:
    duplicate = tmp_path / "copy.disc"
    stack.program.save(duplicate)
    assert duplicate.read_bytes() == stack.path.read_bytes()
    again = disc.load(duplicate, threads=1)
    again(numbers(0, 2), numbers(1, 2))
    assert again.stats()["calls"] == 1


def test_commands(drnn: Saved, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    instances = shapes(3, 2)
    given, path = tmp_path / "shapes.json", str(drnn.path)
    given.write_text(json.dumps([nested(each) for each in instances]))
    assert main(["run", path, "--input", str(given), "--json"]) == 0
    assert "output0.offsets" in capsys.readouterr().out
    assert main(["inspect", path]) == 0
    assert "read %" in capsys.readouterr().out
    assert main(["verify", path]) == 0
    given.write_text('[{"parents": 3}]')
    assert main(["run", path, "--input", str(given)]) == 1
    assert "not a list" in capsys.readouterr().err


ALONE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torch_mlir", "dynamic_models"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import numpy as np
import disc
np.save(sys.argv[2], disc.load(sys.argv[1]).batch([[1, 2, 3], [4]]))
assert "torch" not in sys.modules
"""


def test_without_torch_and_without_source(stack: Saved, tmp_path: Path) -> None:
    result = tmp_path / "h.npy"
    subprocess.run([sys.executable, "-c", ALONE, stack.path, result], check=True, timeout=100)
    close(list(np.load(result)), eager(stack.module, [[1, 2, 3], [4]]))


def test_records_that_are_changed_are_refused_or_run(drnn: Saved) -> None:
    """Whatever numbers a file has, loading and running it raises errors of its own, or gives some result."""
    context: Any = drnn.program.context
    assert isinstance(context, SkeletalProgram)
    record: SkeletonRecord = drnn.program.manifest["skeleton"]  # pyright: ignore[reportTypedDictNotRequiredAccess]
    draw = random.Random(1)
    refused = 0
    for _ in range(1500):
        changed = copy.deepcopy(record)
        code = draw.choice(changed["functions"])["code"]
        code[draw.randrange(len(code))] = draw.choice([-1, 0, 1, 2, 3, 5, 17, len(code), 1 << 30])
        try:
            native_skeleton(changed)
        except (ValueError, TypeError):
            refused += 1
    assert 300 < refused < 1500


def test_a_file_with_another_skeleton_is_refused(drnn: Saved, tmp_path: Path) -> None:
    view = artifact.read_whole(drnn.path)
    manifest = artifact.parse_manifest(artifact.text_sections(view))
    skeleton: SkeletonRecord = manifest["skeleton"]  # pyright: ignore[reportTypedDictNotRequiredAccess]
    skeleton["functions"][0]["code"][0] = 99
    path = tmp_path / "model.disc"
    artifact.write_structures(path, manifest, artifact.block_contents(view))
    with pytest.raises(ArtifactError, match=r"its skeleton cannot be run: a skeleton with function DRNN\.forward: no instruction at 0"):
        disc.load(path)
    skeleton["language"] = "of another version"
    artifact.write_structures(path, manifest, artifact.block_contents(view))
    with pytest.raises(ArtifactError, match="its skeleton was written by another version of disc: save the model again with this one"):
        disc.load(path)


class Counts(nn.Module):
    """As many steps as the instance says."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, count):
        x, steps = torch.tanh(self.w.weight[0]), 0
        while steps < count:
            steps += 1
        if float(x.sum()) < 1e9:
            steps += 1
        return torch.tanh(self.w(x)), steps


def test_a_loop_without_an_end_is_ended_from_outside(tmp_path: Path) -> None:
    program = saved(Counts(), [1, 2, 3], tmp_path / "model.disc")
    asked: list[int] = []

    def enough() -> bool:
        asked.append(1)
        return len(asked) > 2

    with stopping(enough), pytest.raises(CancelledError):
        program.batch([1 << 60])
    assert [each[1] for each in program.batch([4, 5])] == [5, 6]  # pyright: ignore[reportIndexIssue]
