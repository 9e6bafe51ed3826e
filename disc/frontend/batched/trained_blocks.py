"""Blocks that give gradients: programs of a block and of its gradient, which take the weights as they are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from disc.errors import DiscError, ExportError
from disc.frontend.batched.blocks import Block, CompileBlock
from disc.frontend.batched.differentiate import Differentiated, Gradient, Graph, Weight, differentiated, forward_alone
from disc.frontend.batched.products import Products
from disc.frontend.batched.rows import RowClass

if TYPE_CHECKING:
    from disc.ral.executable import Executable


class Layouts:
    """Weights as programs take them, row-major, for one batch: each is turned once."""

    def __init__(self) -> None:
        self._copied: dict[tuple[int, int, bool], Tensor] = {}

    def of(self, weights: Sequence[Weight], products: Products) -> list[Tensor]:
        return [self._row_major(each.tensor, products, turned=each.turned) for each in weights]

    def _row_major(self, weight: Tensor, products: Products, *, turned: bool) -> Tensor:
        if not turned and weight.is_contiguous():
            return weight.detach()
        name = id(weight), weight._version, turned
        found = self._copied.get(name)
        if found is None:
            found = self._copied[name] = products.transpose(weight.detach()) if turned else weight.detach().contiguous()
        return found


class TrainedBlock:
    """A block for B instances, and its gradient, as programs that take weights. program: of tables, rows, values and `weights` gives
    results and what is kept. kept: what a run keeps for the gradient. eager: of how many calls PyTorch computed the gradient."""

    takes_weights = True

    def __init__(self, block: Block, compile_block: CompileBlock, products: Products) -> None:
        self.products = products
        self.eager = 0
        self._block = block
        self._compile = compile_block
        self._refusal: str | None = None
        self._graphs, self.program = self._compiled_forward()
        self.executable: Executable | None = self.program

    @property
    def kept(self) -> tuple[RowClass, ...]:
        return self._graphs.kept

    @property
    def weights(self) -> tuple[Weight, ...]:
        """Those that `program` takes, in order."""
        return self._graphs.forward.weights

    def __call__(self, tables: Sequence[Tensor], rows: Sequence[Tensor], values: Sequence[Tensor], out: Sequence[Tensor]) -> None:
        """As `Lifted`."""
        kept = [torch.empty((len(out[0]), *each.shape), dtype=each.dtype) for each in self.kept]
        self.run(tables, rows, values, [*out, *kept], Layouts())

    def run(
        self, tables: Sequence[Tensor], rows: Sequence[Tensor], values: Sequence[Tensor], out: Sequence[Tensor], layouts: Layouts
    ) -> None:
        """As `Lifted`. out: for the results, then for what is kept, [B, ...]."""
        into = out[0] if len(out) == 1 else tuple(out)
        self.program(*tables, *rows, *values, *layouts.of(self.weights, self.products), out=into)

    @cached_property
    def gradient(self) -> tuple[Gradient, Executable | None] | str | None:
        """What gives the gradients, made when it is first asked for, with its program if there is anything to compute; why it cannot be
        compiled; None where there are no gradients."""
        if self._refusal is not None:
            return self._refusal
        found = self._graphs.gradient
        if found is None:
            return None
        try:
            return found, self._compiled_gradient(found) if found.rows or found.made else None
        except DiscError as error:
            return f"{type(error).__name__}: {error}"

    def notes(self) -> list[str]:
        """What of its gradient PyTorch computed, and why."""
        found = [f"{title} in PyTorch: {why}" for title, why in self.products.refusals]
        if self.eager:
            found.append(f"gradients of {self.eager} one by one in PyTorch: {self.gradient}")
        return found

    def _compiled_forward(self) -> tuple[Differentiated, Executable]:
        """Without what a gradient needs where that cannot be computed: then `_refusal` says why."""
        try:
            return self._with_program(differentiated(self._block))
        except (DiscError, RuntimeError) as error:  # the latter is PyTorch's, of an op without a gradient
            self._refusal = f"{type(error).__name__}: {error}"
        try:
            return self._with_program(forward_alone(self._block))
        except RuntimeError as error:
            raise ExportError(f"PyTorch cannot trace the block: {str(error).splitlines()[0]}") from error

    def _with_program(self, graphs: Differentiated) -> tuple[Differentiated, Executable]:
        numbers = [torch.zeros((), dtype=torch.int64) for _ in range(self._block.values)]
        places = [*map(self._block.tables().index, self._block.rows), *(None for _ in numbers)]
        return graphs, self._compiled(graphs.forward, [*_zeros(self._block.rows), *numbers], places)

    def _compiled_gradient(self, gradient: Gradient) -> Executable:
        block, example, places = self._block, list[Tensor](), list[int | None]()
        tables = gradient_tables(block, gradient)
        for each in gradient.inputs:
            dtype = torch.int64 if each.kind == "number" else self.class_of(each.kind, each.place).dtype
            example.append(torch.zeros(each.shape, dtype=dtype))
            places.append(tables.index(block.rows[each.place]) if each.kind == "row" else None)
        example += _zeros([block.results[place] for place in gradient.results])
        return self._compiled(gradient.graph, example, [*places, *(None for _ in gradient.results)])

    def class_of(self, kind: str, place: int) -> RowClass:
        """Of a row, a result or what is kept."""
        return {"row": self._block.rows, "result": self._block.results, "kept": self.kept}[kind][place]

    def _compiled(self, graph: Graph, example: Sequence[Tensor], tables: Sequence[int | None]) -> Executable:
        return self._compile(graph.module, (*example, *Layouts().of(graph.weights, self.products)), tables)


def gradient_tables(block: Block, gradient: Gradient) -> list[RowClass]:
    """The tables whose rows the gradient's program reads, in its order."""
    return list(dict.fromkeys(block.rows[each.place] for each in gradient.inputs if each.kind == "row"))


def _zeros(classes: Sequence[RowClass]) -> list[Tensor]:
    return [torch.zeros(each.shape, dtype=each.dtype) for each in classes]
