"""Typical mistakes of people who come from torch.compile, ONNX Runtime or Triton, and the whole text that each of them reads.

Each mistake is one function; TEXTS has, under its name, what disc says: read it as somebody who has not seen the code. It should name the
input and the dim, what was expected, what came, and what to do.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim
from transformers import BertConfig, BertModel

import disc
import disc.hf
from disc.errors import DiscError, DiscWarning
from disc.hf import DiscModelForFeatureExtraction

TEXTS = {
    "the_tuple_of_inputs_is_forgotten": """
        InputRankError: example_inputs do not fit forward(input_ids, attention_mask): missing a required argument: 'attention_mask'; \
give one tuple or dict of all inputs
    """,
    "eval_is_forgotten": """
        DiscWarning: the model is in training mode and is compiled so; for inference, call model.eval() first:
          aten.dropout.default at test_typical_mistakes.py:LINE
    """,
    "ids_of_32_bits": """
        InputTypeError: input 'input_ids' (argument 0): expected dtype i64, got i32; with cast=True the call widens it
    """,
    "a_batch_without_its_dim": """
        InputRankError: input 'input_ids' (argument 0): expected rank 2, got 1 (shape [5])
    """,
    "an_input_is_left_out": """
        InputRankError: expected 2 inputs ('input_ids', 'attention_mask'), got 1
    """,
    "inputs_of_different_lengths": """
        ShapeConstraintError: dim 1 of input 'attention_mask' must equal dim 1 of input 'input_ids': got 4, expected 5
    """,
    "a_token_that_the_model_does_not_have": """
        ShapeConstraintError: input 'input_ids': index 100 is out of range for a dim of size 100 at test_typical_mistakes.py:LINE, \
test_typical_mistakes.py:LINE (loop_gather_convert_multiply); looked up: embedding.weight [100, 8]
    """,
    "dynamic_shapes_with_a_wrong_name": """
        ShapeConstraintError: dynamic_shapes names 'ids', which is no input of this call; the inputs are 'input_ids', 'attention_mask'
    """,
    "a_batch_beyond_the_bound": """
        ShapeConstraintError: dim 0 of input 'x' must be at most 16 (its range ends at 16): got 17
    """,
    "an_op_that_disc_does_not_have": """
        UnsupportedOpError: 1 op of this model cannot be compiled:
          - aten.special_airy_ai.default at test_typical_mistakes.py:LINE: no lowering for this op
        torch.compile(model, backend="disc") runs such ops in PyTorch and compiles the rest; docs/operators.md lists what compiles
    """,
    "a_program_of_another_pytorch": """
        UnsupportedFormatError: model.pt2 was written by PyTorch 1.99.0; this is PyTorch VERSION: export the model again
    """,
    "a_program_for_one_size": """
        DiscWarning: every dim of this program is fixed: it takes the sizes of its inputs alone; to leave them open, export the model with \
dynamic_shapes, or give disc.compile the module
    """,
    "int8_on_a_gpu": """
        TargetError: dtype="int8" is for CPUs, not for sm_90: choose "bf16" or "f16", or leave the GPU out
    """,
    "a_file_of_other_things": """
        ArtifactError: 'model.onnx': header: not a disc artifact; disc compile model.onnx makes an artifact of it
    """,
    "a_class_in_place_of_a_model": """
        UnsupportedFormatError: Encoder is a class, not a model: give one of its objects, such as Encoder(...).eval()
    """,
    "a_state_dict_in_place_of_a_model": """
        UnsupportedFormatError: a dict of weights has no code: make the module, load_state_dict() these into it, and give the module
    """,
    "a_file_of_weights": """
        UnsupportedFormatError: model.safetensors: files of this kind hold weights without the code that uses them: make the module, \
