"""Kernels for a GPU against the interpreter of the IR: every fusion of a program, every version whose guard holds, the very text that is
compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from fused_programs import NUMBER, Fused
from interpreted import launch
from torch_mlir import ir

from disc.codegen.cuda.kernel import DeviceKernel
from disc.codegen.cuda.types import NARROW
from disc.codegen.fusions import Place
from disc.ir.bf16 import bf16_bits, bf16_values
from disc.ir.interp import oracle
from disc.ir.interp.values import Array


@dataclass(frozen=True)
class Seen:
    """A fusion as the interpreter ran it once."""

    operands: list[Array]
    results: list[Array]
    sizes: Mapping[str, int]


Launched = Callable[[Place, DeviceKernel, Seen, float], int]


class Checked(Fused):
    """A program whose kernels run in Triton's interpreter. launched: in place of that, what is done with each kernel that ran."""

    launched: ClassVar[Launched | None] = None

    def run(self, inputs: Sequence[Array]) -> dict[int, list[Seen]]:
        """What each fusion got and gave for these inputs of the program."""
        seen: dict[int, list[Seen]] = {}
        plain = oracle.RULES["kernel.fusion"]

        def watched(op: ir.Operation, operands: list[Array], scope: Any) -> list[Array]:
            results = plain(op, operands, scope)
            seen.setdefault(ir.IntegerAttr(op.attributes[NUMBER]).value, []).append(
                Seen(list(operands), list(results), dict(scope.symbols))
            )
            return results

        rules: dict[str, Any] = oracle.RULES  # pyright: ignore[reportAssignmentType]
        rules["kernel.fusion"] = watched
        try:
            oracle.interpret(self.module, inputs, self.weights)
        finally:
            rules["kernel.fusion"] = plain
        return seen

    def check(self, inputs: Sequence[Array], tolerance: float = 1e-5, *, once: bool = False) -> int:
        """Every version of every kernel gives what the interpreter gives; how many did. once: equal kernels of equal sizes count as one."""
        count = 0
        seen, done = self.run(inputs), set[object]()
        for number, (place, kernel) in enumerate(zip(self.places, self.kernels, strict=True)):
            for each in seen.get(number, ()):
                key = tuple(version.key for version in kernel.versions), tuple(x.shape for x in each.operands)
                if not (once and key in done):
                    count += (type(self).launched or _check)(place, kernel, each, tolerance)
                done.add(key)
        return count


def _tensor(array: Array, element: str) -> torch.Tensor:
    if element == "bf16":
        return torch.from_numpy(bf16_bits(array).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(array).copy().reshape(array.shape))


def _array(tensor: torch.Tensor) -> Array:
    if tensor.dtype == torch.bfloat16:
        return bf16_values(tensor.view(torch.uint16).numpy())
    return tensor.numpy()


def _check(place: Place, kernel: DeviceKernel, seen: Seen, tolerance: float) -> int:
    body = place.work.body
    sizes = {name: seen.sizes[name] for name in kernel.symbols}
    count = 0
    for version in kernel.versions:
        if not version.guard.holds(seen.sizes, 1 << 30):
            continue
        arguments = {
            f"a{number}": _tensor(x, node.element) for number, (x, node) in enumerate(zip(seen.operands, body.arguments, strict=True))
        }
        results = {
            f"r{number}": _poisoned(_tensor(x, node.element))
            for number, (x, node) in enumerate(zip(seen.results, body.yields, strict=True))
        }
        fault = launch(version, arguments, results, {**seen.sizes, **sizes})
        assert not fault[0], f"{place.work.name} reports {fault}"
        for number, (wanted, node) in enumerate(zip(seen.results, body.yields, strict=True)):
            found = _array(results[f"r{number}"])
            scale = {"bf16": 2**-7, "f16": 2**-9}.get(node.element, tolerance)
            if kernel.kind == "attention" and node.element in NARROW:
                scale *= 2  # the interpreter rounds scores, kernels keep them in f32
            difference = mismatch(found, wanted, scale)
            assert not difference, f"{place.work.name} {version.guard}, result {number} of {seen.sizes}: {difference}\n{version.text}"
        count += 1
    return count


def _poisoned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor.fill_(1)


def mismatch(found: Array, wanted: Array, tolerance: float) -> str:
    """Where two arrays differ by more than a tolerance, relative to the largest element; "" where they do not. NaN equals NaN."""
    if found.dtype.kind != "f":
        bad = found != wanted
    else:
        finite = wanted[np.isfinite(wanted)]
        scale = tolerance * max(1.0, float(np.abs(finite).max(initial=0)))
        with np.errstate(all="ignore"):
            bad = ~((np.abs(found - wanted) <= scale) | (found == wanted) | (np.isnan(found) & np.isnan(wanted)))
    if not bad.any():
        return ""
    where = tuple(int(axis[0]) for axis in np.nonzero(bad))
    return f"{int(bad.sum())} of {bad.size} differ, first at {where}: {found[where]} for {wanted[where]}"
