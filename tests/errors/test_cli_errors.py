"""One test per message: what the CLI and the public interface say to a mistake, and the exit code."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import disc
from disc import errors
from disc.artifact.manifest import FORMAT_VERSION
from disc.cli.main import main

FACTORY = """
import torch

class Sum(torch.nn.Module):
    def forward(self, ids, mask):
        return ids * mask

def build():
    return Sum(), (torch.randn(2, 3), torch.randn(2, 3))

def fails():
    raise ValueError("no weights here")

class Mismatched(torch.nn.Module):
    def forward(self, x):
        return x @ torch.ones(5, 5)

def mismatched():
    return Mismatched(), (torch.randn(3, 4),)

def wrong():
    return 42

class Sorts(torch.nn.Module):
    def forward(self, x):
        return torch.special.airy_ai(x) + torch.special.hermite_polynomial_h(x, x)

def unsupported():
    return Sorts(), (torch.randn(3, 3),)
"""


class Sum(nn.Module):
    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.cat([ids, ids], 1) * mask


@pytest.fixture(scope="module")
def executable() -> disc.Executable:
    """ids: f32[S0, S1], mask: f32[S0, 2 * S1]."""
    return disc.compile(Sum(), (torch.randn(2, 3), torch.randn(2, 6)))


OWN_OP = """
func.func @main(%x: tensor<?x3xf32>) -> tensor<?x3xf32> {
  %y = "disc.cumulative"(%x) {dim = 1 : i64, kind = "sum"} : (tensor<?x3xf32>) -> tensor<?x3xf32>
  return %y : tensor<?x3xf32>
}
"""


@pytest.fixture(scope="module")
def folder(executable: disc.Executable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("errors")
    (folder / "sum_factory.py").write_text(FACTORY)
    executable.save(folder / "sum.disc")
    return folder


@pytest.fixture(autouse=True)
def _inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


# ---- The command line: arguments, part of the message

MISTAKES = {
    "no command": (["fly"], "No such command 'fly'"),
    "no model": (["compile"], "Missing argument 'MODEL'"),
    "no option": (["run", "sum.disc", "--wings"], "No such option: --wings"),
    "no file": (["compile", "none.mlir"], "none.mlir: there is no such file"),
    "two artifacts": (["inspect", "a.disc", "b.disc"], "extra argument(s) (b.disc); usage: disc inspect [OPTIONS] {MODEL.disc}"),
    "nothing to verify": (["verify"], "Missing argument 'MODEL.disc'; usage: disc verify [OPTIONS] {MODEL.disc}"),
    "onnx": (["compile", "model.onnx"], "model.onnx is not a whole ONNX model"),
    "unknown suffix": (["compile", "model.h5"], "unknown suffix '.h5'; disc reads .pt2, .onnx, .mlir and .mlirbc"),
    "not a pt2": (["compile", "text.pt2"], "text.pt2 is not a .pt2 archive"),
    "not MLIR": (["compile", "text.mlir"], "text.mlir does not parse: text.mlir:1:1"),
    "no module": (["compile", "no_such_module:build"], "cannot import 'no_such_module': there is no such module, neither in"),
    "a path for a module": (["compile", "sum_factory.py:build"], "cannot import 'sum_factory.py': a module goes by its name: disc compile sum_factory:build"),
    "a path in a folder": (["compile", "models/in_a_folder.py:build"], "disc compile in_a_folder:build, in the folder models"),
    "a module that fails": (["compile", "imports_nothing:build"], "cannot import 'imports_nothing': ModuleNotFoundError: No module named 'nothing_at_all' ("),
    "an address": (["compile", "https://example.org/model.onnx"], "https://example.org/model.onnx: nothing is downloaded"),
    "a file of Python": (["compile", "sum_factory.py"], "a function makes the model: disc compile NAME:FUNCTION"),
    "no factory": (["compile", "sum_factory:make"], "'sum_factory' has no function 'make'; it has build, fails, mismatched, unsupported, wrong"),
    "factory fails": (["compile", "sum_factory:fails"], "sum_factory:fails failed: ValueError: no weights here"),
    "export fails": (["compile", "sum_factory:mismatched"], "the model does not accept the example inputs: "),
    "factory returns": (["compile", "sum_factory:wrong"], "must return (module, example_inputs"),
    "unknown target": (["compile", "sum_factory:build", "--target", "z80"], "there is no target 'z80'; the targets are native, x86-64-v3"),
    "any gpu": (["compile", "sum_factory:build", "--target", "cuda"], "there is no target 'cuda' (a GPU goes by its generation); the targets are"),
    "gpu without code": (["compile", "sum_factory:build", "--target", "sm_70"], "there is no target 'sm_70'; the targets are native, "),
    "int8 on a gpu": (["compile", "sum_factory:build", "--target", "sm_90", "--amp", "int8"], 'dtype="int8" is for CPUs, not for sm_90'),
    "no code for a target": (["explain", "sum.disc", "--target", "sm_90"], "has no code for sm_90: it has "),
    "inputs of what is not run": (["explain", "sum.disc", "--target", "native", "--random", "2x3,2x6"], "leave out the inputs"),
    "unknown dtype": (["compile", "sum_factory:build", "--dtype", "f8"], "--dtype f8: the types are f32, f64, f16, bf16"),
    "unknown amp": (["compile", "text.mlir", "--amp", "f32"], "--amp f32: the types are bf16, f16, int8"),
    "dtype of a file": (["compile", "text.mlir", "--dtype", "f32"], "a file has its dims and types already"),
    "no StableHLO to embed": (["compile", "sum_factory:build", "--embed-stablehlo"], "is for models that come as StableHLO"),
    "not portable": (["compile", "own.mlir", "--embed-stablehlo"], "own.mlir cannot be embedded: it is not portable StableHLO: "),
    "unknown dynamic input": (["compile", "sum_factory:build", "--dynamic", "x=0"], "no input 'x'; its inputs are 'ids', 'mask'"),
    "no such dim": (["compile", "sum_factory:build", "--static", "ids=2"], "dims of 'ids' are numbers from 0 to 1"),
    "output folder": (["compile", "sum_factory:build", "-o", "no/where.disc"], "the folder no does not exist"),
    "not an artifact": (["run", "text.mlir", "--random", "2x2"], "not a disc artifact"),
    "a model for its artifact": (["inspect", "model.onnx"], "header: not a disc artifact; disc compile model.onnx makes an artifact of it"),
    "a factory for its artifact": (["run", "sum_factory:build"], "No such file or directory; disc compile sum_factory:build makes an artifact"),
    "a factory to inspect": (["inspect", "sum_factory:build"], "No such file or directory; disc compile sum_factory:build makes an artifact"),
    "no artifact": (["inspect", "none.disc"], "'none.disc': cannot be opened: No such file or directory"),
    "truncated": (["verify", "truncated.disc"], "bytes and has"),
    "newer": (["inspect", "newer.disc"], "is newer than this runtime reads"),
    "missing inputs": (["run", "sum.disc"], "missing 'ids' (f32[S0, S1]), 'mask'"),
    "missing inputs, what to write": (["run", "sum.disc"], "for each, or --random ids=8x8,mask=8x16"),
    "missing size": (["run", "sum.disc", "--random", "ids=2x3"], "missing sizes for 'mask'"),
    "unknown input": (["run", "sum.disc", "--random", "x=2x3"], "'x' is no input; the inputs are 'ids', 'mask'"),
    "given twice": (["run", "sum.disc", "--random", "ids=2x3,ids=2x3"], "'ids' is given twice"),
    "given twice, apart": (["run", "sum.disc", "--random", "ids=2x3", "--random", "ids=2x4"], "'ids' is given twice"),
    "too many inputs": (["run", "sum.disc", "--random", "2x3,2x6,1"], "the model has only 2 inputs"),
    "no size": (["run", "sum.disc", "--random", "ids=two,mask=2x6"], "'two' is no size: write ids=2x17"),
    "wrong rank": (["run", "sum.disc", "--random", "ids=2,mask=2x6"], "input 'ids' is f32[S0, S1]: give 2 sizes, not 1"),
    "empty range": (["run", "sum.disc", "--random", "ids=2x3:5..5,mask=2x6"], "the range 5..5 is empty"),
    "broken relation": (["run", "sum.disc", "--random", "ids=2x3,mask=2x7"], "dim 1 of input 'mask' must equal"),
    "no input file": (["run", "sum.disc", "--input", "none.npy"], "none.npy cannot be read: No such file or directory"),
    "an input folder": (["run", "sum.disc", "--input", "."], ". cannot be read: Is a directory"),
    "no array": (["run", "sum.disc", "--input", "text.mlir"], "text.mlir is no .npy file, which numpy.save(path, array) writes"),
    "half an array": (["run", "sum.disc", "--input", "half.npy"], "half.npy cannot be read as a .npy file: "),
    "objects": (["run", "sum.disc", "--input", "objects.npy"], "objects.npy cannot be read as a .npy file: it holds Python objects"),
    "more than all memory": (["run", "sum.disc", "--random", "ids=9999999x9999999,mask=1x2"], "input 'ids' of [9999999, 9999999] would take 745,057.9 GiB: this machine has "),
    "more than NumPy counts": (["bench", "sum.disc", "--shape", f"ids={10**19}x3,mask=1x6"], "input 'ids' of [10000000000000000000, 3] would take "),
    "a sweep beyond memory": (["explain", "sum.disc", "--random", "2x3,2x6", "--sweep", "S0=99999999999999"], "would take "),
    "no folder for a page": (["explain", "sum.disc", "--html", "no/a.html"], "'no/a.html': the folder no does not exist"),
    "no folder for a timeline": (["explain", "sum.disc", "--random", "2x3,2x6", "--trace", "no/a.json"], "'no/a.json': the folder no does not"),
    "no folder for a graph": (["inspect", "sum.disc", "--export", "no/a.json"], "'no/a.json': the folder no does not exist"),
    "a folder for a page": (["explain", "sum.disc", "--html", "models"], "'models' is a folder, which will not be replaced by a file"),
    "no report": (["debug", "replay", "objects.npz"], "objects.npz is no report of disc: There is no item named 'module.mlir' in the archive"),
    "no report file": (["debug", "replay", "models"], "models cannot be read: Is a directory"),
    "output suffix": (["run", "sum.disc", "--random", "2x3,2x6", "--output", "y.txt"], "--output y.txt: give one .npy file per result"),
    "too many outputs": (["run", "sum.disc", "--random", "2x3,2x6", "--output", "a.npy", "--output", "b.npy"], "2 output files for 1 result"),
    "bench without sizes": (["bench", "sum.disc"], "--shape ids=8x8,mask=8x16"),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _files(folder: Path) -> None:
    for name in ("model.onnx", "model.h5", "text.pt2", "text.mlir"):
        (folder / name).write_text("hello, this is no model of any kind that disc could read")
    (folder / "own.mlir").write_text(OWN_OP)
    (folder / "imports_nothing.py").write_text("import nothing_at_all")
    (folder / "models").mkdir()
    (folder / "models" / "in_a_folder.py").write_text("")
    np.save(folder / "objects.npy", np.array([{}], dtype=object))
    np.savez(folder / "objects.npz", a=np.ones(3))
    (folder / "half.npy").write_bytes((folder / "objects.npy").read_bytes()[:20])
    whole = bytearray((folder / "sum.disc").read_bytes())
    (folder / "truncated.disc").write_bytes(whole[:-100])
    struct.pack_into("<I", whole, 8, FORMAT_VERSION + 1)
    (folder / "newer.disc").write_bytes(whole)


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, message = MISTAKES[name]
    assert main(arguments) == 1
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == "" and "Traceback" not in captured.err


def test_mistake_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "none.disc", "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["kind"], error["exit_code"]) == ("ArtifactError", 1)


def test_unsupported_ops_with_their_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "sum_factory:unsupported"]) == 1
    message = capsys.readouterr().err
    assert "2 ops of this model cannot be compiled" in message
    line = FACTORY.splitlines().index("        return torch.special.airy_ai(x) + torch.special.hermite_polynomial_h(x, x)") + 1
    assert message.count(f"sum_factory.py:{line}") == 2 and "runs such ops in PyTorch" in message


# ---- disc.compile, disc.load and calls


def test_compile_something_else() -> None:
    with pytest.raises(
        errors.UnsupportedFormatError,
        match=r"cannot compile an object of the class int: give a torch.nn.Module, a function of tensors, an ExportedProgram, an exported JAX function or a path",
    ):
        disc.compile(42)  # pyright: ignore[reportArgumentType]


def test_compile_without_inputs() -> None:
    with pytest.raises(errors.UnsupportedFormatError, match="needs example_inputs"):
        disc.compile(Sum())


def test_no_targets() -> None:
    with pytest.raises(errors.TargetError, match="the list of targets is empty"):
        disc.compile(Sum(), (torch.randn(2, 3), torch.randn(2, 6)), target=[])


def test_call_with_the_wrong_rank(executable: disc.Executable) -> None:
    with pytest.raises(errors.InputRankError, match="'ids'"):
        executable(torch.randn(3), torch.randn(2, 6))


def test_call_with_the_wrong_type(executable: disc.Executable) -> None:
    with pytest.raises(errors.InputTypeError, match="'mask'"):
        executable(torch.randn(2, 3), torch.ones(2, 6, dtype=torch.int64))


def test_call_with_too_few_inputs(executable: disc.Executable) -> None:
    with pytest.raises(errors.InputRankError):
        executable(torch.randn(2, 3))


def test_call_with_a_missing_name(executable: disc.Executable) -> None:
    with pytest.raises(errors.InputRankError, match="missing 'mask'"):
        executable(ids=torch.randn(2, 3))


def test_call_with_a_broken_relation(executable: disc.Executable) -> None:
    with pytest.raises(errors.ShapeConstraintError, match=r"dim 1 of input 'mask' must equal.*got 7, expected 6"):
        executable(torch.randn(2, 3), torch.randn(2, 7))


@pytest.mark.parametrize(("name", "message"), [("truncated", "should have"), ("newer", "newer than this runtime")])
def test_load_of_a_bad_file(name: str, message: str) -> None:
    with pytest.raises(errors.ArtifactError, match=message):
        disc.load(f"{name}.disc")


@pytest.mark.parametrize("path", [None, 3, bytes, ["sum.disc"]])
def test_what_is_no_path(executable: disc.Executable, path: object) -> None:
    for use in (disc.load, executable.save):
        with pytest.raises(errors.ArgumentError, match=r"the path of a file is a str or a pathlib\.Path, not .* of the class "):
            use(path)  # pyright: ignore[reportArgumentType]


def test_input_file_of_several_arrays(capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("two.npz", a=np.ones(1), b=np.ones(1))
    assert main(["run", "sum.disc", "--input", "two.npz"]) == 1
    assert "holds several arrays" in capsys.readouterr().err


def test_embedding_a_torch_model() -> None:
    with pytest.raises(errors.UnsupportedFormatError, match="only a model that comes as StableHLO"):
        disc.compile(torch.nn.ReLU(), (torch.randn(2, 3),), options=disc.Options(embed_stablehlo=True))
