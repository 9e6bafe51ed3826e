"""`flex_attention` while a module is exported: the scores as a matrix, as PyTorch has it without its compiler.

PyTorch hands it to Dynamo, which looks through no mode of functions. How the mask is cut into blocks is nothing but a way to skip work.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from torch._higher_order_ops.flex_attention import math_attention
from torch.nn.attention import flex_attention

FORMS: dict[tuple[Any, str], object] = {
    (flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"): True,
    (flex_attention, "flex_attention_hop"): math_attention,
    (flex_attention, "setup_compilation_env"): nullcontext,  # which takes away the modes that trace
}
