"""Targets as values: names, features, what a native one leaves out; the compiler's table of CPU features and the runtime's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import disc
from disc.artifact.manifest import ordered_isas
from disc.errors import TargetError
from disc.speculation.session import open_session
from disc.targets import cuda
from disc.targets.select import for_program, named_targets, select_targets
from disc.targets.x86 import FEATURES, ISAS, LEVELS, USED, cpu_flags, host_isa, level_features, native_target, read_target

CPU = Path(disc.__file__).parent / "ral" / "src" / "cpu" / "cpu.cc"


@pytest.mark.parametrize("name", ISAS)
def test_a_name_is_read_back(name: str) -> None:
    target = read_target(name)
    assert target.name == str(target) == name and not target.native
    assert target.for_elements(()) is target, "who names a target gets that one"


@pytest.mark.parametrize("name", ["x86-64-v2", "x86-64-v4+amx-int8", "x86-64-v4+avx512fp16", "", "sm_90"])
def test_no_code_generator(name: str) -> None:
    with pytest.raises(TargetError, match=re.escape(f"{name!r}")):
        read_target(name)


def test_native_keeps_what_a_program_needs() -> None:
    native = native_target()
    assert native.native and set(native.feature_names) == {each.name for each in USED if each.flag in cpu_flags()}
    plain, narrow = native.for_elements(("f32",)), native.for_elements(("f32", "bf16"))
    assert plain.name == host_isa() and not plain.features
    assert set(narrow.feature_names) <= {"avx512bf16"}
    assert named_targets("native", mixed=False) == [host_isa()]


def test_equal_targets_are_one() -> None:
    assert [each.name for each in select_targets(["x86-64-v4", "x86-64-v3", "x86-64-v4"])] == ["x86-64-v3", "x86-64-v4"]
    assert [each.name for each in for_program(select_targets(["native", host_isa()]), ())] == [host_isa()]


def test_gpus_are_named_by_their_architecture() -> None:
    for name in cuda.NAMES:
        target = cuda.read_target(name)
        assert target.name == f"cuda:x86-64-v3+{name}" and target.label == name
        assert target.gpu is not None and f"sm_{target.gpu.architecture}" == name
        assert target.for_elements(("bf16",)) is target
        assert target.host().name == "x86-64-v3"
    assert [each.label for each in select_targets(["sm_100", "sm_90", "x86-64-v4"])] == ["x86-64-v4", "sm_90", "sm_100"]
    names = [each.name for each in select_targets(["sm_90", "sm_120", "sm_80"])]
    assert ordered_isas(dict.fromkeys(["x86-64-v3", *reversed(names)], b"")) == [*names, "x86-64-v3"]


@pytest.mark.parametrize("name", ["sm_75", "sm_90a", "cuda", "aarch64"])
def test_no_such_gpu(name: str) -> None:
    with pytest.raises(TargetError, match=re.escape(f"there is no target {name!r}") + ".*sm_80"):
        select_targets(name)


def test_bytes_are_for_cpus() -> None:
    with pytest.raises(TargetError, match='dtype="int8" is for CPUs, not for sm_90'):
        open_session(["x86-64-v3", "sm_90"], disc.Options(dtype="int8"))


def test_rates_and_registers() -> None:
    avx2, avx512, all_of_it = (read_target(name) for name in ("x86-64-v3", "x86-64-v4", ISAS[-1]))
    assert (avx2.lanes, avx2.registers, avx512.lanes, avx512.registers) == (8, 16, 16, 32)
    assert avx512.macs_per_cycle("f32") == 2 * avx2.macs_per_cycle("f32")
    assert (
        avx512.macs_per_cycle("bf16") == avx512.macs_per_cycle("f32") < all_of_it.macs_per_cycle("bf16") < all_of_it.macs_per_cycle("ui8")
    )


def test_the_runtime_knows_every_feature_and_the_same_levels() -> None:
    text = CPU.read_text()
    known = set(re.findall(r"{\"([a-z0-9.-]+)\", ", text))
    assert {feature.name for feature in FEATURES} <= known
    lists = {level: set(re.findall(r'"([^"]+)"', found)) for level, found in re.findall(r"kLevel(\d)\[\] = {(.*?)}", text)}
    for level in LEVELS:
        own = {feature.name for feature in FEATURES if feature.level == level}
        assert own - lists["2"] == lists[level[-1]]
    assert set(level_features(LEVELS[0])) < set(level_features(LEVELS[1]))
