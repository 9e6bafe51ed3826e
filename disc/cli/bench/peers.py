"""Who `disc bench --against` knows: each opened in a process of its own, bound to arrays, called."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from disc.cli.bench.runtimes import open_openvino, open_ort
from disc.errors import ConfigurationError, how_to_install, printable

if TYPE_CHECKING:
    import torch

    from disc.artifact.manifest import InputRecord

Array = npt.NDArray[np.generic]
Call = Callable[[], object]
Bind = Callable[[Sequence[Array]], Call]


@dataclass(frozen=True)
class Bench:
    """What a peer is opened with. source, task: the model, as `disc compile` takes it. records: the artifact's inputs. threads: per call.
    callers: who call at the same time. folder: of files that the peers share."""

    source: str
    task: str | None
    records: Sequence[InputRecord]
    threads: int
    callers: int
    folder: Path

    @property
    def names(self) -> list[str]:
        return [record["name"] for record in self.records]


@dataclass(frozen=True)
class Opened:
    """bind: arrays in the order of the artifact's inputs → a call, one per caller. arrays: of what a call returns."""

    bind: Bind
    arrays: Callable[[Any], list[Array]]


def open_eager(bench: Bench) -> Opened:
    return _open_torch(bench, lambda module: module)


def open_inductor(bench: Bench) -> Opened:
    import torch

    return _open_torch(bench, lambda module: torch.compile(module, dynamic=True))


def _open_torch(bench: Bench, prepare: Callable[[torch.nn.Module], Callable[..., object]]) -> Opened:
    from disc.cli.bench.source import read_source

    source = read_source(bench.source, bench.task)
    function = prepare(source.module.requires_grad_(False))  # no_grad is of one thread, and callers have their own

    def bind(arrays: Sequence[Array]) -> Call:
        tensors = [_tensor(array, record["dtype"]) for array, record in zip(arrays, bench.records, strict=True)]
        args, kwargs = source.filled(bench.names, tensors)
        return lambda: function(*args, **kwargs)

    return Opened(bind, _tensors)


def _tensor(array: Array, dtype: str) -> torch.Tensor:
    import torch

    tensor = torch.from_numpy(np.ascontiguousarray(array)).reshape(array.shape)
    return tensor.view(torch.bfloat16) if dtype == "bf16" else tensor


def _tensors(result: object) -> list[Array]:
    import torch
    from torch.utils import _pytree as pytree

    found = [leaf.detach() for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    return [(leaf.float() if leaf.dtype == torch.bfloat16 else leaf).numpy() for leaf in found]


def open_ort_file(bench: Bench) -> Opened:
    return _open_file(bench, lambda path: open_ort(path, bench.threads, "f32"), list)


def open_openvino_file(bench: Bench) -> Opened:
    def arrays(result: Mapping[object, Array]) -> list[Array]:
        return [np.array(each) for each in result.values()]

    return _open_file(bench, lambda path: open_openvino(path, bench.threads, "f32", bench.callers), arrays)


def _open_file(
    bench: Bench, open_path: Callable[[Path], Callable[[Sequence[Array]], Call]], arrays: Callable[[Any], list[Array]]
) -> Opened:
    """A runtime of ONNX files. The exporter leaves out inputs that change nothing."""
    from disc.cli.bench.source import onnx_file

    path = onnx_file(bench.source, bench.task, bench.records, bench.folder)
    kept = _kept(path, bench.names)
    bind = open_path(path)
    return Opened(lambda given: bind([array for array, keep in zip(given, kept, strict=True) if keep]), arrays)


def _kept(path: Path, names: Sequence[str]) -> list[bool]:
    """Which of the artifact's inputs the file has. An ONNX file that somebody else wrote has all, in the same order."""
    import onnx  # pyright: ignore[reportMissingImports]

    graph = cast("Any", onnx.load(str(path), load_external_data=False)).graph
    own = {each.name for each in graph.initializer}
    inputs = [each.name for each in graph.input if each.name not in own]
    return [True] * len(names) if len(inputs) == len(names) else [name in inputs for name in names]


@dataclass(frozen=True)
class Peer:
    """needs: its packages. onnx: it can run a model that comes as an ONNX file."""

    open: Callable[[Bench], Opened]
    needs: tuple[str, ...]
    onnx: bool = False


PEERS: dict[str, Peer] = {
    "eager": Peer(open_eager, ("torch",)),
    "inductor": Peer(open_inductor, ("torch",)),
    "ort": Peer(open_ort_file, ("onnx", "onnxruntime"), onnx=True),
    "openvino": Peer(open_openvino_file, ("onnx", "openvino"), onnx=True),
}


def peers_of(text: str) -> list[str]:
    """The names of "eager,ort". Raises ConfigurationError for one that is not known."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in PEERS]
    if unknown or not names:
        raise ConfigurationError(f"--against {printable(text)}: the peers are {', '.join(PEERS)}")
    return list(dict.fromkeys(names))


def obstacle(name: str, source: str) -> str | None:
    """Why a peer cannot take part, before it is started; None: it may."""
    if source.endswith(".onnx") and not PEERS[name].onnx:
        return f"it runs PyTorch models, and {source} is none"
    missing = [package for package in PEERS[name].needs if importlib.util.find_spec(package) is None]
    if not missing:
        return None
    return f"not installed: {', '.join(missing)}; install with: {how_to_install('compile' if 'torch' in missing else 'peers')}"
