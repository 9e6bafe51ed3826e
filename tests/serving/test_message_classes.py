"""protobuf's classes live as long as the process: one that is destroyed while a thread reads a message ends it with SIGSEGV."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor

from disc.serving.messages import POOL


def described(message: Descriptor) -> Iterator[Descriptor]:
    yield message
    for nested in message.nested_types:
        yield from described(nested)


def test_every_class_of_the_pool_outlives_a_collection() -> None:
    names = [file.name for file in map(POOL.FindFileContainingSymbol, ("inference.ModelInferRequest", "disc.v1.Job"))]
    messages = [each for name in names for top in POOL.FindFileByName(name).message_types_by_name.values() for each in described(top)]
    assert len(messages) > 60
    classes = {each.full_name: weakref.ref(message_factory.GetMessageClass(each)) for each in messages}
    gc.collect()
    gone = [name for name, kind in classes.items() if kind() is None]
    assert not gone


@pytest.mark.parametrize("rounds", [2, pytest.param(1000, marks=pytest.mark.long)])
def test_rounds_of_shared_memory_in_use(rounds: int) -> None:
    """Without the classes held, three of three processes ended with SIGSEGV within 30 rounds."""
    script = Path(__file__).with_name("shared_memory_rounds.py")
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, str(script), str(rounds)], capture_output=True, text=True, env=environment, timeout=3600)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    found = json.loads(done.stdout)
    assert found["rounds"] == rounds and found["outcomes"]["OK"] > 0 and set(found["outcomes"]) <= {"OK", "INVALID_ARGUMENT"}
