"""From what a user has to stage `imported`: which front end reads which kind of model."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_mlir import ir

from disc.errors import ConfigurationError, UnsupportedFormatError, how_to_install
from disc.frontend.imported import Imported
from disc.frontend.jax_export import JaxProgram, is_exported, program_of_jax
from disc.frontend.not_models import check_model_file, no_model

if TYPE_CHECKING:
    import numpy as np
    import torch

    Examples = torch.Tensor | np.ndarray[Any, Any] | Sequence[object] | Mapping[str, object] | None
    from disc.frontend.jax_export import Exported

    Model = torch.nn.Module | Callable[..., object] | torch.export.ExportedProgram | Exported | str | os.PathLike[str]
    Program = torch.export.ExportedProgram | JaxProgram | Path

DynamicShapes = Mapping[str, object] | Sequence[object] | None


def import_model(model: Model, example_inputs: Examples, dynamic_shapes: DynamicShapes, context: ir.Context) -> Imported:
    """The module at stage `imported`. Raises what `disc.compile` raises on the way there."""
    return import_program(program_of(model, example_inputs, dynamic_shapes), context)


def program_of(model: Model, example_inputs: Examples, dynamic_shapes: DynamicShapes) -> Program:
    """The model without Python code: a file, or an exported program."""
    import torch

    if is_exported(model):
        if example_inputs is not None or dynamic_shapes is not None:
            raise UnsupportedFormatError(
                "example_inputs and dynamic_shapes are for modules: an exported JAX function has its shapes already"
            )
        return program_of_jax(model)
    if dynamic_shapes is not None and isinstance(model, str | os.PathLike | torch.export.ExportedProgram):
        raise UnsupportedFormatError("dynamic_shapes is for a torch.nn.Module; a file or an exported program has its dims already")
    if isinstance(model, str | os.PathLike):
        path = Path(model)
        check_model_file(path)
        return path if path.suffix != ".onnx" or example_inputs is None else _export_onnx(path, example_inputs)
    from disc.frontend.examples import examples_of
    from disc.frontend.exported import export_module, with_plain_weights
    from disc.frontend.functions import as_module

    if isinstance(model, torch.export.ExportedProgram):
        return with_plain_weights(model)
    module = model if isinstance(model, torch.nn.Module) else as_module(model)
    if module is None:
        raise UnsupportedFormatError(no_model(model))
    if example_inputs is None:
        raise UnsupportedFormatError("compiling a module or function needs example_inputs: one tuple of valid inputs of any size")
    args, kwargs = examples_of(example_inputs)
    return export_module(module, args, dynamic_shapes, kwargs)


def import_program(program: Program, context: ir.Context) -> Imported:
    if isinstance(program, Path):
        return _import_file(program, context)
    if isinstance(program, JaxProgram):
        from disc.frontend.stablehlo import import_stablehlo

        return import_stablehlo(program.text or program.bytecode, context, program.name)
    from disc.frontend.exported import import_exported

    return import_exported(program, context)


def _import_file(path: Path, context: ir.Context) -> Imported:
    from disc.frontend.stablehlo import load_stablehlo

    if path.suffix == ".onnx":
        from disc.frontend.exported import import_exported

        return import_exported(_export_onnx(path), context)
    if path.suffix == ".pt2":
        from disc.frontend.exported import import_exported, load_pt2

        return import_exported(load_pt2(path), context)
    return load_stablehlo(path, context)


def _export_onnx(path: Path, example_inputs: Examples = None) -> torch.export.ExportedProgram:
    """example_inputs: whose sizes the trace takes. Raises: ConfigurationError where the package `onnx` is missing."""
    try:
        from disc.frontend.onnx.program import export_onnx
    except ModuleNotFoundError as error:
        raise _needs_onnx(error) from error
    return export_onnx(path, example_inputs)


def model_files(path: Path) -> list[Path]:
    """The files of a model: its own and, of an ONNX model, those beside it that hold its weights.

    Raises: UnsupportedFormatError for an ONNX file that is damaged, or whose data lie outside of its folder; ConfigurationError.
    """
    if path.suffix != ".onnx":
        return [path]
    try:
        from disc.frontend.onnx.file import data_files
    except ModuleNotFoundError as error:
        raise _needs_onnx(error) from error
    return [path, *data_files(path)]


def _needs_onnx(error: ModuleNotFoundError) -> ConfigurationError:
    return ConfigurationError(f"an ONNX file needs the package '{error.name}'; install it with: {how_to_install('onnx')}")


def stablehlo_of(program: Program) -> bytes:
    """The bytecode for `Options.embed_stablehlo`. Raises UnsupportedFormatError where the model is no StableHLO."""
    from disc.frontend.stablehlo import portable_bytecode

    if isinstance(program, JaxProgram):
        return program.bytecode
    if not isinstance(program, Path):
        raise UnsupportedFormatError("embed_stablehlo: only a model that comes as StableHLO (.mlir, .mlirbc) can be embedded as StableHLO")
    return portable_bytecode(program)
