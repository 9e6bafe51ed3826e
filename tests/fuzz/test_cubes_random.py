"""Random programs over tensors of rank 1 to 4 whose dims all have one size, against eager, results and gradients.

Products along any letters, convolutions, attention, views, indices, writes in place, running sums, windows and reductions are drawn with their
dims at random, so that whatever a pass, a plan or a kernel looks for stands beside the same with another dim of the same size in its place. The
sizes of an example are equal by chance or by the program; calls of other sizes follow. A failure has its program as text; more seeds:

    python tests/fuzz/test_cubes_random.py 100 400
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

from seeds import seeds  # noqa: E402

import disc  # noqa: E402
from disc.errors import ShapeConstraintError  # noqa: E402

SEEDS = 60
MOST_RANK = 4
SIZES, OTHERS = (3, 4, 6, 8, 16), (5, 7, 9, 13)  # of the example; of later calls, where dims are dynamic
TOLERANCE, WORSE_THAN_EAGER = 1e-4, 30.0  # of the largest value; and of eager's own error, in programs that enlarge rounding
RANKS = {"row": 1, "square": 2, "cube": 3, "block": 4}  # of the inputs


class Writer:
    """A program in the making, as lines of Python. ranks: of each value by its name; all dims of all are `n`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.ranks = dict(RANKS)
        self.lines = ["n = row.shape[0]", "order = row.argsort()", "orders = square.argsort(-1)"]

    def program(self) -> str:
        steps: list[Callable[[], str | None]] = [
            self.turned, self.mixed, self.mixed, self.reduced, self.reduced, self.over_reduction, self.along, self.chosen, self.scattered,
            self.einsum, self.einsum, self.matmul, self.attention, self.convolved, self.pooled, self.joined, self.folded, self.diagonal,
            self.written, self.windows, self.padded, self.triangle, self.stacked, self.stepped, self.hidden, self.distances,
        ]  # fmt: skip
        for _ in range(self.random.randint(3, 8)):
            line = self.random.choice(steps)()
            if line is not None:
                self.lines.append(line)
        made = [name for name in self.ranks if name not in RANKS][-self.random.randint(1, 3) :] or ["square"]
        body = "\n".join(f"    {line}" for line in self.lines)
        return f"def program({', '.join(RANKS)}):\n{body}\n    return {', '.join(made)},\n"

    # --- choices ----------------------------------------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def pick(self, least: int = 1, most: int = MOST_RANK) -> str:
        """A value of such a rank; recent ones more often."""
        fitting = [name for name, rank in self.ranks.items() if least <= rank <= most]
        return fitting[-min(1 + int(self.random.expovariate(0.4)), len(fitting))]

    def dim(self, name: str) -> int:
        return self.random.randrange(-self.ranks[name], self.ranks[name])

    def new(self, rank: int, text: str) -> str:
        name = f"v{len(self.ranks)}"
        self.ranks[name] = rank
        return f"{name} = {text}"

    def placed(self, name: str, rank: int) -> str:
        """The value as an operand of `rank`, its dims in order at any of the places, 1 elsewhere."""
        own = self.ranks[name]
        places = sorted(self.random.sample(range(rank), own))
        return f"{name}[{', '.join(':' if at in places else 'None' for at in range(rank))}]" if own < rank else name

    def bounded(self, text: str) -> str:
        return self.random.choice((f"({text}).tanh()", f"({text}) * 0.5", f"({text}).sin()"))

    # --- steps ------------------------------------------------------------------------------------------------------------

    def turned(self) -> str:
        name = self.pick(2)
        order = self.random.sample(range(self.ranks[name]), self.ranks[name])
        return self.new(
            self.ranks[name], f"{name}.permute({', '.join(map(str, order))})" + self.random.choice(("", "", ".contiguous()", " * 2"))
        )

    def mixed(self) -> str:
        left, right = self.pick(), self.pick()
        rank = max(self.ranks[left], self.ranks[right])
        op = self.random.choice(("+", "-", "*"))
        return self.new(rank, self.bounded(f"{self.placed(left, rank)} {op} {self.placed(right, rank)}"))

    def reduced(self) -> str:
        name = self.pick(2)
        op = self.random.choice(("sum", "mean", "amax", "amin", "logsumexp"))
        return self.new(self.ranks[name] - 1, f"{name}.{op}({self.dim(name)})" + (" / n" if op == "sum" else ""))

    def over_reduction(self) -> str:
        """A norm over a dim, or one in which another dim is reduced than that along which the sums are read."""
        name, dim = self.pick(2), 0
        dim, rank = self.dim(name), self.ranks[name]
        kept = f"{name}.square().mean({dim}, keepdim=True)" if self.chance(0.6) else f"{name}.square().mean({dim})"
        place = dim % rank if self.chance(0.5) else self.random.randrange(rank)
        scale = kept if "keepdim" in kept else f"{kept}.unsqueeze({place})"
        return self.new(rank, f"{name} * ({scale} + 0.01).rsqrt()" if self.chance(0.6) else f"({name} - {scale}).tanh()")

    def along(self) -> str:
        name = self.pick()
        dim = self.dim(name)
        op = self.random.choice((
            f"softmax({dim})", f"log_softmax({dim})", f"cumsum({dim})", f"flip({dim})", f"roll(1, {dim})", f"roll(-2, {dim})", f"cummax({dim})[0]",
            f"sort({dim})[0]", f"logcumsumexp({dim})",
        ))  # fmt: skip
        return self.new(self.ranks[name], f"{name}.{op}" + (" / n" if "sum" in op else ""))

    def chosen(self) -> str:
        name = self.pick()
        rank, dim = self.ranks[name], self.dim(name) % self.ranks[name]
        before = ":, " * dim
        forms = [(rank, f"{name}.index_select({dim}, order)"), (rank, f"{name}[{before}order]")]
        if rank == 2:
            forms += [
                (2, f"{name}.gather({dim}, orders)"),
                (1, f"{name}[order, order.flip(0)]"),
                (2, f"torch.take_along_dim({name}, orders.t(), {dim})"),
            ]
        if rank == 3:
            forms += [
                (3, f"{name}.gather({dim}, orders.expand(n, n, n))"),
                (3, f"{name}.gather({dim}, orders[:, :, None].expand(n, n, n))"),
            ]
        if rank > 2:
            others = self.random.sample(range(rank), 2)
            index = ", ".join("order" if at in others else ":" for at in range(rank))
            forms.append((rank - 1, f"{name}[{index}]"))
        if rank < MOST_RANK:
            forms.append((rank + 1, f"{name}[{before}orders]"))
        return self.new(*self.random.choice(forms))

    def scattered(self) -> str | None:
        name, other = self.pick(2, 2), self.pick(2, 2)
        dim = self.dim(name)
        forms = [
            f"{name}.scatter({dim}, orders, {other})", f"{name}.scatter_add({dim}, orders, {other})", f"{name}.index_add({dim}, order, {other})",
            f"{name}.index_copy({dim}, order, {other})", f"{name}.index_put((order, order), {self.pick(1, 1)})",
            f"{name}.scatter_reduce({dim}, orders, {other}, 'amax')", f"{name}.select_scatter({self.pick(1, 1)}, {dim}, 1)",
            f"{name}.index_put((order,), {other}, accumulate=True)", f"{name}.diagonal_scatter({self.pick(1, 1)})",
        ]  # fmt: skip
        return self.new(2, self.random.choice(forms))

    def einsum(self) -> str:
        operands = [self.pick() for _ in range(self.random.choice((2, 2, 2, 3, 1)))]
        letters = [self.random.sample("abcde", self.ranks[name]) for name in operands]
        for each in letters:
            if len(each) > 1 and self.chance(0.12):
                each[0] = each[1]
        known = sorted({letter for each in letters for letter in each})
        result = self.random.sample(known, self.random.randint(1, min(MOST_RANK, len(known))))
        summed = len(known) - len(result)
        equation = ",".join("".join(each) for each in letters) + "->" + "".join(result)
        return self.new(len(result), self.bounded(f"torch.einsum('{equation}', {', '.join(operands)}) / n ** {0.5 * summed}"))

    def matmul(self) -> str:
        left, right = self.pick(1), self.pick(2)
        turned = f"{right}.transpose(-1, -2)" if self.chance(0.5) else right
        rank = max(self.ranks[left], self.ranks[right], 2) if self.ranks[left] > 1 else max(self.ranks[right] - 1, 1)
        return self.new(rank, self.bounded(f"{left} @ {turned} / n ** 0.5"))

    def attention(self) -> str:
        rank = self.random.choice((3, 4))
        query, key, value = (self.pick(rank, rank) for _ in range(3))
        if self.chance(0.5):
            masked = self.random.choice(
                ("", ", is_causal=True", f", attn_mask={self.placed(self.pick(1, 2), 2)}", f", attn_mask={self.pick(rank, rank)}")
            )
            return self.new(rank, f"F.scaled_dot_product_attention({query}, {key}, {value}{masked})")
        turned = self.random.choice(("", ".transpose(0, 1)", ".transpose(-1, -2)"))
        dim = self.random.choice((-1, -1, -2, 0))
        scores = f"({query} @ {key}.transpose(-1, -2) / n ** 0.5 + {self.placed(self.pick(1, 2), rank)})"
        return self.new(rank, f"{scores}.softmax({dim}){turned} @ {value}")

    def convolved(self) -> str:
        rank = self.random.choice((3, 4))
        x, weight, size = self.pick(rank, rank), self.pick(rank, rank), self.random.choice((1, 3))
        kernel = weight + "".join(f".narrow({dim}, 0, {size})" for dim in range(2, rank))
        bias = self.pick(1, 1) if self.chance(0.3) else "None"
        form = self.random.choice(("conv", "conv", "conv_transpose"))
        if self.chance(0.3):
            groups = "1, n" if form == "conv" else "0, n"
            return self.new(rank, self.bounded(f"F.{form}{rank - 2}d({x}, {kernel}[:, :1], {bias}, 1, {size // 2}, {groups}) / {size}"))
        return self.new(rank, self.bounded(f"F.{form}{rank - 2}d({x}, {kernel}, {bias}, 1, {size // 2}) / n"))

    def pooled(self) -> str:
        rank = self.random.choice((3, 4))
        op = self.random.choice(("max_pool", "avg_pool"))
        return self.new(rank, f"F.{op}{rank - 2}d({self.pick(rank, rank)}, 3, 1, 1)")

    def joined(self) -> str:
        rank = self.random.randint(1, MOST_RANK)
        parts = [self.pick(rank, rank) for _ in range(self.random.randint(2, 3))]
        dim = self.random.randrange(rank)
        start = self.random.choice(("0", "1", "n - 1", "n", "n // 2"))
        return self.new(rank, f"torch.cat([{', '.join(parts)}], {dim}).narrow({dim}, {start}, n)")

    def folded(self) -> str:
        """Two dims become one, something is done to it, and they are two again."""
        name = self.pick(2)
        rank, dim = self.ranks[name], self.random.randrange(self.ranks[name] - 1)
        last = rank - 2  # of the folded value
        done = self.random.choice((
            f".softmax({dim})", f".flip({dim})", f".cumsum({dim}) / n", f".roll(1, {dim})", f".transpose({dim}, {last})" if last else "", " * 2",
            f".transpose({dim}, {last}).relu()" if last else ".exp()",
        ))  # fmt: skip
        flat = f"({name}.flatten({dim}, {dim + 1}){done})"
        return self.new(rank, f"{flat}.reshape({', '.join(['n'] * rank)})")

    def diagonal(self) -> str:
        name = self.pick(2) if self.chance(0.6) else self.pick(1, MOST_RANK - 1)
        rank = self.ranks[name]
        if rank > 1 and self.chance(0.6):
            first, second = self.random.sample(range(rank), 2)
            return self.new(rank - 1, f"{name}.diagonal(0, {first}, {second})" + self.random.choice(("", " * 2", ".exp()")))
        if rank == MOST_RANK:
            return self.new(rank - 1, f"{name}.select({self.dim(name)}, 1)")
        first, second = self.random.sample(range(rank + 1), 2)
        return self.new(rank + 1, f"torch.diag_embed({name}, 0, {first}, {second})")

    def written(self) -> str:
        """A copy, written in place through a view."""
        name = self.pick(2)
        rank, dim = self.ranks[name], self.random.randrange(self.ranks[name])
        target, other = f"v{len(self.ranks)}", self.pick(rank, rank)
        part = self.placed(self.pick(1, rank - 1), rank - 1)
        first, second = self.random.sample(range(rank), 2)
        forms = [
            f"{target}.transpose({first}, {second}).copy_({other})", f"{target}.transpose({first}, {second}).add_({target} * 1)",
            f"{target}.select({dim}, 1).copy_({part})", f"{target}.select({dim}, -1).mul_({part})", f"{target}.diagonal(0, {first}, {second}).mul_(2)",
            f"{target}.narrow({dim}, 0, 2).copy_({other}.narrow({dim}, n - 2, 2))", f"{target}.narrow({dim}, 1, n - 1).add_({target}.narrow({dim}, 0, n - 1) * 1)",
            f"{target}[{':, ' * dim}order] = {other}", f"{target}[{other} > 9] = 0.5", f"{target}.flip({dim}).copy_({other})",
            f"{target}.permute({', '.join(map(str, self.random.sample(range(rank), rank)))}).copy_({other})",
        ]  # fmt: skip
        self.new(rank, "")
        return f"{target} = {name}.clone(); {self.random.choice(forms)}"

    def windows(self) -> str:
        name = self.pick()
        dim = self.random.randrange(self.ranks[name])
        text = f"torch.cat([{name}, {name}], {dim}).narrow({dim}, 1, n + 1).unfold({dim}, 2, 1)"
        return self.new(self.ranks[name], f"{text}.{self.random.choice(('mean', 'amax'))}(-1)")

    def padded(self) -> str:
        rank = self.random.choice((3, 4))
        name = self.pick(rank, rank)
        mode = self.random.choice(("constant", "replicate", "circular", "reflect"))
        pads = (1, 1) * (rank - 2)
        cut = self.random.choice((":-2", "2:", "1:-1"))
        return self.new(rank, f"F.pad({name}, {pads}, '{mode}')[{', '.join([':', ':'] + [cut] * (rank - 2))}]")

    def triangle(self) -> str:
        name = self.pick(2)
        side = self.random.choice(("tril", "triu"))
        turned = self.random.choice(("", ".transpose(-1, -2)", ".transpose(0, 1)"))
        return self.new(
            self.ranks[name], f"{name}{turned}.{side}({self.random.choice((-1, 0, 1))})" + self.random.choice(("", ".softmax(-1)", turned))
        )

    def stacked(self) -> str:
        name = self.pick(1, MOST_RANK - 1)
        rank = self.ranks[name]
        if self.chance(0.5):
            dim = self.random.randint(0, rank)
            sizes = ", ".join("n" if at == dim else "-1" for at in range(rank + 1))
            return self.new(rank + 1, f"{name}.unsqueeze({dim}).expand({sizes})" + self.random.choice(("", ".contiguous()", " * 2")))
        first, second = self.pick(rank, rank), self.pick(rank, rank)
        dim = self.random.randint(0, rank)
        return self.new(rank, f"torch.stack([{first}, {second}], {dim}).amax({dim})")

    def stepped(self) -> str:
        """A few steps of a recurrence, whose states are squares."""
        name, weight, x = self.pick(2, 2), self.pick(2, 2), self.pick(3, 3)
        target = f"v{len(self.ranks)}"
        self.new(2, "")
        turned = self.random.choice(("", ".t()"))
        at = self.random.choice(("step", ":, step", ":, :, step"))
        lines = f"{target} = {name}\n    for step in range(2):\n        {target} = torch.tanh({target}{turned} @ {weight} / n + {x}[{at}])"
        return lines

    def hidden(self) -> str:
        name = self.pick()
        rank = self.ranks[name]
        mask = self.placed(self.random.choice([each for each in RANKS if RANKS[each] <= rank]), rank)
        return self.new(
            rank,
            self.random.choice(
                (f"{name}.masked_fill({mask} > 0.3, -1.0)", f"torch.where({mask} > 0, {name}, {self.placed(self.pick(1, rank), rank)})")
            ),
        )

    def distances(self) -> str:
        rank = self.random.choice((2, 3))
        left, right = self.pick(rank, rank), self.pick(rank, rank)
        if self.chance(0.5):
            return self.new(rank, f"torch.cdist({left}, {right}, compute_mode='donot_use_mm_for_euclid_dist') / n")
        return self.new(
            rank, f"({left}.unsqueeze({rank - 1}) - {right}.unsqueeze({rank - 2})).square().mean({self.random.choice((-1, -2, -3))})"
        )


