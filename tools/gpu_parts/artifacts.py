"""What the parts `models`, `shapes`, `times` and `big` load: artifacts for GPUs, made on a machine without one."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

import disc
from disc.api import compile_with_blocks
from disc.artifact import file as artifact
from disc.artifact.manifest import STORAGE, StoredManifest
from disc.codegen.cuda import backend
from disc.ral.executable import Executable
from disc.speculation.block_families import ANY_PRODUCT
from disc.speculation.block_schedules import CUBLASLT
from disc.speculation.block_trees import ALONG_K, BASE, FAST, BlockTree
from disc.speculation.schedules import LIBRARY as QUESTION
from disc.speculation.tree import LEAF
from disc.targets.cuda import read_target
from gpu_parts.arrays import LARGE, Stored
from gpu_parts.job import PACKED, write_packed
from gpu_parts.library import OTHERS
from gpu_parts.recorded import Texts, enter_text
from gpu_parts.report import BOUNDS, TF32
from gpu_parts.timed import TIMED, Linear, Product
from gpu_parts.weights import SMALL, Recipes, seed_module
from tests import models

CPU = "x86-64-v3"  # the reference of random shapes
ARITHMETIC = {"f32": ({}, BOUNDS["f32"]), "bf16": ({"dtype": "bf16"}, BOUNDS["bf16"]), "tf32": ({"tf32": True}, TF32)}
REFERENCES = 2  # sizes of a model of full size whose results are recorded
CALLS = (0, 4, 9)  # of `models.shapes`
BATCH, LENGTH, IMAGE = (1, 6), (1, 96), (32, 96)  # sizes of random calls, by the dim


@dataclass(frozen=True)
class Big:
    """A model of full size. factory: of tests/models.py; inputs: the function there that makes them; sizes: its arguments."""

    factory: str
    arithmetic: str
    inputs: str
    sizes: tuple[tuple[int, ...], ...]


_TEXTS = ((1, 64), (16, 64), (1, 384), (8, 384), (13, 101))
BIG = {
    "bert-base-bf16": Big("bert", "bf16", "text_inputs", _TEXTS),
    "bert-base-f32": Big("bert", "f32", "text_inputs", _TEXTS[:3]),
    "gpt2-bf16": Big("gpt2", "bf16", "text_inputs", _TEXTS),
    "t5-encoder-bf16": Big("t5-encoder", "bf16", "text_inputs", _TEXTS[:3]),
    "vit-base-bf16": Big("vit", "bf16", "image_inputs", ((1, 224, 224), (16, 224, 224))),
}
_PAIR = ((1, 64), (16, 64))
TABLE_1 = {  # of BladeDISC, at the sizes of its section 7.1; each takes a minute and gigabytes of memory to make
    "bert-large-bf16": Big("bert-large", "bf16", "text_inputs", _PAIR),
    "albert-large-bf16": Big("albert-large", "bf16", "text_inputs", _PAIR),
    "openai-gpt-bf16": Big("openai-gpt", "bf16", "text_inputs", _PAIR),
    "t5-large-bf16": Big("t5-large", "bf16", "decoder_inputs", _PAIR),
    "clip-vit-large-bf16": Big("clip-vit-large", "bf16", "image_inputs", ((1, 224, 224), (16, 224, 224))),
}


@contextmanager
def noted(texts: Texts) -> Iterator[None]:
    """What is compiled meanwhile is entered into texts."""
    plain = backend.assemble

    def assemble(versions: Sequence[Any], *rest: Any) -> Mapping[str, Any]:
        found = plain(versions, *rest)
        for each in versions:
            enter_text(texts, found[each.key].code, each)
        return found

    backend.assemble = assemble
    try:
        yield
    finally:
        backend.assemble = plain


def _compile(module: Any, inputs: Any, dims: Any, targets: Sequence[str], texts: Texts, **options: Any) -> Executable:
    with noted(texts):
        return disc.compile(module, inputs, dims, list(targets), disc.Options(cache=False, **options))


# --- small models ----------------------------------------------------------------------------------------------------------


def prepare_models(folder: Path, names: Sequence[str], gpus: Sequence[str], texts: Texts) -> None:
    """names: "bert", or "bert:bf16" for another arithmetic. Writes their listing, and for each an artifact and arrays."""
    (folder / "models").mkdir(exist_ok=True)
    listing = [_model(folder, *_split(name), gpus, texts) for name in names]
    (folder / "models.json").write_text(json.dumps(listing))


def _split(name: str) -> tuple[str, str]:
    model, _, arithmetic = name.partition(":")
    return model, arithmetic or "f32"


def _model(folder: Path, name: str, arithmetic: str, gpus: Sequence[str], texts: Texts) -> dict[str, Any]:
    module, example, dims = models.MODELS[name]()
    options, bound = ARITHMETIC[arithmetic]
    made = _compile(module, example, dims, [CPU, *gpus], texts, **options)
    file, stem = f"models/{name}-{arithmetic}.disc{PACKED}", f"models/{name}-{arithmetic}.npz"
    save_packed(made, folder / file)
    arrays = dict[str, Any]()
    calls = [models.shapes(name)[number] for number in CALLS]
    for call, inputs in enumerate(calls):
        with torch.inference_mode():
            results = [each for each in tree_leaves(module(*inputs)) if isinstance(each, torch.Tensor)]
        arrays |= {f"{call}.i{number}": each.numpy() for number, each in enumerate(inputs)}
        arrays |= {f"{call}.o{number}": each.numpy() for number, each in enumerate(results)}
    np.savez_compressed(folder / stem, **arrays)
    print(f"{name}, {arithmetic}: an artifact", flush=True)
    about = {"name": f"{name}-{arithmetic}", "file": file, "arrays": stem, "calls": len(calls), "bound": bound, "cpu": CPU}
    return {**about, "sizes": _ranges(made, name in ("resnet", "convnext")), "high": models.VOCABULARY}


def save_packed(made: Executable, file: Path) -> None:
    """Writes an artifact, packed."""
    with tempfile.TemporaryDirectory() as scratch:
        plain = Path(scratch) / "model.disc"
        made.save(plain)
        write_packed(file, plain.read_bytes())


def _ranges(made: Executable, images: bool) -> dict[str, tuple[int, int, int]]:
    """Of each symbol, the least and the greatest size that random calls may have, and the dim: inputs agree in each."""
    ranges: dict[str, tuple[int, int, int]] = {}
    for record in made.manifest["symbols"]:
        _, _, dim = record.get("source", "").removeprefix("arg").partition(".")
        if dim:
            ranges[record["name"]] = (*(BATCH if dim == "0" else IMAGE if images else LENGTH), int(dim))
    return ranges


# --- programs that are timed -----------------------------------------------------------------------------------------------


def prepare_timed(folder: Path, names: Sequence[str], gpus: Sequence[str], texts: Texts) -> None:
    """The programs of timed.py."""
    (folder / "timed").mkdir(exist_ok=True)
    dtypes = {"f32": torch.float32, "bf16": torch.bfloat16}
    for name in names:
        timed = TIMED[name]
        example = tuple(torch.zeros(shape, dtype=dtypes[timed.element]) for shape in timed.tiny)
        dims = tuple(dict.fromkeys(each, torch.export.Dim.AUTO) for each in timed.dims)
        made = _compile(timed.build().eval(), example, dims, gpus, texts, tf32=timed.tf32)
        save_packed(made, folder / "timed" / f"{name}.disc{PACKED}")
        print(f"{name}: an artifact", flush=True)


# --- products by the GPU's library -----------------------------------------------------------------------------------------


class _Layer(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return a @ b.mT + bias


def prepare_library(folder: Path, kinds: Sequence[str], gpu: str, texts: Texts) -> None:
    """A product of each kind, with a bias, and a batch: by one schedule of disc's own, and by cuBLASLt where it is there."""
    (folder / "library").mkdir(exist_ok=True)
    tree = BlockTree((ANY_PRODUCT, CUBLASLT), ((QUESTION, 0, 1, 2), (LEAF, 0, 0, 0), (LEAF, 1, 0, 0)))
    target = read_target(gpu).gpu
    assert target is not None
    for name in (*kinds, *OTHERS):
        along, element = name in ALONG_K.values(), torch.float32 if "tf32" in name else torch.bfloat16
        shapes = OTHERS[name][1] if name in OTHERS else ((5, 16), (24, 16) if along else (16, 24))
        module = _Layer() if name == "bias" else Linear() if along else Product()
        example = tuple(torch.zeros(shape, dtype=element) for shape in shapes)
        dims: tuple[object, ...] = tuple(dict.fromkeys(range(len(shape)), torch.export.Dim.AUTO) for shape in shapes)
        if name == "bias":  # no broadcast is left open where columns are one size
            columns, depth = torch.export.Dim("columns"), torch.export.Dim("depth")
            dims = ({0: torch.export.Dim.AUTO, 1: depth}, {0: columns, 1: depth}, {0: columns})
        with noted(texts):
            made = compile_with_blocks(module.eval(), example, dims, target, dict.fromkeys(BASE, tree), BASE.get(name) == FAST)
        save_packed(made, folder / "library" / f"{name}.disc{PACKED}")
    print(f"cuBLASLt: {len(kinds) + len(OTHERS)} artifacts")


