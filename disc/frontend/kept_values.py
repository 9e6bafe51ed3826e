"""What a module keeps from call to call in plain attributes: PyTorch restores them behind an export, and a program has no such memory.

self.total = self.total + x    # a tensor that is read before it is set: refused; a buffer would be kept
self.calls += 1                # a number, a list, a tensor that is set alone: a warning
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram

from disc.errors import UnsupportedOp, UnsupportedOpError, warn
from disc.frontend.kept_caches import caches_restored, is_mark
from disc.frontend.model_functions import OF_EVERY_MODULE

BUFFER = "forward reads what an earlier call left there, and it is no buffer: register_buffer keeps it from call to call"


@dataclass
class KeptValues:
    """before: path of each plain attribute → what it holds. set_by_forward: those of them that forward changes. elsewhere: names of
    what else keeps tensors or numbers of a call."""

    model: torch.nn.Module
    before: dict[str, object]
    elsewhere: list[str] = field(default_factory=list[str])  # names of what else is kept
    set_by_forward: dict[str, object] = field(default_factory=dict[str, object])

    def compare(self) -> None:
        after = _held(self.model)
        for path in self.before.keys() | after.keys():
            old = self.before.get(path)
            if _differ(old, after.get(path)) and not (path not in self.before and is_mark(path.rpartition(".")[2], after[path])):
                self.set_by_forward[path] = old[-1] if isinstance(old, tuple) else old

    def restore(self) -> None:
        """Takes back the tensors and sizes of the trace, which mean nothing behind it, also where it has failed."""
        after = _held(self.model)
        for path, value in after.items():
            if isinstance(value, FakeTensor | torch.SymInt) and value is not self.before.get(path):
                module, _, attribute = path.rpartition(".")
                place = vars(self.model.get_submodule(module))
                if path in self.before and not isinstance(self.before[path], tuple):
                    place[attribute] = self.before[path]
                else:
                    del place[attribute]

    def check(self, program: ExportedProgram) -> None:
        """Warns of what a call leaves behind and a program does not. Raises UnsupportedOpError for tensors that it also reads."""
        places = {_place(value) for value in program.constants.values() if isinstance(value, torch.Tensor)}
        tensors = [(path, old) for path, old in self.set_by_forward.items() if isinstance(old, torch.Tensor) and old.numel()]
        read = [path for path, old in tensors if _place(old) in places]
        if read:
            raise UnsupportedOpError([UnsupportedOp(f"attribute {path}", BUFFER, self._line(path)) for path in sorted(read)])
        if self.set_by_forward or self.elsewhere:
            names = ", ".join(sorted({*self.set_by_forward, *self.elsewhere}))
            warn(f"forward sets {names}: a compiled program does not, and begins each call with what was there when it was compiled")

    def _line(self, path: str) -> str:
        """Of the forward of the module that has the attribute."""
        code = getattr(type(self.model.get_submodule(path.rpartition(".")[0])).forward, "__code__", None)
        return f"{Path(code.co_filename).name}:{code.co_firstlineno}" if code is not None else "unknown line"


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@contextmanager
def kept_values(model: torch.nn.Module, named: Sequence[object]) -> Iterator[KeptValues]:
    """Looks at the attributes of the modules where `forward` ends. Caches are what they were afterwards. named: what the model consists
    of."""
    kept = KeptValues(model, _held(model))
    hook = model.register_forward_hook(lambda module, inputs, result: kept.compare())
    try:
        with caches_restored(named) as kept.elsewhere:
            yield kept
    finally:
        hook.remove()
        kept.restore()


def _held(model: torch.nn.Module) -> dict[str, object]:
    """Path of an attribute that is no parameter, buffer or module → a tensor or number itself, or what tells a container from itself
    after a change."""
    found: dict[str, object] = {}
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if attribute in OF_EVERY_MODULE or (isinstance(module, torch.nn.RNNBase) and attribute.startswith("_flat_weight")):
                continue  # the latter: lists of an LSTM's parameters, which PyTorch makes anew where these are replaced for a trace
            path = f"{name}.{attribute}" if name else attribute
            if value is None or isinstance(value, torch.Tensor | bool | int | float | torch.SymInt):
                found[path] = value
            elif isinstance(value, list | dict | set):
                items = value.values() if isinstance(value, dict) else value
                found[path] = (*map(id, items), value)
    return found


def _differ(old: object, new: object) -> bool:
    if isinstance(old, bool | int | float) and isinstance(new, bool | int | float):
        return old != new and not (old != old and new != new)
    if isinstance(old, tuple) and isinstance(new, tuple):
        return old[:-1] != new[:-1]
    return old is not new