class Program(nn.Module):
    def __init__(self, text: str) -> None:
        super().__init__()
        names: dict[str, Any] = {"torch": torch, "F": F}
        exec(compile(text, "program.py", "exec"), names)
        self.function: Callable[..., tuple[Tensor, ...]] = names["program"]

    def forward(self, row: Tensor, square: Tensor, cube: Tensor, block: Tensor) -> tuple[Tensor, ...]:
        return self.function(row, square, cube, block)


def inputs_of(seed: int, size: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn((size,) * rank, generator=generator) for rank in RANKS.values()]


def wrong(ours: Sequence[object], eager: Sequence[Tensor], exact: Sequence[Tensor]) -> str:
    for number, (mine, theirs, right) in enumerate(zip(ours, eager, exact, strict=True)):
        assert isinstance(mine, Tensor)
        if mine.shape != theirs.shape:
            return f"result {number} is of {tuple(mine.shape)}, not {tuple(theirs.shape)}"
        if not torch.equal(mine.isnan(), theirs.isnan()):
            return f"result {number} has NaN elsewhere than eager's"
        error, own = (float((each.double() - right).nan_to_num(0, 0, 0).abs().max()) if each.numel() else 0.0 for each in (mine, theirs))
        largest = float(right.nan_to_num(0, 0, 0).abs().max()) if right.numel() else 0.0
        if error > TOLERANCE * max(largest, 1e-6) and error > WORSE_THAN_EAGER * own:
            return f"result {number} is off by {error:.3g}, eager by {own:.3g}"
    return ""


