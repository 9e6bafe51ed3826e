"""What the blocks of a batched model were made with: every change is seen, by the quick look and by the full one."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import nn

from disc.frontend.batched.contents import Contents
from disc.frontend.batched.facts import code_of_calls, gathered, watched

SCALE, SIZES, TABLE = 2.5, [1, [2, 3]], {"a": 1, "b": [4]}
BIAS = torch.zeros(3)


class Setting:
    def __init__(self) -> None:
        self.depth, self.names = 3, ["x"]


SETTING = Setting()


class Net(nn.Module):
    shared, settings = 2, {"a": 1}

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale, self.sizes, self.setting = nn.Linear(3, 3), 2, [1, 2], Setting()
        self.generated = 2
        self.register_buffer("kept", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> Any:
        return (
            self.layer(x) * self.scale * self.sizes[0] * self.setting.depth * SCALE
            + SIZES[0]
            + TABLE["a"]
            + BIAS
            + SETTING.depth
            + self.absent
            + self.shared * self.settings["a"]
            + self.method()
            + getattr(self, "named", 0)
            + sum(self.generated for _ in range(2))
        )

    def method(self) -> int:
        return 1


def closure() -> tuple[FunctionType, Callable[[Any], None]]:
    held: Any = 1

    def read() -> Any:
        return held

    def change(value: Any) -> None:
        nonlocal held
        held = value

    return read, change  # pyright: ignore[reportReturnType]


def remove_and_add(model: Net) -> None:
    """As many attributes as before."""
    del model.unread
    model.absent = 1.0  # pyright: ignore[reportArgumentType]


CHANGES: dict[str, Callable[[Net], Any]] = {
    "attribute": lambda model: setattr(model, "scale", 3),
    "attribute added": remove_and_add,
    "attribute named by a text": lambda model: setattr(model, "named", 3),
    "attribute of a generator": lambda model: setattr(model, "generated", 3),
    "attribute of the class": lambda model: setattr(Net, "shared", 3),
    "value of the class": lambda model: Net.settings.update(a=2),
    "method": lambda model: setattr(Net, "method", lambda self: 3),
    "element": lambda model: model.sizes.__setitem__(1, 7),
    "element added": lambda model: model.sizes.append(7),
    "object": lambda model: setattr(model.setting, "depth", 4),
    "object's list": lambda model: model.setting.names.append("y"),
    "mode": lambda model: model.layer.eval(),
    "weight": lambda model: setattr(model.layer, "bias", nn.Parameter(torch.ones(3))),
    "weight in place": lambda model: model.layer.weight.detach().add_(1),
    "weight's data": lambda model: setattr(model.layer.weight, "data", torch.ones(3, 3)),
    "weights of another type": lambda model: model.double(),
    "global tensor's data": lambda model: setattr(BIAS, "data", torch.ones(3)),
    "buffer": lambda model: setattr(model, "kept", torch.ones(3)),
    "module": lambda model: setattr(model, "layer", nn.Linear(3, 3)),
    "module added": lambda model: setattr(model, "other", nn.Linear(3, 3)),
    "hook": lambda model: model.layer.register_forward_hook(lambda *_: None),
    "hook before": lambda model: model.register_forward_pre_hook(lambda *_: None),
    "forward of its own": lambda model: setattr(model.layer, "forward", lambda x: x),
    "class": lambda model: setattr(model.layer, "__class__", nn.Bilinear),
    "defaults": lambda model: setattr(Net.forward, "__defaults__", (BIAS,)),
    "global": lambda model: globals().update(SCALE=3.5),
    "global's element": lambda model: SIZES.__setitem__(1, [2, 4]),
    "global's inner element": lambda model: SIZES[1].append(5),  # pyright: ignore[reportAttributeAccessIssue]
    "global's key": lambda model: TABLE.update(c=1),
    "global's value": lambda model: TABLE.update(a=2),
    "global tensor": lambda model: BIAS.add_(1),
    "global object": lambda model: setattr(SETTING, "depth", 4),
    "global of the name of a builtin": lambda model: globals().update(property=3),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in {
        "SCALE": 2.5,
        "SIZES": [1, [2, 3]],
        "TABLE": {"a": 1, "b": [4]},
        "BIAS": torch.zeros(3),
        "SETTING": Setting(),
    }.items():
        monkeypatch.setitem(globals(), key, value)
    monkeypatch.setattr(Net.forward, "__defaults__", None)
    for key, value in {"shared": 2, "settings": {"a": 1}, "method": Net.method}.items():
        monkeypatch.setattr(Net, key, value)
    monkeypatch.setitem(globals(), "property", property)
    del globals()["property"]
    model = Net()
    model.unread = 1.0  # pyright: ignore[reportArgumentType]
    functions = [Net.forward, lambda: property]
    modules = list(model.modules())

    def weights() -> list[torch.Tensor]:
        return [*model.parameters(), *model.buffers()]

    before, quick, code = gathered(functions, modules), watched(functions, modules, weights()), code_of_calls(modules)
    contents = [(each, Contents.of(each)) for each in weights()]
    assert quick.hold()
    CHANGES[name](model)
    assert not quick.hold()
    seen_by_weights = any(not held.are_those_of(each) for each, held in contents)
    is_other_code = code_of_calls(list(model.modules())) != code
    assert gathered(functions, list(model.modules())) != before or seen_by_weights or is_other_code
    assert watched(functions, list(model.modules()), weights()).hold()


def test_what_no_function_reads_may_change() -> None:
    model = Net()
    model.unread = 1.0  # pyright: ignore[reportArgumentType]
    quick = watched([Net.forward], list(model.modules()), model.parameters())
    model.unread = 2.0  # pyright: ignore[reportArgumentType]
    assert quick.hold()


def test_closures() -> None:
    read, change = closure()
    quick = watched([read], [], [])
    assert quick.hold()
    change(2)
    assert not quick.hold()


def test_equal_values() -> None:
    """What is equal may take another's place: the full look says so."""
    model = Net()
    model.scale = 1000
    before, quick = gathered([Net.forward], list(model.modules())), watched([Net.forward], list(model.modules()), [])
    model.scale = int("1000")
    assert not quick.hold()
    assert gathered([Net.forward], list(model.modules())) == before
