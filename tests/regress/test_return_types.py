"""The named tuples of PyTorch's own operators keep their place and their class in a result: they came back flattened."""

import subprocess
import sys
from collections import deque
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import disc
from disc.errors import DiscWarning

X = torch.randn(3, 4)
RESULTS = {
    "alone": lambda x: x.max(-1),
    "in a dict": lambda x: {"m": x.max(-1), "x": x},
    "in a tuple": lambda x: (x.argmax(-1), x.max(-1)),
    "in a list": lambda x: [x.topk(2), x.sort()],
    "nested": lambda x: {"all": [{"range": torch.aminmax(x)}, (x.cummax(0), 3)]},
    "factors": lambda x: (torch.linalg.svd(x), x.median(-1)),
}


@pytest.mark.parametrize("name", RESULTS)
def test_it_is_what_eager_returns(name: str) -> None:
    compiled = disc.compile(RESULTS[name], (X,))
    x = torch.randn(2, 4)
    got, expected = compiled(x), RESULTS[name](x)
    assert pytree.tree_structure(got) == pytree.tree_structure(expected)
    if name != "factors":  # whose signs are free
        torch.testing.assert_close(got, expected)


def test_a_class_that_is_lost_is_named() -> None:
    with pytest.warns(DiscWarning, match="the model returns a collections.deque, .* all its tensors as one tuple"):
        compiled = disc.compile(lambda x: {"last": deque([x * 2, x + 1])}, (X,), options=disc.Options(cache=False))
    torch.testing.assert_close(compiled(X), (X * 2, X + 1))


def test_without_torch_it_is_a_named_tuple(tmp_path: Path) -> None:
    disc.compile(RESULTS["in a dict"], (X,)).save(tmp_path / "max.disc")
    code = "import sys, disc, numpy as np; r = disc.load('max.disc')(np.eye(3, dtype='f4')); print(r['m']._fields, r['m'].indices, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == f"('values', 'indices') {np.arange(3)} False"
