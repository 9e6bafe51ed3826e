"""What the fuzzer of ops leaves out, each with its reason."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Eager PyTorch itself ends the process, starts threads or writes files, or the op exists for another device alone.
NAMES = (
    r"jiterator|cudnn|cuda|miopen|mkldnn|mps|xnnpack|hip|fbgemm|quantized_|q_|_nested|nested_|sparse|record_stream|from_file|_cslt|_flash_|"
    r"_efficient_|_scaled_|_triton|_linalg_check|_use_cudnn|rpc|storage|_test_|vulkan|is_pinned|pin_memory|_pin|_version|set_data|"
    r"_thnn_|_wrapped_|_convert_weight|_int4|_dyn_quant|_backward_hook|_fw_primal|_make_dual|_unpack_dual|dequantize|_fused_adam|_fused_sgd|"
    r"_fused_adagrad|_foreach|_amp_|_lazy_clone|_dirichlet|_standard_gamma|_resize_output|_weight_int|_has_compatible|_copy_from|_coalesce|"
    r"_nnz|_indices|_values|crow_indices|col_indices|ccol_indices|row_indices|retain_grad|requires_grad|^aten.(set|data|output_nr)\b|"
    r"empty_like|new_empty|empty_strided|empty_permuted|^(aten\.)?empty|resize|_weight_norm"  # memory as it was found, or read past its end
)


def is_excluded(name: str) -> bool:
    return re.search(NAMES, name) is not None


@dataclass(frozen=True)
class Known:
    """A failure that is known: op and text of it by regular expressions, and why it stands here."""

    program: str
    kind: str
    text: str
    reason: str


KNOWN: tuple[Known, ...] = (
    Known("norm|dist", "answers", "does not have an identity", "norms of a negative order over a dim of size 0, which eager refuses"),
    Known(
        "pool|conv|interpolate|upsample",
        "answers",
        "too small|Expected .*batch mode|to have positive length|Only zero batch or zero channel|can't be greater than actual|[Nn]on-(empty|zero size)|invalid output_size|optional",
        "sources without channels or smaller than a window give an empty result, which eager refuses",
    ),
    Known("batch_norm", "answers", "must have at least one element", "statistics of an empty batch are NaN, which eager refuses"),
    Known("cross_entropy", "wrong", r"\[\d+, 0\].* for nan", "the mean over no classes is 0, and NaN in eager"),
    Known("batch_norm", "answers", "index 0 out of range", "no channels"),
    Known("addmv", "wrong", r"0\]: shape: .*eager's \[\]", "the result of no columns has the shape of self in eager"),
    Known("einsum", "wrong", "dtype", "eager's einsum of small integers gives int64 or not, depending on whether a size is 1"),
)


def is_known(program: str, kind: str, text: str) -> bool:
    return any(re.fullmatch(each.kind, kind) and re.search(each.program, program) and re.search(each.text, text) for each in KNOWN)
