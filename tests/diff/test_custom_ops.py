"""Custom ops: run by PyTorch, by a C function, by a lowering; and what goes wrong with each."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import disc
from disc.errors import ArtifactError, CustomOpError, DiscError, ExportError, UnsupportedOpError
from disc.frontend import dynamo, user_lowerings
from disc.ral import custom_functions

ROWS = ({0: Dim("rows")}, {0: Dim("rows")})
KEPT: list[Tensor] = []


@torch.library.custom_op("disctest::scale", mutates_args=())
def scale(x: Tensor, k: float, n: int) -> Tensor:
    return x * k + n


@scale.register_fake
def _(x: Tensor, k: float, n: int) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("disctest::two", mutates_args=())
def two(x: Tensor, sizes: list[int], dtype: torch.dtype, text: str | None = None) -> tuple[Tensor, Tensor]:
    return x.t().sum(1).to(dtype) + sizes[1], (x > 0).t()


@two.register_fake
def _(x: Tensor, sizes: list[int], dtype: torch.dtype, text: str | None = None) -> tuple[Tensor, Tensor]:
    return x.new_empty((x.shape[1],), dtype=dtype), x.new_empty((x.shape[1], x.shape[0]), dtype=torch.bool)


@torch.library.custom_op("disctest::pieces", mutates_args=())
def pieces(xs: list[Tensor], gain: Tensor | None) -> list[Tensor]:
    return [x + 1 if gain is None else x * gain for x in xs]


@pieces.register_fake
def _(xs: list[Tensor], gain: Tensor | None) -> list[Tensor]:
    return [torch.empty_like(x) for x in xs]


@torch.library.custom_op("disctest::add_to", mutates_args=("x",))
def add_to(x: Tensor, y: Tensor) -> None:
    x += y


@torch.library.custom_op("disctest::add_and_sum", mutates_args=("x",))
def add_and_sum(x: Tensor, y: Tensor) -> Tensor:
    x += y
    return x.sum()


@add_and_sum.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    return x.new_empty(())


@torch.library.custom_op("disctest::wrong", mutates_args=())
def wrong(x: Tensor, how: Tensor) -> Tensor:
    kind = int(how)
    if kind == 0:
        raise ValueError("no such thing")
    if kind == 1:
        return x.new_zeros(3, 3)
    if kind == 2:
        return x.double()
    if kind == 3:
        x.add_(1)
    if kind == 4:
        raise KeyboardInterrupt
    if kind == 5:
        KEPT.append(x[:, 1:])
    return x.clone()


@wrong.register_fake
def _(x: Tensor, how: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("disctest::without_fake", mutates_args=())
def without_fake(x: Tensor) -> Tensor:
    return x + 1


@torch.library.custom_op("disctest::fake_of_data", mutates_args=())
def fake_of_data(x: Tensor) -> Tensor:
    return x + 1


@fake_of_data.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(int(x.sum()))


@torch.library.custom_op("disctest::positive", mutates_args=())
def positive(x: Tensor) -> Tensor:
    return x[x > 0]


@positive.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


@torch.library.custom_op("disctest::log", mutates_args=())
def log(x: Tensor) -> None:
    raise AssertionError("PyTorch removes it")


@log.register_fake
def _(x: Tensor) -> None:
    return None


class Calls(nn.Module):
    def __init__(self, body: Callable[..., object]) -> None:
        super().__init__()
        self.body, self.weight = body, nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor, y: Tensor | None = None) -> object:
        return self.body(self, x) if y is None else self.body(self, x, y)


def everything(model: Calls, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    z = x * 2 + model.weight
    first, second = pieces([z, y], None)
    return (scale(z, 2.0, x.shape[0]) + y, *two(z.t().contiguous().t(), [1, x.shape[0]], torch.float64), scale(model.weight, 1.0, 3),
            scale(x.bfloat16(), -0.5, -7), first - second, pieces([y], model.weight)[0])  # fmt: skip


def writing(model: Calls, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    z = x * 2
    add_to(z, y)
    total = add_and_sum(z, y)
    return scale(z, 2.5, x.shape[0]) + scale(y, 1.0, -5), total


def inputs(rows: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 4), torch.randn(rows, 4)


@pytest.fixture
def nothing_registered() -> Iterator[None]:
    yield
    custom_functions._registered.clear()
    user_lowerings._registered.clear()
    torch._dynamo.reset()


def test_one_launch_each_of_the_op_itself(tmp_path: Path) -> None:
    model = Calls(everything)
    run = disc.compile(model, inputs(3), ROWS)
    assert sum(record["kind"] == "library" for record in run.manifest["kernels"]) == 6
    run.save(tmp_path / "model.disc")
    for each in (run, disc.load(tmp_path / "model.disc")):
        for rows in (0, 1, 3, 7):
            given = inputs(rows)
            torch.testing.assert_close(each(*given), model(*given), rtol=1e-5, atol=1e-5)
    assert "the custom op disctest::two" in str(run.explain())
    plain = f"import disc; disc.load({str(tmp_path / 'model.disc')!r})"
    for more, reason in (("", "import torch and what registers it"), ("import torch; ", "import what registers it")):
        ended = subprocess.run([sys.executable, "-c", more + plain], capture_output=True, text=True)
        assert re.search(r"ArtifactError: .*needs the custom op 'disctest::\w+' of PyTorch", ended.stderr), ended.stderr
        assert reason.replace("registers it", "registers") in ended.stderr


def test_what_an_op_writes(nothing_registered: None) -> None:
    model = Calls(writing)
    run = disc.compile(model, inputs(3), ROWS)
    dynamo.reset_statistics()
    traced = torch.compile(model, backend="disc", options={"strict": True})
    for rows in (0, 1, 5):
        given = inputs(rows)
        before = [each.clone() for each in given]
        with torch.no_grad():
            torch.testing.assert_close((run(*given), traced(*given)), (model(*given),) * 2)
        torch.testing.assert_close(list(given), before)
    assert not dynamo.statistics().eager


def test_an_op_writes_an_input() -> None:
    def body(model: Calls, x: Tensor, y: Tensor) -> Tensor:
        add_to(x, y)
        return x * 2

    x, y = inputs(3)
    wanted = x + y
    run = disc.compile(Calls(body), inputs(2), ROWS)
    torch.testing.assert_close(run(x, y), wanted * 2)
    torch.testing.assert_close(x, wanted)


def test_ops_that_fail_or_break_their_promise() -> None:
    run = disc.compile(Calls(lambda model, x, how: wrong(x + 1, how) * 2), (torch.randn(2, 3), torch.tensor(0)), ({}, {}))
    x = torch.zeros(2, 3)
    with pytest.raises(CustomOpError, match=r"^disctest::wrong at test_custom_ops\.py:\d+: ValueError: no such thing$") as raised:
        run(x, torch.tensor(0))
    assert isinstance(raised.value.__cause__, ValueError)
    for kind, words in ((1, r"its result has shape \(3, 3\), by its fake implementation \(2, 3\)"),
                        (2, r"its result is torch\.float64 .*, by its fake implementation torch\.float32"),
                        (3, r"it writes tensor argument 0, which its schema does not say \(mutates_args\)")):  # fmt: skip
        with pytest.raises(CustomOpError, match=words):
            run(x, torch.tensor(kind))
    with pytest.raises(KeyboardInterrupt):
        run(x, torch.tensor(4))
    del KEPT[:]
    for value in range(3):
        torch.testing.assert_close(run(torch.full((2, 3), float(value)), torch.tensor(5)), torch.full((2, 3), 2 * value + 2.0))
    assert [each.unique().tolist() for each in KEPT] == [[1.0], [2.0], [3.0]]  # what it keeps of lent memory stays as it was
    traced = torch.compile(Calls(lambda model, x, how: wrong(x + 1, how) * 2), backend="disc")
    with pytest.raises(ValueError, match="no such thing"), torch.no_grad():
        traced(x, torch.tensor(0))


def test_ops_that_cannot_be_compiled() -> None:
    x = (torch.randn(2, 3),)
    for op, kind, words in ((without_fake, ExportError, r"no fake impl registered for .*without_fake"),
                            (fake_of_data, UnsupportedOpError, "depends on data"),
                            (positive, UnsupportedOpError, r"disctest\.positive\.default at .*the size u0 depends on data")):  # fmt: skip
        with pytest.raises(kind, match=words):
            disc.compile(Calls(lambda model, x, op=op: op(x) * 2), x)
    parts = Calls(lambda model, x: add_to(x[1:], x[:-1]) or x)
    with pytest.raises(UnsupportedOpError, match="it writes argument x, which is a part of a tensor"):
        disc.compile(parts, x)
    with pytest.warns(disc.errors.DiscWarning, match=r"disctest::log at .* returns nothing .* does not run it"):
        disc.compile(Calls(lambda model, x: log(x) or x + 1), x)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """The C function of the document."""
    text = (Path(__file__).parents[2] / "docs" / "custom-ops.md").read_text()
    (source,) = re.findall(r"```c\n(.*?)```", text, re.DOTALL)
    source += """