load_state_dict() these into it, and give the module
    """,
    "a_clone_without_git_lfs": """
        ArtifactError: 'encoder.disc': this is a pointer of Git LFS, not the file that it stands for: fetch that with git lfs pull
    """,
    "a_compiled_model_again": """
        UnsupportedFormatError: this is a compiled model already: call it, or compile the module that it was made of
    """,
    "a_tuple_in_a_tuple": """
        InputRankError: example_inputs do not fit forward(input_ids, attention_mask): missing a required argument: 'attention_mask'; \
it has a tuple in a tuple: write (x, mask), not ((x, mask),)
    """,
    "a_dataclass_of_inputs": """
        InputTypeError: example of input 'input_ids': a Batch is a dataclass; inputs may be tensors, numbers, and tuples, named tuples, \
lists and dicts of these: make it one in a module around the model, or take its fields as inputs
    """,
    "an_option_as_an_argument": """
        ArgumentError: compile has no argument 'dtype': it is one of the options: disc.compile(..., options=disc.Options(dtype=...))
    """,
    "options_as_a_dict": """
        ArgumentError: options is a dict: give disc.Options(threads=2)
    """,
    "a_misspelt_option": """
        ArgumentError: disc.Options has no 'thread' (did you mean threads?); there are threads, dtype, cache, embed_stablehlo, packed, \
debug_checks, random, tf32, graphs, fold_tables
    """,
    "names_in_place_of_dims": """
        ShapeConstraintError: dynamic_shapes['input_ids'][0] is 'batch': give torch.export.Dim('batch'); without dynamic_shapes every dim \
is dynamic
    """,
    "numpy_in_the_model": """
        UnsupportedOpError: 1 op of this model cannot be compiled:
          - Tensor.numpy() at test_typical_mistakes.py:LINE: NumPy computes outside of PyTorch, where nothing can be traced: use torch's \
functions, or a custom op
        torch.compile(model, backend="disc") runs such ops in PyTorch and compiles the rest; docs/operators.md lists what compiles
    """,
    "a_state_that_is_no_buffer": """
        UnsupportedOpError: 1 op of this model cannot be compiled:
          - attribute total at test_typical_mistakes.py:LINE: forward reads what an earlier call left there, and it is no buffer: \
register_buffer keeps it from call to call
        torch.compile(model, backend="disc") runs such ops in PyTorch and compiles the rest; docs/operators.md lists what compiles
    """,
    "a_counter_that_is_no_buffer": """
        DiscWarning: forward sets calls: a compiled program does not, and begins each call with what was there when it was compiled
    """,
    "a_tokenizer_without_return_tensors": """
        InputTypeError: input 'input_ids' (argument 0): expected a tensor, got list; give torch.tensor(...) or numpy.array(...) of it; \
tokenizers make tensors with return_tensors="pt" or "np"
    """,
    "a_sparse_tensor": """
        InputTypeError: input 'attention_mask' (argument 1): cannot be read as a tensor: Cannot access data pointer of Tensor that doesn't \
have storage; the tensor is not dense: give x.to_dense(), or x.to_padded_tensor(0) of a nested one
    """,
    "a_program_taken_for_a_module": """
        AttributeError: 'Executable' object has no attribute 'to': it is a compiled program, no module; a module is what \
torch.compile(model, backend="disc") gives, and disc.hf
    """,
    "a_name_of_the_hub": """
        UnsupportedFormatError: there is no folder bert-base-uncased, and nothing is downloaded; from the hub: hf download \
bert-base-uncased --local-dir FOLDER
    """,
    "inputs_side_by_side": """
        InputRankError: example_inputs do not fit forward(input_ids, attention_mask): missing a required argument: 'attention_mask'; \
give one tuple or dict of all inputs
    """,
    "inputs_by_keyword": """
        ArgumentError: compile has no argument 'input_ids': there are model, example_inputs, dynamic_shapes, target, options, \
