"""Linear layers of BERT, GPT-2, T5 and Llama-like models: weights known at compile time, any number of rows."""

from __future__ import annotations

from torch import nn

from bench.cases.case import Case, random_tensor
from bench.cases.tuned import linear_is_tuned

ROWS = (1, 2, 4, 7, 8, 16, 33, 64, 100, 128, 256, 512, 1000, 4096)
# (outputs, inputs): BERT and GPT-2 (attention, its three products merged, up, down), T5-small (attention, up, down), Llama of 1 B
# parameters (attention, up, down), Llama of 7 B (attention).
SIZES = (
    (768, 768), (2304, 768), (3072, 768), (768, 3072), (512, 512), (2048, 512), (512, 2048),
    (2048, 2048), (5632, 2048), (2048, 5632), (4096, 4096),
)  # fmt: skip


def linear_case(outputs: int, inputs: int) -> Case:
    """`x @ W^T + b` with W of (outputs, inputs)."""
    return Case(
        f"linear-{outputs}x{inputs}",
        f"Linear, {inputs} to {outputs}",
        lambda: nn.Linear(inputs, outputs),
        lambda shape: (random_tensor(shape[0], inputs),),
        tuple((rows,) for rows in ROWS),
        (0,),
        (5,),
        tuned=linear_is_tuned(outputs, inputs),
    )


GEMM_CASES = tuple(linear_case(*size) for size in SIZES)
