"""What `disc.batched` gives: an ordinary Python model over trees, graphs, lists and decisions, run as batches of compiled blocks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakKeyDictionary

import torch

from disc.errors import InputTypeError, InstanceError, UnsupportedFormatError
from disc.frontend.batched.blocks import Block, CompileBlock, Lift
from disc.frontend.batched.explain import explained
from disc.frontend.batched.model import Model
from disc.frontend.batched.products import CompileProduct, Products
from disc.frontend.batched.saving import save_model
from disc.frontend.batched.techniques import ALL, Techniques
from disc.frontend.batched.trained import TrainedModel
from disc.frontend.batched.trained_blocks import TrainedBlock
from disc.frontend.batched.values import BATCHED

if TYPE_CHECKING:
    from disc.ral.executable import Executable

Target = TypeVar("Target")


class LiftedBlock:
    """A block for B instances as one compiled program."""

    takes_weights = False

    def __init__(self, block: Block, compile_block: CompileBlock) -> None:
        numbers = [torch.zeros((), dtype=torch.int64) for _ in range(block.values)]
        example = (*(torch.zeros(each.shape, dtype=each.dtype) for each in block.rows), *numbers)
        tables = block.tables()
        self.executable: Executable | None = compile_block(
            block.module, example, [*map(tables.index, block.rows), *(None for _ in numbers)]
        )

    def __call__(
        self,
        tables: Sequence[torch.Tensor],
        rows: Sequence[torch.Tensor],
        values: Sequence[torch.Tensor],
        out: Sequence[torch.Tensor],
    ) -> None:
        """As `Lifted`."""
        assert self.executable is not None
        self.executable(*tables, *rows, *values, out=out[0] if len(out) == 1 else tuple(out))


class Batched:
    """A model that takes one instance, and many together. Attributes of the module are found through it. Of a model of several arguments an
    instance is a tuple of them, and a call is given them one by one.

    Results carry gradients where these are asked for. Calls of several threads take turns.
    """

    def __init__(
        self, target: torch.nn.Module | FunctionType, lift: Lift, techniques: Techniques = ALL, trained: Lift | None = None
    ) -> None:
        """lift: compiles blocks with their weights as constants. trained: blocks that give gradients; None: `lift`, and PyTorch does."""
        self.__disc_target__ = target
        self._model = Model(target, lift, techniques)
        self._trained = TrainedModel(target, trained or lift, techniques)

    def __call__(self, *arguments: object) -> Any:
        """The result of one instance. Raises what the model raises."""
        if self.is_running() or not self.takes(len(arguments)):
            return self.__disc_target__(*arguments)
        try:
            return self._model.batch([arguments if self._model.members.several else arguments[0]])[0]
        except InstanceError as error:
            raise error.failures[0] from error

    def takes(self, count: int) -> bool:
        """Whether a call with `count` arguments is one of an instance; others are the model's own."""
        return count == max(1, len(self._model.members.names))

    def is_running(self) -> bool:
        """Whether this thread is in a batch: the model calls itself from what runs in Python."""
        return any(getattr(each.running, "active", False) for each in (self._model, self._trained))

    def batch(self, instances: Sequence[object], *, gradients: bool = False) -> list[Any]:
        """`[model(each) for each in instances]`, computed together. gradients: of weights, and of the tensors of instances that require
        them, can be computed of the results, once. Raises InstanceError where instances fail, with the other results; InputTypeError for
        what is no sequence."""
        if not isinstance(instances, Sequence) or isinstance(instances, str | bytes):
            raise InputTypeError(f"batch takes a list of instances, not a {type(instances).__name__}; for one instance call the model")
        return (self._trained if gradients else self._model).batch(instances)

    def save(self, path: str | os.PathLike[str], instances: Sequence[object] | None = None) -> None:
        """Writes an artifact that `disc.load` runs without PyTorch and without the model's code: docs/batched.md says of which models.
        instances: a batch to run first, where none has run that shows all that the model does. Raises SaveError, which names the line that
        needs Python; OutputError."""
        if instances is not None:
            self.batch(instances)
        save_model(self._model, path, instances or ())

    def explain(self, instances: Sequence[object] | None = None) -> str:
        """The blocks, how often and with how many rows each was launched since the model was made, and what did not batch, with its line.
        instances: a batch to run first."""
        if instances is not None:
            self.batch(instances)
        plain, trained = explained(self._model), self._trained.counts.batches
        return f"{plain}\nwith gradients:\n{explained(self._trained)}" if trained else plain

    def stats(self) -> dict[str, int]:
        """Counts since the model was made: batches, instances, launches of compiled blocks and the rows in them, block calls that PyTorch
        ran, or whose gradients it computed, one by one (eager), results that were wanted before others could wait (immediate), blocks
        compiled (compiles), batches by a native walk over the instances (walked) or by the runtime's interpreter (interpreted), and how
        often all was forgotten as a weight or a setting had changed (recaptures)."""
        plain, trained = (_counted(each) for each in (self._model, self._trained))
        return {name: count + trained[name] for name, count in plain.items()}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__disc_target__, name)