on_step; example inputs by name are one dict: disc.compile(model, {'input_ids': ...})
    """,
    "an_argument_of_torch_compile": """
        ArgumentError: compile has no argument 'mode': it is for torch.compile, where disc is a backend; disc.compile makes one program
    """,
    "an_argument_of_the_onnx_exporter": """
        ArgumentError: compile has no argument 'dynamic_axes': every dim is dynamic; dynamic_shapes=, as of torch.export, fixes or \
bounds some
    """,
    "sizes_in_place_of_tensors": """
        InputRankError: example_inputs do not fit forward(x): too many positional arguments; it has sizes: give tensors of any size, \
such as torch.randn(2, 4)
    """,
    "a_tokenizers_lists_as_the_example": """
        ExportError: the model does not accept the example inputs: TypeError at test_typical_mistakes.py:LINE: embedding(): argument \
'indices' (position 2) must be Tensor, not list
        input 'input_ids' of the example is a list: where it should be a tensor, give torch.tensor(...) of it; tokenizers make \
tensors with return_tensors="pt"
        input 'attention_mask' of the example is a list: where it should be a tensor, give torch.tensor(...) of it; tokenizers make \
tensors with return_tensors="pt"
    """,
    "instructions_in_place_of_a_target": """
        TargetError: there is no target 'avx512' (did you mean x86-64-v4?); the targets are native, x86-64-v3, x86-64-v4, \
x86-64-v4+avx512vnni, x86-64-v4+avx512bf16, x86-64-v4+avx512bf16+avx512vnni, sm_80, sm_86, sm_89, sm_90, sm_100, sm_120
    """,
    "a_file_of_torchscript": """
        UnsupportedFormatError: model.pt: a TorchScript module cannot be compiled: give the torch.nn.Module it was made of, or export \
that
    """,
    "a_session_of_onnx_runtime": """
        AttributeError: 'Executable' object has no attribute 'run': call it: exe(x, y), or by name exe(x=x, y=y)
    """,
    "names_of_inputs_as_in_onnx_runtime": """
        AttributeError: 'Executable' object has no attribute 'get_inputs': exe.inputs has names, types and dims
    """,
    "a_packed_program_called_as_it_is": """
        InputRankError: expected 6 inputs ('input_ids', 'attention_mask', 'sequence_first', 'sequence_past', 'sequence_starts', \
'sequence_ends'), got 2; the program is packed: disc serve gives it where sequences begin and end; to call it yourself, \
compile it without packed
    """,
    "a_file_in_place_of_a_folder": """
        UnsupportedFormatError: model.safetensors is a file: give the folder that it lies in
    """,
    "an_argument_of_transformers": """
        ArgumentError: from_pretrained has no argument 'torch_dtype': dtype="bf16" computes matrix products in bf16, \
dtype="f16" in f16
    """,
    "a_model_of_disc_hf_that_is_trained": """
        AttributeError: 'DiscModelForFeatureExtraction' object has no attribute 'train': it is compiled, for the CPU and for \
inference; from_pretrained has dtype and threads, and torch.compile(model, backend="disc") trains
    """,
    "an_encoder_that_generates": """
        AttributeError: 'DiscModelForFeatureExtraction' object has no attribute 'generate': disc.hf.DiscModelForCausalLM generates
    """,
    "a_model_of_disc_hf_compiled_again": """
        UnsupportedFormatError: this is a compiled model already: call it, or compile the module that it was made of
    """,
    "a_text_that_is_not_tokenized": """
        InputTypeError: input 'input_ids' is a text; the model takes what a tokenizer makes: model(**tokenizer(texts, \
return_tensors="pt"))
    """,
    "a_text_too_long_for_the_model": """
        ShapeConstraintError: dim 1 of input 'input_ids' must be at most 16 (decided at \
transformers/models/bert/modeling_bert.py:LINE): got 40
    """,
    "a_class_that_disc_hf_does_not_have": """
        AttributeError: module 'disc.hf' has no attribute 'DiscModelForTokenClasification' (did you mean \
DiscModelForTokenClassification?); there are TASKS, DiscModel, DiscModelForCausalLM, DiscModelForFeatureExtraction, \
DiscModelForImageClassification, DiscModelForMaskedLM, DiscModelForSequenceClassification, DiscModelForTokenClassification, \
load_folder
    """,
    "an_empty_folder_is_served": """
        disc: models has no model: expected NAME.disc or NAME/VERSION/model.disc, such as bert/1/model.disc
    """,
    "a_key_of_serve_toml_is_misspelt": """
        disc: defaults.max_bacth is no setting (did you mean max_batch?); there are batching, max_batch, max_tokens, queue_delay_us, \
