"""Every kernel of models, every version that their sizes reach, in Triton's interpreter; run as a process of its own:
`python model_kernels.py NAME...`. Prints for each how many launches gave what the interpreter of the IR gives."""

from __future__ import annotations

import sys
import time

import torch
from device_oracle import Checked

from tests.models import MODELS, shapes


def check(name: str) -> int:
    """How many launches of a model's kernels are right."""
    model, inputs, dims = MODELS[name]()
    program = Checked.of_model(model, inputs, dims)
    chosen = (0, 5) if name in ("resnet", "convnext") else (0, 4)
    count = 0
    for number in chosen:
        sized = shapes(name)[number]
        count += program.check([each.numpy() for each in sized], 1e-4, once=True)
    return count


if __name__ == "__main__":
    torch.set_num_threads(1)
    for each in sys.argv[1:]:
        begin = time.process_time()
        print(each, check(each), flush=True)
        print(f"{each}: {time.process_time() - begin:.1f} s", file=sys.stderr)
