"""The seam between code generation and devices."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from disc.codegen.backend import backend_of
from disc.errors import TargetError
from disc.targets.select import Family, register_family, select_targets, target_names
from disc.targets.x86 import read_target

V3 = read_target("x86-64-v3")


def test_a_device_without_a_backend_is_named() -> None:
    with pytest.raises(TargetError, match="device 'abacus'"):
        backend_of(replace(V3, device="abacus"))


def test_code_generation_loads_no_device_before_it_is_asked_for() -> None:
    program = "import sys, disc.codegen.build; print(*[name for name in sys.modules if name.startswith('disc.codegen.x86')])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


def test_a_device_adds_its_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    from disc.targets import select

    monkeypatch.setattr(select, "_FAMILIES", dict(select._FAMILIES))  # pyright: ignore[reportPrivateUsage]
    register_family(Family("abacus", ("beads",), lambda name: replace(V3, device="abacus", level=name)))
    assert target_names()[-1] == "beads"
    assert [each.name for each in select_targets(["beads", "x86-64-v3"])] == ["x86-64-v3", "abacus:beads"]