max_queue, concurrency, threads, device, graphs, priority_levels, default_priority, default_timeout_us, versions, warm_up, sequence, text, copy
    """,
    "a_key_of_serve_toml_is_in_no_table": """
        disc: max_batch is no setting (did you mean max_batch, in [defaults]?); there are host, port, http_port, admin, \
allow_failed_models, shared_memory, memory_bytes, drain_delay_s, drain_timeout_s, limits, tls, access, tracing, metrics, request_log, \
defaults, models
    """,
    "warm_up_names_no_input": """
        disc: model 'encoder' cannot be served: warm_up: 'ids=1x16': the model has no input 'ids'; its inputs are 'input_ids', \
'attention_mask'
    """,
}


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(100, 8), nn.Dropout()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        rows = self.embedding(input_ids)
        return torch.nn.functional.dropout(rows, 0.1, self.training) * attention_mask.unsqueeze(-1)


class TakesAiry(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.airy_ai(x)


class Pooled(nn.Module):
    """The mean of the tokens of each sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 8)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        mask = attention_mask.unsqueeze(-1).float()
        return (self.embedding(input_ids) * mask).sum(1) / mask.sum(1)


class Twice(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


class WithNumpy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.tanh(x.numpy()))


class Sums(nn.Module):
    """Of all calls, in an attribute that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.total = torch.zeros(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total = self.total + x
        return self.total * 1


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * 2


class Refused(Exception):
    """What `disc serve` wrote to standard error."""


ENCODER = Encoder().eval()
IDS, MASK = torch.ones(2, 5, dtype=torch.int64), torch.ones(2, 5, dtype=torch.int64)


@pytest.fixture(scope="module")
def encoder() -> disc.Executable:
    return disc.compile(ENCODER, (IDS, MASK))


def the_tuple_of_inputs_is_forgotten(encoder: disc.Executable) -> None:
    disc.compile(ENCODER, IDS)


def eval_is_forgotten(encoder: disc.Executable) -> None:
    disc.compile(Encoder(), (IDS, MASK))


def ids_of_32_bits(encoder: disc.Executable) -> None:
    encoder(IDS.int(), MASK)


def a_batch_without_its_dim(encoder: disc.Executable) -> None:
    encoder(IDS[0], MASK)


def an_input_is_left_out(encoder: disc.Executable) -> None:
    encoder(IDS)


def inputs_of_different_lengths(encoder: disc.Executable) -> None:
    encoder(IDS, MASK[:, :4])


def a_token_that_the_model_does_not_have(encoder: disc.Executable) -> None:
    encoder(100 * IDS, MASK)


def dynamic_shapes_with_a_wrong_name(encoder: disc.Executable) -> None:
    disc.compile(ENCODER, (IDS, MASK), dynamic_shapes={"ids": {0: Dim("batch")}, "attention_mask": {0: Dim("batch")}})


def a_batch_beyond_the_bound(encoder: disc.Executable) -> None:
    disc.compile(Twice(), torch.ones(2, 5), dynamic_shapes={"x": {0: Dim("batch", max=16)}})(torch.ones(17, 5))


def an_op_that_disc_does_not_have(encoder: disc.Executable) -> None:
    disc.compile(TakesAiry(), torch.ones(3))


def a_program_of_another_pytorch(encoder: disc.Executable) -> None:
    torch.export.save(torch.export.export(Twice(), (torch.ones(2),)), "ours.pt2")
    with zipfile.ZipFile("ours.pt2") as source, zipfile.ZipFile("model.pt2", "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name).replace(torch.__version__.encode(), b"1.99.0"))
    disc.compile("model.pt2")


def a_program_for_one_size(encoder: disc.Executable) -> None:
    disc.compile(torch.export.export(Twice(), (torch.ones(2, 5),)))


def int8_on_a_gpu(encoder: disc.Executable) -> None:
    disc.compile(Twice(), torch.ones(2), target="sm_90", options=disc.Options(dtype="int8"))


def a_file_of_other_things(encoder: disc.Executable) -> None:
    Path("model.onnx").write_bytes(b"\x08\x08onnx" * 200)
    disc.load("model.onnx")


def a_class_in_place_of_a_model(encoder: disc.Executable) -> None:
    disc.compile(Encoder, (IDS, MASK))


def a_state_dict_in_place_of_a_model(encoder: disc.Executable) -> None:
    disc.compile(ENCODER.state_dict(), (IDS, MASK))  # pyright: ignore[reportArgumentType]


def a_file_of_weights(encoder: disc.Executable) -> None:
    Path("model.safetensors").write_bytes(bytes(64))
    disc.compile("model.safetensors", (IDS, MASK))


def a_clone_without_git_lfs(encoder: disc.Executable) -> None:
    Path("encoder.disc").write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 90516992\n")
    disc.load("encoder.disc")


def a_compiled_model_again(encoder: disc.Executable) -> None:
    disc.compile(encoder, (IDS, MASK))


def a_tuple_in_a_tuple(encoder: disc.Executable) -> None:
    disc.compile(ENCODER, ((IDS, MASK),))


def a_dataclass_of_inputs(encoder: disc.Executable) -> None:
    @dataclass
    class Batch:
        ids: torch.Tensor

    disc.compile(ENCODER, (Batch(IDS), MASK))


def an_option_as_an_argument(encoder: disc.Executable) -> None:
    disc.compile(ENCODER, (IDS, MASK), dtype="bf16")  # pyright: ignore[reportCallIssue]


def options_as_a_dict(encoder: disc.Executable) -> None:
    disc.compile(ENCODER, (IDS, MASK), options={"threads": 2})  # pyright: ignore[reportArgumentType]


def a_misspelt_option(encoder: disc.Executable) -> None:
    disc.Options(thread=2)  # pyright: ignore[reportCallIssue]


def names_in_place_of_dims(encoder: disc.Executable) -> None:
    disc.compile(ENCODER, (IDS, MASK), dynamic_shapes={"input_ids": {0: "batch"}, "attention_mask": {0: "batch"}})


def numpy_in_the_model(encoder: disc.Executable) -> None:
    disc.compile(WithNumpy(), torch.ones(3))


def a_state_that_is_no_buffer(encoder: disc.Executable) -> None:
    disc.compile(Sums(), torch.ones(3))


def a_counter_that_is_no_buffer(encoder: disc.Executable) -> None:
    disc.compile(Counts(), torch.ones(3))


def a_tokenizer_without_return_tensors(encoder: disc.Executable) -> None:
    encoder({"input_ids": [[1, 2, 3]], "attention_mask": [[1, 1, 1]]})


def a_sparse_tensor(encoder: disc.Executable) -> None:
    encoder(IDS, MASK.to_sparse())


def a_program_taken_for_a_module(encoder: disc.Executable) -> None:
    encoder.to("cpu")  # pyright: ignore[reportAttributeAccessIssue]


def a_name_of_the_hub(encoder: disc.Executable) -> None:
    DiscModelForFeatureExtraction.from_pretrained("bert-base-uncased")


def inputs_side_by_side(encoder: disc.Executable) -> None:
    disc.compile(ENCODER, IDS, MASK)  # pyright: ignore[reportArgumentType]


def inputs_by_keyword(encoder: disc.Executable) -> None:
    disc.compile(ENCODER, input_ids=IDS, attention_mask=MASK)  # pyright: ignore[reportCallIssue]


def an_argument_of_torch_compile(encoder: disc.Executable) -> None:
    disc.compile(ENCODER, (IDS, MASK), mode="max-autotune")  # pyright: ignore[reportCallIssue]


def an_argument_of_the_onnx_exporter(encoder: disc.Executable) -> None:
    disc.compile(ENCODER, (IDS, MASK), dynamic_axes={"input_ids": {0: "batch"}})  # pyright: ignore[reportCallIssue]


def sizes_in_place_of_tensors(encoder: disc.Executable) -> None:
    disc.compile(Twice(), (2, 4))


def a_tokenizers_lists_as_the_example(encoder: disc.Executable) -> None:
    disc.compile(ENCODER, {"input_ids": [[1, 2, 3]], "attention_mask": [[1, 1, 1]]})


def instructions_in_place_of_a_target(encoder: disc.Executable) -> None:
    disc.compile(Twice(), torch.ones(2), target="avx512")


def a_file_of_torchscript(encoder: disc.Executable) -> None:
    with zipfile.ZipFile("model.pt", "w") as archive:
        archive.writestr("model/code/__torch__.py", "")
    disc.compile("model.pt")


def a_session_of_onnx_runtime(encoder: disc.Executable) -> None:
    encoder.run(None, {"input_ids": IDS.numpy()})  # pyright: ignore[reportAttributeAccessIssue]


def names_of_inputs_as_in_onnx_runtime(encoder: disc.Executable) -> None:
    encoder.get_inputs()  # pyright: ignore[reportAttributeAccessIssue]


def a_packed_program_called_as_it_is(encoder: disc.Executable) -> None:
    packed = disc.compile(Pooled().eval(), (IDS, MASK), options=disc.Options(packed=True))
    packed(IDS, MASK)


def a_file_in_place_of_a_folder(encoder: disc.Executable) -> None:
    Path("model.safetensors").write_bytes(bytes(64))
    DiscModelForFeatureExtraction.from_pretrained("model.safetensors")


def an_argument_of_transformers(encoder: disc.Executable) -> None:
    DiscModelForFeatureExtraction.from_pretrained(_folder(), torch_dtype=torch.float16)  # pyright: ignore[reportCallIssue]


def a_model_of_disc_hf_that_is_trained(encoder: disc.Executable) -> None:
    _small_model().train()  # pyright: ignore[reportAttributeAccessIssue]


def an_encoder_that_generates(encoder: disc.Executable) -> None:
    _small_model().generate(IDS)  # pyright: ignore[reportAttributeAccessIssue]


def a_model_of_disc_hf_compiled_again(encoder: disc.Executable) -> None:
    disc.compile(_small_model(), (IDS,))  # pyright: ignore[reportArgumentType]


def a_text_that_is_not_tokenized(encoder: disc.Executable) -> None:
    _small_model()("a good film")


def a_text_too_long_for_the_model(encoder: disc.Executable) -> None:
    _small_model()(torch.ones(1, 40, dtype=torch.int64))


def a_class_that_disc_hf_does_not_have(encoder: disc.Executable) -> None:
    _ = disc.hf.DiscModelForTokenClasification  # pyright: ignore[reportAttributeAccessIssue]


def _small_model() -> DiscModelForFeatureExtraction:
    return DiscModelForFeatureExtraction.from_pretrained(_folder())


def _folder() -> str:
    sizes: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8, "vocab_size": 8}
    BertModel(BertConfig(**sizes, max_position_embeddings=16)).save_pretrained("folder")
    return "folder"


def an_empty_folder_is_served(encoder: disc.Executable) -> None:
    Path("models").mkdir()
    _serve("models")


def a_key_of_serve_toml_is_misspelt(encoder: disc.Executable) -> None:
    encoder.save("encoder.disc")
    _serve("encoder.disc", "[defaults]\nmax_bacth = 16\n")


def a_key_of_serve_toml_is_in_no_table(encoder: disc.Executable) -> None:
    encoder.save("encoder.disc")
    _serve("encoder.disc", "max_batch = 16\n")


def warm_up_names_no_input(encoder: disc.Executable) -> None:
    encoder.save("encoder.disc")
    _serve("encoder.disc", '[models.encoder]\nwarm_up = ["ids=1x16"]\n')


def _serve(path: str, settings: str = "") -> None:
    """`disc serve`, which does not start. In a process of its own: a server takes over the log of its process."""
    Path("serve.toml").write_text(settings)
    command = [sys.executable, "-m", "disc.cli", "serve", path, "--config", "serve.toml", "--port", "0", "--http-port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    raise Refused(ended.stderr)


MISTAKES = (
    the_tuple_of_inputs_is_forgotten, eval_is_forgotten, ids_of_32_bits, a_batch_without_its_dim, an_input_is_left_out,
    inputs_of_different_lengths, a_token_that_the_model_does_not_have, dynamic_shapes_with_a_wrong_name, a_batch_beyond_the_bound,
    an_op_that_disc_does_not_have, a_program_of_another_pytorch, a_program_for_one_size, int8_on_a_gpu, a_file_of_other_things,
    a_class_in_place_of_a_model, a_state_dict_in_place_of_a_model, a_file_of_weights, a_clone_without_git_lfs, a_compiled_model_again,
    a_tuple_in_a_tuple, a_dataclass_of_inputs, an_option_as_an_argument, options_as_a_dict, a_misspelt_option, names_in_place_of_dims, numpy_in_the_model,
    a_state_that_is_no_buffer, a_counter_that_is_no_buffer, a_tokenizer_without_return_tensors, a_sparse_tensor,
    a_program_taken_for_a_module, a_name_of_the_hub, inputs_side_by_side, inputs_by_keyword, an_argument_of_torch_compile, an_argument_of_the_onnx_exporter, sizes_in_place_of_tensors, a_tokenizers_lists_as_the_example, instructions_in_place_of_a_target, a_file_of_torchscript, a_session_of_onnx_runtime, names_of_inputs_as_in_onnx_runtime, a_packed_program_called_as_it_is, a_file_in_place_of_a_folder, an_argument_of_transformers, a_model_of_disc_hf_that_is_trained, an_encoder_that_generates, a_model_of_disc_hf_compiled_again, a_text_that_is_not_tokenized, a_text_too_long_for_the_model, a_class_that_disc_hf_does_not_have, an_empty_folder_is_served, a_key_of_serve_toml_is_misspelt, a_key_of_serve_toml_is_in_no_table, warm_up_names_no_input,
)  # fmt: skip


def said(mistake: Callable[[disc.Executable], None], encoder: disc.Executable) -> str:
    """The error with its notes, what a command writes to standard error that is no line of its log, or else the warnings."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            mistake(encoder)
        except (DiscError, AttributeError) as error:
            return "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
        except Refused as error:
            return "\n".join(line for line in str(error).splitlines() if not line.startswith("{"))
    return "\n".join(f"{each.category.__name__}: {each.message}" for each in warned if issubclass(each.category, DiscWarning))


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_what_a_typical_mistake_is_told(
    mistake: Callable[[disc.Executable], None],
    encoder: disc.Executable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    text = said(mistake, encoder)
    text = re.sub(r"[\w/.]*test_typical_mistakes\.py:\d+", "test_typical_mistakes.py:LINE", text)
    text = re.sub(r"modeling_bert\.py:\d+", "modeling_bert.py:LINE", text)
    text = text.replace(torch.__version__.split("+")[0], "VERSION")
    assert text == inspect.cleandoc(TEXTS[mistake.__name__])


def test_every_text_has_its_mistake() -> None:
    assert list(TEXTS) == [each.__name__ for each in MISTAKES]
