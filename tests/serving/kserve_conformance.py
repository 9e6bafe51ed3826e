"""Run by the interpreter of kserve's own virtual environment: `python kserve_conformance.py PORT`."""

from __future__ import annotations

import asyncio
import sys

import numpy as np
from kserve import InferenceGRPCClient, InferInput, InferRequest


async def main() -> None:
    client = InferenceGRPCClient(url=f"127.0.0.1:{sys.argv[1]}")
    assert await client.is_server_ready() and await client.is_server_live() and await client.is_model_ready("twice")
    for binary in (True, False):
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        given = InferInput("x", [2, 3], "FP32")
        given.set_data_from_numpy(x, binary_data=binary)
        answer = await client.infer(InferRequest("twice", [given], request_id="k1"))
        assert answer.id == "k1" and np.array_equal(answer.outputs[0].as_numpy(), 2 * x), answer
    await client.close()
    print("conformant")


if __name__ == "__main__":
    asyncio.run(main())