def _counted(model: Model) -> dict[str, int]:
    counts, kinds = model.counts, [kind for region in model.regions() for kind in region.kinds.values()]
    return {
        "batches": counts.batches,
        "instances": counts.instances,
        "launches": counts.launches,
        "rows": sum(size * times for kind in kinds for size, times in kind.sizes.items()),
        "eager": sum(kind.eager + (kind.lifted.eager if isinstance(kind.lifted, TrainedBlock) else 0) for kind in kinds),
        "immediate": counts.immediate,
        "compiles": counts.compiles,
        "walked": counts.walked,
        "interpreted": counts.interpreted,
        "recaptures": counts.recaptures,
    }


def make_batched(model: Target, compile_block: CompileBlock, compile_product: CompileProduct) -> Target:
    """As `disc.api.batched`, which says how blocks are compiled, and the products that weights get."""

    products = Products(compile_product)

    def plain(block: Block) -> LiftedBlock:
        return LiftedBlock(block, compile_block)

    def trained(block: Block) -> TrainedBlock:
        return TrainedBlock(block, compile_block, products)

    if isinstance(model, type) and issubclass(model, torch.nn.Module):
        return cast("Target", _batched_class(model, lambda module: Batched(module, plain, trained=trained)))
    if not isinstance(model, torch.nn.Module | FunctionType):
        given = f"an object of the class {type(model).__name__}"
        raise UnsupportedFormatError(f"cannot batch {given}: give a torch.nn.Module, a class of modules, or a function")
    return cast("Target", Batched(model, plain, trained=trained))


def _batched_class(cls: type[torch.nn.Module], make: Callable[[torch.nn.Module], Batched]) -> type[torch.nn.Module]:
    """The class itself, with the methods of `Batched`."""
    runners: WeakKeyDictionary[torch.nn.Module, Batched] = WeakKeyDictionary()
    eager = cls.__call__

    def runner(module: torch.nn.Module) -> Batched:
        found = runners.get(module)
        if found is None:
            found = runners[module] = make(module)
        return found

    def call(self: torch.nn.Module, *arguments: object, **named: object) -> object:
        batched = runner(self)
        if named or batched.is_running() or not batched.takes(len(arguments)):
            return eager(self, *arguments, **named)
        return batched(*arguments)

    def method(name: str) -> Callable[..., object]:
        def forwarded(self: torch.nn.Module, *arguments: object, **named: object) -> object:
            return getattr(runner(self), name)(*arguments, **named)

        forwarded.__name__, forwarded.__doc__ = name, getattr(Batched, name).__doc__
        return forwarded

    setattr(call, BATCHED, True)
    cls.__call__ = call
    for name in ("batch", "explain", "save", "stats"):
        setattr(cls, name, method(name))
    return cls