void add_to(const ral_function_call* call) {
  const ral_tensor x = call->results[0], y = call->operands[1];
  int64_t count = 1;
  for (int32_t i = 0; i < x.rank; ++i) count *= x.dims[i];
  for (int64_t i = 0; i < count; ++i) ((float*)x.data)[i] += ((const float*)y.data)[i];
}
"""
    (tmp_path / "scale.c").write_text(source)
    include = Path(disc.ral.__path__[0]) / "include"
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC", f"-I{include}", str(tmp_path / "scale.c")]
    subprocess.run([*command, "-o", str(tmp_path / "libscale.so")], check=True)
    return tmp_path / "libscale.so"


RUN = """
import sys, numpy as np, disc
path, library = sys.argv[1:]
def refused(words):
    try:
        disc.load(path)
    except disc.DiscError as error:
        assert type(error).__name__ == "ArtifactError" and words in str(error), error
    else:
        raise AssertionError(words)
refused("nothing is registered for it")
disc.register_op("disctest::scale", library=library, symbol="scale")
disc.register_op("disctest::add_to", library=library, symbol="scale")
refused("what is registered is 'scale' of a library with SHA-256")
disc.register_op("disctest::add_to", library=library, symbol="add_to")
x = np.ones((2, 4), np.float32)
np.testing.assert_allclose(disc.load(path)(x, x), 2.5 * 3 + 2 + 1 - 5)
assert "torch" not in sys.modules
"""


def test_c_functions(library: Path, tmp_path: Path, nothing_registered: None) -> None:
    def body(model: Calls, x: Tensor, y: Tensor) -> Tensor:
        z = x * 2
        add_to(z, y)
        return scale(z, 2.5, x.shape[0]) + scale(y, 1.0, -5)

    for op, symbol in (("scale", "scale"), ("add_to", "add_to")):
        disc.register_op(f"disctest::{op}", library=library, symbol=symbol)
    run = disc.compile(Calls(body), inputs(3), ROWS)
    for rows in (0, 1, 1000):
        given = inputs(rows)
        torch.testing.assert_close(run(*given), Calls(body)(*given))
    run.save(tmp_path / "model.disc")
    library.rename(tmp_path / "moved.so")  # what was loaded does not depend on the file
    torch.testing.assert_close(run(*inputs(2)).shape, torch.Size((2, 4)))
    subprocess.run([sys.executable, "-c", RUN, str(tmp_path / "model.disc"), str(tmp_path / "moved.so")], check=True)
    option = [f"--op=disctest::{op}={tmp_path / 'moved.so'}:{op}" for op in ("scale", "add_to")]
    command = [sys.executable, "-m", "disc.cli", "run", str(tmp_path / "model.disc"), "--random", "x=3x4,y=3x4"]
    assert subprocess.run([*command, *option], capture_output=True).returncode == 0
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode != 0 and "needs the custom op 'disctest::" in ended.stderr


def test_c_functions_that_are_refused(library: Path, nothing_registered: None) -> None:
    for op, path, symbol, words in (("disctest::scale", "none.so", "scale", "cannot be read"), ("scale", library, "scale", "no name of a custom op"),
                                    ("disctest::scale", library, "skale", "has no symbol 'skale'"),
                                    ("disctest::scale", __file__, "scale", "cannot be loaded"), (3, library, "scale", "3 is no name of a custom op"),
                                    ("disctest::scale", library.parent, "scale", "cannot be read: Is a directory"),
                                    ("a::b::c", library, "scale", "no name of a custom op"), ("disctest::scale", None, "scale", "library is a NoneType"),
                                    ("aten::add", library, "scale", "aten::add is an op of PyTorch's.*disc.register_lowering"),
                                    ("disctest::scale", library, 3, "3 is no name of a C function")):  # fmt: skip
        with pytest.raises(ArtifactError, match=words):
            disc.register_op(op, library=path, symbol=symbol)  # pyright: ignore[reportArgumentType]
    for op in ("scale", "two"):
        disc.register_op(f"disctest::{op}", library=library, symbol="scale")
    run = disc.compile(Calls(lambda model, x: scale(x, 1.0, 2)), (torch.randn(2).double(),))
    with pytest.raises(CustomOpError, match=r"disctest::scale at test_custom_ops\.py:\d+: only f32 is computed"):
        run(torch.randn(3).double())
    with pytest.raises(
        UnsupportedOpError, match=r"its argument dtype is of type dtype, which the C function of disc\.register_op cannot be told"
    ):
        disc.compile(Calls(lambda model, x: two(x, [1, 2], torch.float64)), (torch.randn(2, 3),))


def test_a_lowering(nothing_registered: None) -> None:
    model = Calls(lambda model, x: scale(x.tanh(), 2.5, x.shape[0]))
    disc.register_lowering(scale, lambda x, k, n: x * k + n)
    run = disc.compile(model, (torch.randn(3, 4),), ({0: Dim("rows")},))
    assert len(run.manifest["kernels"]) == 1  # fused with what is around it
    traced = torch.compile(model, backend="disc", options={"strict": True})
    x = torch.randn(5, 4)
    torch.testing.assert_close((run(x), traced(x)), (model(x),) * 2)
    disc.register_lowering(torch.ops.aten.tanh, lambda x: x * 0 + 7)  # before a rule of disc's own
    torch.testing.assert_close(disc.compile(model, (x,))(x), torch.full((5, 4), 7 * 2.5 + 5))


LOWERINGS = (
    (lambda x: x, r"TypeError: .* takes 1 positional argument but 3 were given"),
    (lambda x, k, n: x.sum(), r"value 0 is torch\.float32 \[\], that of the op torch\.float32 \[\w+, 4\]"),
    (lambda x, k, n: x.double(), "value 0 is torch.float64"),
    (lambda x, k, n: (x, x), "it returns 2 values, the op 1"),
    (lambda x, k, n: 3, "value 0 is a int, that of the op a tensor"),
    (lambda x, k, n: x.mul_(k), "it writes an argument, and the op does not"),
    (lambda x, k, n: (x[1:].add_(1), x)[1], "it writes an argument, and the op does not"),
    (scale, "it calls the op itself"),
)


def test_lowerings_that_fail(nothing_registered: None) -> None:
    model = Calls(lambda model, x: scale(x.tanh(), 2.5, x.shape[0]))
    for lowering, words in LOWERINGS:
        disc.register_lowering("disctest::scale", lowering)
        with pytest.raises(
            UnsupportedOpError, match=r"disctest\.scale\.default at test_custom_ops\.py:\d+: its lowering .* failed: " + words
        ):
            disc.compile(model, (torch.randn(3, 4),), ({0: Dim("rows")},))
    with pytest.raises(Exception, match="it calls the op itself"):  # within Dynamo's
        torch.compile(model, backend="disc", options={"strict": True})(torch.randn(3, 4))
    for op, lowering, words in (("disctest::add_to", abs, "writes its arguments"), ("disctest::none", abs, "there is no op"),
                                (torch.add, abs, "is no op"), (scale, 3, "cannot be called")):  # fmt: skip
        with pytest.raises(DiscError, match=words):
            disc.register_lowering(op, lowering)  # pyright: ignore[reportArgumentType]


def test_the_cache_tells_lowerings_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_registered: None) -> None:
    monkeypatch.setenv("DISC_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("DISC_CACHE", "1")
    model, x = Calls(lambda model, x: scale(x, 2.0, 0)), torch.ones(3)

    def compiled(lowering: Callable[..., object]) -> tuple[float, bool]:
        disc.register_lowering(scale, lowering)
        run = disc.compile(model, (x,))
        return float(run(x)[0]), bool(run.stats()["compiles"])

    def by(factor: object) -> Callable[..., object]:
        return lambda x, k, n: x * factor

    assert [compiled(by(3)), compiled(by(4)), compiled(by(3)), compiled(lambda x, k, n: x * 3)] == [
        (3, True),
        (4, True),
        (3, False),
        (3, True),
    ]
    tensor = torch.tensor(5.0)
    assert [compiled(by(tensor)) for _ in range(2)] == [(5, True), (5, True)]  # a tensor has no digest
    settings = ModuleType("settings")  # neither has a module
    monkeypatch.setattr(settings, "factor", 6.0, raising=False)
    monkeypatch.setitem(sys.modules, "settings", settings)

    def imported(x: Tensor, k: float, n: int) -> Tensor:
        import settings  # pyright: ignore[reportMissingImports]

        return x * settings.factor  # pyright: ignore[reportUnknownMemberType]

    assert [compiled(lambda x, k, n: x * settings.factor), compiled(imported)] == [(6, True), (6, True)]
    monkeypatch.setattr(settings, "factor", 7.0)
    assert [compiled(lambda x, k, n: x * settings.factor), compiled(imported)] == [(7, True), (7, True)]
    monkeypatch.setitem(globals(), "FACTOR", 8.0)
    disc.register_lowering(scale, by_the_factor)
    assert float(disc.compile(model, (x,))(x)[0]) == 8
    monkeypatch.setitem(globals(), "FACTOR", 9.0)  # behind the registration
    assert float(disc.compile(model, (x,))(x)[0]) == 9


FACTOR = 1.0


def by_the_factor(x: Tensor, k: float, n: int) -> Tensor:
    return x * FACTOR
