"""Kernels that do what none may; prints how many of the faults the checker found."""

from __future__ import annotations

import torch
from interpreted import Misuse, launch

from disc.codegen.cuda.kernel import DeviceVersion, Parameter
from disc.shapes import Dim
from disc.speculation.guards import ALWAYS

HEAD = "@triton.jit\ndef kernel(a0, r0, n):\n    p = tl.program_id(0) * 4 + tl.arange(0, 4)\n"
RIGHT = "    tl.store(r0 + p, tl.load(a0 + p, mask=p < n), mask=p < n)\n"
WRONG = {
    "beyond": "    tl.store(r0 + p, tl.load(a0 + p))\n",
    "twice": "    tl.store(r0 + tl.arange(0, 4), 1.0)\n    tl.store(r0 + p, tl.load(a0 + p, mask=p < n), mask=p < n)\n",
    "left": "    tl.store(r0 + p, tl.load(a0 + p, mask=p < n), mask=p < n - 1)\n",
    "argument": "    tl.store(r0 + p, 1.0, mask=p < n)\n    tl.store(a0 + p, 1.0, mask=p < n)\n",
    "map beyond": "    m = tl.make_tensor_descriptor(a0, [2, 4], [4, 1], [2, 4])\n" + RIGHT,
    "map of nothing": "    m = tl.make_tensor_descriptor(a0, [n - 6, 4], [4, 1], [2, 4])\n" + RIGHT,
    "too many maps": 2 * "    m = tl.make_tensor_descriptor(a0, [1, 6], [8, 1], [2, 4])\n" + RIGHT,
}
SAID = {
    "beyond": "or between elements", "twice": "both write", "left": "never written", "argument": "which is an argument",
    "map beyond": "is of more than a buffer", "map of nothing": "a tensor map of [0, 4]", "too many maps": "more tensor maps than 1",
}  # fmt: skip


def run(body: str) -> torch.Tensor:
    parameters = (Parameter("a0", "*fp32"), Parameter("r0", "*fp32"), Parameter("n_n", "i32"))
    version = DeviceVersion(ALWAYS, HEAD + body, parameters, (Dim.of(2),), 4, maps=1)
    result = torch.zeros(6)
    launch(version, {"a0": torch.arange(6.0)}, {"r0": result}, {"n": 6})
    return result


if __name__ == "__main__":
    assert run(RIGHT).tolist() == [0, 1, 2, 3, 4, 5]
    found = 0
    for name, body in WRONG.items():
        try:
            run(body)
        except Misuse as error:
            found += SAID[name] in str(error)
    print(found, "found")
