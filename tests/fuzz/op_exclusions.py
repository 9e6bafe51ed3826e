"""What the fuzzer of ops leaves out, each with its reason."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Eager PyTorch itself ends the process, starts threads or writes files, or the op exists for another device alone.
NAMES = (
    r"jiterator|cudnn|cuda|miopen|mkldnn|mps|xnnpack|hip|fbgemm|quantized_|q_|_nested|nested_|_batch_dim|sparse|record_stream|from_file|_cslt|_flash_|"
    r"_efficient_|_scaled_|_triton|_linalg_check|_use_cudnn|rpc|storage|_test_|vulkan|is_pinned|pin_memory|_pin|_version|set_data|"
    r"_thnn_|_wrapped_|_convert_weight|_int4|_dyn_quant|_backward_hook|_fw_primal|_make_dual|_unpack_dual|dequantize|_fused_adam|_fused_sgd|"
    r"_fused_adagrad|_foreach|_amp_|_lazy_clone|_dirichlet|_standard_gamma|_resize_output|_weight_int|_has_compatible|_copy_from|_coalesce|"
    r"_nnz|_indices|_values|crow_indices|col_indices|ccol_indices|row_indices|retain_grad|requires_grad|^aten.(set|data|output_nr)\b|"
    r"multinomial|rand(int|n|perm)?(_like)?\b|bernoulli|\bnormal|log_normal|uniform|exponential_|cauchy|geometric|\.random|dropout|rrelu|"  # drawn
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


# Sizes of 0 that eager refuses by name, and for which the compiled program gives a result of its own shape, without elements or with the
# identity of what it computes: PyTorch's trace takes every size to be at least 2, and keeps no trace of such a check.
EMPTY = (
    r"does not have an identity|too small|Expected .*batch mode|to have positive length|Only zero batch or zero channel|[Nn]on-(empty|zero)|"
    r"can't be greater than actual|invalid output_size|optional|must have at least one element|index 0 out of range|greater than 0|"
    r"at least \d+ at dimension|smaller than kernel|is ambiguous|wrapping around more than once|with size 0|number of data points|length must be non-negative|a primitive descriptor|divisible by"
)

KNOWN: tuple[Known, ...] = (
    Known("", "answers", rf"[\[ ]0[,\]].*eager refuses.*({EMPTY})", "inputs without elements, which eager refuses"),
    Known("addmv", "answers", "size mismatch", "a self that is multiplied by a beta of 0 is not looked at"),
    Known("_unsafe_masked_index", "wrong", r"0.*: shape: ", "the result of indexing nothing has another shape in eager"),
    Known(
        "conv",
        "wrong",
        r"shape: .*eager's \[0",
        "an image without channels and without a batch has no result in eager, however many its weight has",
    ),
    Known(
        r"\bprod\b",
        "wrong",
        "values: .*(nan|inf)",
        "the order of a product decides whether it overflows on the way, and is not that of eager",
    ),
    Known(r"\bempty", "wrong", "values", "memory as it was found"),
    Known("upsample", "answers", "output_size equals to", "a size of the result for some of its dims, which eager refuses"),
    Known(r"norm.*nan", "wrong", "nan for", "a norm of the order NaN is NaN, and 0 or 1 in eager where there is little to take it of"),
    Known("local_response_norm", "wrong", "dtype", "eager returns an input without elements as it is, integers too"),
    Known(r"aten\.normal", "wrong", "dtype", "for a mean or deviation of integers PyTorch's trace says float32, and eager gives integers"),
    Known(r"prims\.signbit", "wrong", "dtype", "PyTorch's trace says that it keeps the type, and eager gives booleans"),
    Known(r"\bmode\b", "wrong", "result 1", "where the mode stands is any of its places, and in eager hangs on a sort that is not stable"),
    Known(
        "unpool",
        "answers",
        "invalid output_size",
        "a size of the result that eager refuses for an input of size 1, which PyTorch's trace takes to be 2",
    ),
    Known(
        r"\bsym_stride\b",
        "wrong",
        "number",
        "a program takes inputs for dense and row-major, whatever memory they come in, and strides are of that",
    ),
    Known("pin_memory=True", "answers", "pin_memory", "eager cannot pin memory without another device"),
)


def is_known(program: str, kind: str, text: str) -> bool:
    return any(re.fullmatch(each.kind, kind) and re.search(each.program, program) and re.search(each.text, text) for each in KNOWN)