def gradients(function: Callable[..., object], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The results, and the gradients of a sum of them with changing weights."""
    given = [each.detach().clone().requires_grad_() for each in inputs]
    results: Any = function(*given)
    total = sum((each * torch.linspace(0.5, 1.5, each.numel(), dtype=each.dtype).reshape(each.shape)).sum() for each in results)
    found: Sequence[Tensor | None] = torch.autograd.grad(total, given, allow_unused=True) if total.requires_grad else [None] * len(given)
    return [
        *(each.detach() for each in results),
        *(torch.zeros_like(each) if own is None else own for each, own in zip(given, found, strict=True)),
    ]


def run_seed(seed: int) -> str:
    """ "" when the program of this seed is right, else what is wrong."""
    drawn = random.Random(seed * 7 + 1)
    sizes = [drawn.choice(SIZES), *drawn.sample(OTHERS, 2)]
    fixed, trains = drawn.random() < 0.4, drawn.random() < 0.5
    return run_text(Writer(seed).program(), sizes[:1] if fixed else sizes, seed, fixed=fixed, trains=trains)


def run_text(text: str, sizes: Sequence[int], seed: int, *, fixed: bool, trains: bool) -> str:
    """The same for a program. fixed: compiled for one size alone; trains: through torch.compile, with gradients."""
    program = Program(text)
    inputs = inputs_of(seed, sizes[0])
    where = f"seed {seed}, sizes {list(sizes)}{', fixed' * fixed}{', trained' * trains}"
    try:
        call: Callable[..., Sequence[Tensor]]
        if trains:
            torch._dynamo.reset()
            compiled = torch.compile(program, backend="disc", dynamic=not fixed, fullgraph=True, options={"strict": True})
            call = partial(gradients, compiled)
        else:
            call = disc.compile(program, tuple(inputs), **({"dynamic_shapes": ({},) * len(inputs)} if fixed else {})).flat
        for size in sizes:
            given = inputs_of(seed + size, size)
            exact = [each.double() for each in given]
            theirs, right = (gradients(program, each) if trains else program(*each) for each in (given, exact))
            try:
                ours = call(given) if trains else call(*given)
            except ShapeConstraintError:  # PyTorch's trace may fix a size, as attention with a mask does that of a head
                if size == sizes[0]:
                    raise
                continue
            message = wrong(ours, theirs, right)
            if message:
                return f"{where}: at {size}: {message}\n{text}"
    except Exception as error:  # whatever it is, the program belongs to it
        return f"{where}: {type(error).__name__}: {error}\n{text}"
    return ""


@pytest.mark.parametrize("seed", seeds(8, SEEDS))
def test_random_cubes(seed: int) -> None:
    message = run_seed(seed)
    assert not message, message


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    reports = [each for number in range(int(sys.argv[1]), int(sys.argv[2])) if (each := run_seed(number)) and not print(each, flush=True)]
    print(f"{len(reports)} are wrong" if reports else "all right")
    sys.exit(bool(reports))