# --- models of full size ---------------------------------------------------------------------------------------------------


def prepare_big(folder: Path, names: Sequence[str], full: bool, gpus: Sequence[str], texts: Texts) -> None:
    """Artifacts without the weights that seeds make. full: the published sizes; else small ones, for the stand-in."""
    (folder / "big").mkdir(exist_ok=True)
    (folder / "big.json").write_text(json.dumps([_big(folder, name, (BIG | TABLE_1)[name], full, gpus, texts) for name in names]))


def _big(folder: Path, name: str, big: Big, full: bool, gpus: Sequence[str], texts: Texts) -> dict[str, Any]:
    build: Callable[..., Any] = models.BUILDERS[big.factory]
    module, example, dims = build(full=full)
    parameters = seed_module(module)
    path = folder / "big" / f"{name}.disc"
    _compile(module, example, dims, gpus, texts, **ARITHMETIC[big.arithmetic][0]).save(path)
    content = path.read_bytes()
    path.unlink()
    begin = len(content) - len(artifact.sections(memoryview(content))["weights"])
    head, stem = f"big/{name}.head{PACKED}", f"big/{name}.npz"
    write_packed(folder / head, content[:begin])
    weights, plain = _weights(content, begin, Recipes(parameters))
    sizes = big.sizes if full else [_small(big)]
    arrays = Stored()
    references = [_reference(module, getattr(models, big.inputs)(*each), arrays) for each in sizes[:REFERENCES]]
    plain |= arrays.plain
    np.savez_compressed(folder / stem, **plain)
    made = len([each for each in weights if each["recipe"] is not None])
    print(f"{name}: {made} of {len(weights)} weights from seeds, {sum(each.nbytes for each in plain.values()) / 2**20:.1f} MiB as they are")
    about: dict[str, Any] = {"name": name, "factory": big.factory, "full": full, "arithmetic": big.arithmetic, "inputs": big.inputs}
    about |= {"references": references, "about": arrays.about, "parameters": {name: array.shape for name, array in parameters.items()}}
    return {**about, "sizes": sizes, "head": head, "arrays": stem, "size": len(content), "weights": weights}


