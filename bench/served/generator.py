"""Load on a server from one process with one thread (asyncio), so that it takes little of the machine that it measures.

`python -m bench.served.generator PORT REQUEST_FILE SECONDS --in-flight N` keeps N requests under way; `--rate R` sends R per second at
random moments (a Poisson process), whatever became of those before. Prints a `Load` as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import grpc
import numpy as np

from bench.machine import ROOT
from disc.serving.messages import INFERENCE

CHANNELS = 8
GRACE_S = 10.0  # after the time: for requests under way


class Load(TypedDict):
    """What came of a load. Rates per second, times in ms; `others`: ends that are neither an answer nor a refusal."""

    offered: float
    answered: float
    refused: float
    answer_ms: dict[str, float]
    refusal_ms: dict[str, float]
    others: dict[str, int]


def load(port: int, request: bytes, seconds: float, *, in_flight: int = 0, rate: float = 0.0) -> Load:
    """Runs this module in a process of its own. Raises subprocess.CalledProcessError when it fails."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(request)
        file.flush()
        kind = ["--in-flight", str(in_flight)] if in_flight else ["--rate", str(rate)]
        command = [sys.executable, "-m", "bench.served.generator", str(port), file.name, str(seconds), *kind]
        return json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)


@dataclass
class _Seen:
    answered: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)
    sent: int = 0


class _Sender:
    def __init__(self, channels: list[grpc.aio.Channel], request: bytes) -> None:
        self._calls = [channel.unary_unary(f"/{INFERENCE}/ModelInfer") for channel in channels]
        self._request = request
        self.seen = _Seen()

    async def one(self) -> None:
        call = self._calls[self.seen.sent % len(self._calls)]
        self.seen.sent += 1
        start = time.perf_counter()
        try:
            await call(self._request)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                self.seen.refused.append((time.perf_counter() - start) * 1e3)
            else:
                self.seen.others[f"{error.code().name}: {error.details()}"] += 1
        else:
            self.seen.answered.append((time.perf_counter() - start) * 1e3)

    async def keep(self, in_flight: int, end: float) -> _Seen:
        async def ask() -> None:
            while time.perf_counter() < end:
                await self.one()

        await asyncio.gather(*(ask() for _ in range(in_flight)))
        return self.seen

    async def at_rate(self, rate: float, end: float) -> _Seen:
        """Answers and refusals that come after the end do not count."""
        chance, due, tasks = random.Random(1), time.perf_counter(), set[asyncio.Task[None]]()
        while due < end:
            await asyncio.sleep(max(due - time.perf_counter(), 0))
            while due <= time.perf_counter() and due < end:
                task = asyncio.create_task(self.one())
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                due += chance.expovariate(rate)
        seen = _Seen(self.seen.answered[:], self.seen.refused[:], self.seen.others.copy(), self.seen.sent)
        if tasks:
            await asyncio.wait(tasks, timeout=GRACE_S)
        return seen


async def _run(chosen: argparse.Namespace) -> Load:
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{chosen.port}", options) for _ in range(CHANNELS)]
    sender = _Sender(channels, Path(chosen.request).read_bytes())
    await asyncio.gather(*(channel.channel_ready() for channel in channels))
    start = time.perf_counter()
    end = start + chosen.seconds
    seen = await (sender.keep(chosen.in_flight, end) if chosen.in_flight else sender.at_rate(chosen.rate, end))
    for channel in channels:
        await channel.close()
    return {
        "offered": seen.sent / chosen.seconds,
        "answered": len(seen.answered) / chosen.seconds,
        "refused": len(seen.refused) / chosen.seconds,
        "answer_ms": _quantiles(seen.answered),
        "refusal_ms": _quantiles(seen.refused),
        "others": dict(seen.others),
    }


def _quantiles(times: list[float]) -> dict[str, float]:
    return {f"p{share}": float(np.quantile(times, share / 100)) for share in (50, 90, 99)} if times else {}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.served.generator", description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("request")
    parser.add_argument("seconds", type=float)
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--in-flight", type=int, default=0)
    kind.add_argument("--rate", type=float, default=0.0)
    print(json.dumps(asyncio.run(_run(parser.parse_args()))))


if __name__ == "__main__":
    main()
