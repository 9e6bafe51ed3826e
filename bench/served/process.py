"""A server in a process of its own, the models it serves, and what the process holds."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import torch
from transformers import BertConfig, BertModel

import disc
from bench.machine import PAGE
from disc.config import Options
from disc.serving.messages import message

COLUMNS = 256  # of the inputs of `twice`
KIB = 1024
VOCABULARY, MOST_TOKENS = 1000, 128  # of `bert`


@dataclass(frozen=True)
class Running:
    """A server that answers."""

    port: int
    http_port: int
    process: subprocess.Popen[str]

    @property
    def pid(self) -> int:
        return self.process.pid


def twice(folder: Path) -> Path:
    """An artifact of y = 2 x: as little work as a model can have."""

    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    path = folder / "twice.disc"
    disc.compile(Twice(), (torch.randn(2, COLUMNS),), options=Options(cache=False)).save(path)
    return path


def bert(folder: Path, layers: int = 2, width: int = 128) -> Path:
    """An artifact of a small BERT, for any number of rows and 1 to MOST_TOKENS tokens."""
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // 32, intermediate_size=4 * width, vocab_size=VOCABULARY,
        max_position_embeddings=MOST_TOKENS,
    )  # fmt: skip
    path = folder / "bert.disc"
    ones = torch.ones(2, 7, dtype=torch.int64)
    disc.compile(BertModel(config).eval(), {"input_ids": ones, "attention_mask": ones}, options=Options(cache=False)).save(path)
    return path


def request(rows: int) -> bytes:
    """For `twice`: rows x COLUMNS x 4 bytes."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [rows, COLUMNS]}
    data = np.ones((rows, COLUMNS), np.float32).tobytes()
    return message("inference.ModelInferRequest")(model_name="twice", inputs=[tensor], raw_input_contents=[data]).SerializeToString()


@contextmanager
def server(path: Path, config: str = "", log: IO[str] | None = None) -> Iterator[Running]:
    """Serves `path`; terminated at the end if it still runs. config: TOML. log: where the server's log goes, else nowhere."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(config)
        file.flush()
        command = [sys.executable, "-m", "disc.cli", "serve", str(path), "--port", "0", "--http-port", "0", "--config", file.name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log or subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            try:
                port, http_port = (int(number) for number in re.findall(r"127\.0\.0\.1:(\d+)", process.stdout.readline()))
                yield Running(port, http_port, process)
            finally:
                process.terminate()


def resident_kib(process: int | str = "self") -> int:
    """KiB in memory."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * PAGE // KIB


def open_files(process: int) -> int:
    return sum(1 for _ in Path(f"/proc/{process}/fd").iterdir())


def threads(process: int) -> int:
    return sum(1 for _ in Path(f"/proc/{process}/task").iterdir())