def _reference(module: Any, inputs: Sequence[torch.Tensor], arrays: Stored) -> dict[str, Any]:
    """For a machine without transformers: inputs, and eager's first result."""
    given = list(inputs)
    for number, each in enumerate(inputs):
        if each.dtype == torch.float32 and each.nbytes > LARGE:
            given[number] = torch.from_numpy(arrays.draw(each.numpy(), f"input {number} of {tuple(each.shape)}", bf16=False))
    with torch.inference_mode():
        wanted = next(each for each in tree_leaves(module(*given)) if isinstance(each, torch.Tensor))
    return {"inputs": [arrays.argument(each.numpy()) for each in given], "result": arrays.result(wanted.float().numpy(), "f32")}


def _small(big: Big) -> tuple[int, ...]:
    return (2, 32, 32) if big.inputs == "image_inputs" else (2, 5)


def _weights(content: bytes, begin: int, recipes: Recipes) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Where each weight lies in the file and how it is made; those that are stored, by number."""
    stored = cast("StoredManifest", artifact.stored_manifests(artifact.text_sections(memoryview(content)))[0])
    weights, plain, seen = list[dict[str, Any]](), dict[str, Any](), set[int]()
    for record in stored["weights"]:
        if record["offset"] in seen:  # two names for the same values
            continue
        seen.add(record["offset"])
        place = begin + record["offset"]
        array = np.frombuffer(content[place : place + record["size"]], STORAGE[record["dtype"]]).reshape(record["shape"])
        recipe = recipes.find(array) if record["size"] > SMALL else None
        if recipe is None:
            plain[f"w{len(weights)}"] = array
        weights.append({"offset": place, "recipe": recipe})
    return weights, plain
