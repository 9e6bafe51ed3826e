"""What is said to people who take an `Executable` for a module, or give it something that is nearly a tensor."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

from disc.errors import DiscError, InputTypeError

OF_MODULES = frozenset({
    "to", "cuda", "cpu", "half", "float", "double", "bfloat16", "eval", "train", "training", "requires_grad_", "device", "dtype", "config",
    "forward", "parameters", "named_parameters", "buffers", "modules", "children", "state_dict", "load_state_dict", "register_forward_hook",
    "generate",
})  # fmt: skip
PACKED = "the program is packed: disc serve gives it where sequences begin and end; to call it yourself, compile it without packed"
# Of the sessions and compiled models of ONNX Runtime and OpenVINO → what to write here.
OF_SESSIONS = {
    **dict.fromkeys(
        ("run", "infer", "predict", "infer_new_request", "create_infer_request"), "call it: exe(x, y), or by name exe(x=x, y=y)"
    ),
    **dict.fromkeys(("get_inputs", "input", "input_names"), "exe.inputs has names, types and dims"),
    **dict.fromkeys(("get_outputs", "output", "output_names"), "exe.outputs has names, types and dims"),
}


def no_attribute(name: str) -> str:
    """The text of an AttributeError."""
    plain = f"'Executable' object has no attribute '{name}'"
    if name in OF_SESSIONS:
        return f"{plain}: {OF_SESSIONS[name]}"
    if name not in OF_MODULES:
        return plain
    return f'{plain}: it is a compiled program, no module; a module is what torch.compile(model, backend="disc") gives, and disc.hf'


def who_fixed(error: DiscError, fixed_dims: Sequence[str]) -> str | None:
    """Who fixed the dim whose size this error refuses: of the manifest's texts what its own says."""
    found = re.match(r"input '(.*)' \(argument \d+\): dim (\d+) must be (\d+), got", str(error))
    if found is None:
        return None
    begin = f"dim {found[2]} of input '{found[1]}' is fixed to {found[3]}"
    return next((text[len(begin) :].lstrip(": ").removeprefix("by ") for text in fixed_dims if text.startswith(begin)), None)


def way_to_a_tensor(error: DiscError, inputs: Sequence[object]) -> str | None:
    """What to give in the place of the input that this error names, where that is a list, a text or a tensor that is not dense."""
    place = re.search(r"\(argument (\d+)\)", str(error))
    if not isinstance(error, InputTypeError) or place is None or int(place[1]) >= len(inputs):
        return None
    given = inputs[int(place[1])]
    if isinstance(given, str) or (isinstance(given, list) and given and isinstance(given[0], str)):
        return 'texts are for a tokenizer: give what it makes of them, with return_tensors="pt" or "np"'
    if isinstance(given, list):
        return 'give torch.tensor(...) or numpy.array(...) of it; tokenizers make tensors with return_tensors="pt" or "np"'
    tensor = cast("Any", given)
    if getattr(tensor, "is_nested", False) or str(getattr(tensor, "layout", "torch.strided")) != "torch.strided":
        return "the tensor is not dense: give x.to_dense(), or x.to_padded_tensor(0) of a nested one"
    if getattr(tensor, "is_meta", False):
        return "a tensor on the meta device has no values"
    return "the tensor is quantized: give x.dequantize()" if getattr(tensor, "is_quantized", False) else None
