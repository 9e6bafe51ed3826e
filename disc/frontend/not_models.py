"""What people give in place of a model: what it is, and what to give instead."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

from disc.artifact.file import MODELS as READ
from disc.artifact.pointers import check_pointer
from disc.errors import UnsupportedFormatError
from disc.ral.executable import Executable

OF_WEIGHTS = (".pt", ".pth", ".bin", ".ckpt", ".safetensors")
SCRIPT = "a TorchScript module cannot be compiled: give the torch.nn.Module it was made of, or export that"
LOADING = "make the module, load_state_dict() these into it, and give the module"


def no_model(given: object) -> str:
    """Why an object is no model."""
    if isinstance(given, type):
        return f"{given.__name__} is a class, not a model: give one of its objects, such as {given.__name__}(...).eval()"
    if isinstance(given, Executable) or isinstance(getattr(given, "executable", None), Executable):  # also what disc.hf has compiled
        return "this is a compiled model already: call it, or compile the module that it was made of"
    if isinstance(given, Mapping):
        return f"a dict of weights has no code: {LOADING}"
    if type(given).__module__.partition(".")[0] in ("jax", "jaxlib"):
        return 'a function of JAX is exported first: give jax.export.export(jax.jit(f), platforms=["cpu"])(*shapes): docs/tutorials.md'
    expected = "give a torch.nn.Module, a function of tensors, an ExportedProgram, an exported JAX function or a path"
    return f"cannot compile an object of the class {type(given).__name__}: {expected}"


def check_model_file(path: Path) -> None:
    """Raises UnsupportedFormatError for a path that is none of a model's file."""
    if path.is_dir():
        hint = (
            f'use disc.hf ("disc compile hf:{path} --task ..." on the command line)' if (path / "config.json").is_file() else "give a file"
        )
        raise UnsupportedFormatError(f"{path} is a folder: {hint}")
    if not path.is_file():
        hint = _meant(str(path))
        raise UnsupportedFormatError(f"{path}: there is no such file{hint}")
    check_pointer(path)
    if path.suffix in OF_WEIGHTS and _is_script(path):
        raise UnsupportedFormatError(f"{path}: {SCRIPT}")
    if path.suffix not in READ:
        raise UnsupportedFormatError(f"{path}: {_other_file(path.suffix)}")


def _is_script(path: Path) -> bool:
    """Whether it is an archive of TorchScript, by the folder of its code."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.split("/")[1:2] == ["code"] for name in archive.namelist())


def _meant(given: str) -> str:
    """What somebody may mean who gives no path of a file."""
    if given.startswith("hf:"):
        return "; hf:FOLDER is for the disc command, in Python it is disc.hf"
    if Path(given).suffix in READ:
        return ""
    return (
        "; a model is a file (.pt2, .onnx, .mlir, .mlirbc), a module, or for the disc command package.module:factory; "
        "of Hugging Face a folder: disc.hf.DiscModelForFeatureExtraction.from_pretrained(FOLDER), or disc compile hf:FOLDER --task ..."
    )


def _other_file(suffix: str) -> str:
    if suffix in OF_WEIGHTS:
        return f"files of this kind hold weights without the code that uses them: {LOADING}"
    if suffix == ".disc":
        return "this is a compiled model already: disc.load() it"
    if suffix == ".py":
        return (
            "of a file of Python, a function makes the model: disc compile NAME:FUNCTION, with NAME as in import NAME; "
            "in Python disc.compile(model, example_inputs)"
        )
    return f"unknown suffix {suffix!r}; disc reads {', '.join(READ[:-1])} and {READ[-1]}"
