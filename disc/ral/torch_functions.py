"""Custom ops that PyTorch runs in the calls of a program: tensors are lent to it, and what it returns is checked and copied.

Nothing here imports PyTorch: a program that needs an op of it is refused where PyTorch, or the op, is not there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from disc.errors import ArtifactError, CustomOpError
from disc.ral import _ral

PREFIX = "torch:"


class TorchFunction:
    """One call of a custom op in a program. like: a tensor of PyTorch, of whose kind the arguments are."""

    def __init__(self, torch: ModuleType, op: Any, arguments: dict[str, dict[str, Any]]) -> None:
        self._torch, self._op = torch, op
        self.like = torch.empty(0)
        parameters = op._schema.arguments
        self._positional = [arguments[each.name] for each in parameters if not each.kwarg_only]
        self._keywords = {each.name: arguments[each.name] for each in parameters if each.kwarg_only}
        self._written = sum("result" in each for each in arguments.values())

    def __call__(self, operands: list[Any], results: list[Any], numbers: list[int]) -> None:
        """operands, results: lent tensors; of what the op writes the results hold the values already.

        Raises what the op raises; CustomOpError where it does not keep what its fake implementation or its schema says.
        """
        torch = self._torch
        given = [*operands, *results[: self._written]]
        versions = [each._version for each in operands]
        storages = [each.untyped_storage() for each in given]
        with torch.no_grad():
            value = self._op(
                *(self._argument(each, operands, results, numbers) for each in self._positional),
                **{name: self._argument(each, operands, results, numbers) for name, each in self._keywords.items()},
            )
            self._take(value, results[self._written :])
        changed = [number for number, (each, version) in enumerate(zip(operands, versions, strict=True)) if each._version != version]
        if changed:
            raise CustomOpError(f"it writes tensor argument {changed[0]}, which its schema does not say (mutates_args): {self._op._schema}")
        del value
        _keep_memory(torch, given, storages, operands, results)

    def _argument(self, encoded: dict[str, Any], operands: Sequence[Any], results: Sequence[Any], numbers: Sequence[int]) -> Any:
        (kind, value), *_ = encoded.items()
        if kind == "tensor":
            return operands[value]
        if kind == "result":
            return results[value]
        if kind == "number":
            return numbers[value]
        if kind == "list":
            return [self._argument(each, operands, results, numbers) for each in value]
        if kind == "torch":
            return getattr(self._torch, value)
        return self._torch.device(value) if kind == "device" else value

    def _take(self, value: Any, results: Sequence[Any]) -> None:
        """Copies what the op returned. Raises CustomOpError where it is not what the fake implementation promised."""
        found = list(value) if isinstance(value, tuple | list) else [value] if value is not None else []
        if len(found) != len(results):
            raise CustomOpError(f"it returned {len(found)} tensors, its fake implementation {len(results)}")
        for number, (own, wanted) in enumerate(zip(found, results, strict=True)):
            which = f"result {number}" if len(results) > 1 else "its result"
            if not isinstance(own, self._torch.Tensor):
                raise CustomOpError(f"{which} is of type {type(own).__name__}, by its fake implementation a tensor")
            if own.shape != wanted.shape:
                raise CustomOpError(f"{which} has shape {tuple(own.shape)}, by its fake implementation {tuple(wanted.shape)}")
            if own.dtype != wanted.dtype or own.layout != wanted.layout or own.device != wanted.device:
                kind, promised = (f"{each.dtype} of layout {each.layout} on {each.device}" for each in (own, wanted))
                raise CustomOpError(f"{which} is {kind}, by its fake implementation {promised}")
            wanted.copy_(own)


def _keep_memory(torch: ModuleType, given: list[Any], storages: Sequence[Any], *lists: list[Any]) -> None:
    """What the op holds on to, beyond the call for which memory was lent, gets memory of its own. All other references are given up."""
    given.clear()
    for each in lists:
        each.clear()
    for storage in storages:
        if torch._C._storage_Use_Count(storage._cdata) > 1 and storage.nbytes():
            storage.share_memory_()


def find(name: str) -> TorchFunction:
    """The function of "torch:{...}" in a program. Raises ArtifactError where it is not in this process, or another one."""
    try:
        if not name.startswith(PREFIX):
            raise ValueError(name)
        record = json.loads(name.removeprefix(PREFIX))
        op, schema, arguments = record["op"], record["schema"], record["arguments"]
        namespace, _, rest = op.partition("::")
        packet, _, overload = rest.partition(".")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(f"the program calls a function that this version of disc does not know: {name[:200]!r}") from error
    torch = sys.modules.get("torch")
    needs = f"the program needs the custom op '{namespace}::{packet}' of PyTorch"
    if torch is None:
        raise ArtifactError(f"{needs}: import torch and what registers the op before loading it")
    try:
        found = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    except AttributeError as error:
        raise ArtifactError(f"{needs}, which is not registered in this process: import what registers it before loading") from error
    if str(found._schema) != schema:
        raise ArtifactError(f"{needs} with the schema {schema}; in this process it is {found._schema}")
    return TorchFunction(torch, found, arguments)


_ral.set_finder(find)
