"""Code for several targets in one artifact: each has checks, kernels, counters and weights of its own, and the runtime takes those of the
code that it loads. Format 1, where all shared them, is `tests/golden`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from containers import Container, taken_apart
from programs import add_manifest, build

from disc.artifact import file as artifact
from disc.artifact.manifest import TargetRecord
from disc.errors import ArtifactError, ShapeConstraintError, TargetError
from disc.ral.executable import Executable, load

# y = x * (the weight in slot SLOT), counted by COUNTER; the check FAILS where x has so many elements.
SCALE = """
#include "ral.h"
static void scale(const int64_t* args, int64_t begin, int64_t end, void* scratch) {
  for (int64_t i = begin; i < end; ++i) ((float*)args[1])[i] = ((const float*)args[0])[i] * *(const float*)args[2];
}
int32_t disc_entry(ral_exec* exec, const ral_host_api* api, const ral_tensor* in, const void* const* weights, int64_t* counters) {
  int64_t size = in[0].dims[0];
  if (size == FAILS) return api->fail(exec, CHECK, size, 0);
  float* out = api->output(exec, 0, in[0].dims);
  if (!out) return 1;
  counters[COUNTER] += 1;
  int64_t args[3] = {(int64_t)in[0].data, (int64_t)out, (int64_t)weights[SLOT]};
  return api->launch(exec, KERNEL, scale, args, size, 16, 0);
}
"""
WEIGHTS = [("two", "f32", np.full((), 2, np.float32)), ("three", "f32", np.full((), 3, np.float32))]
CODE = {
    "x86-64": build(SCALE, "SLOT=0", "COUNTER=0", "KERNEL=0", "CHECK=0", "FAILS=7"),
    "x86-64-v3": build(SCALE, "SLOT=1", "COUNTER=2", "KERNEL=1", "CHECK=1", "FAILS=8"),
}


def record(checks: list[str], kernels: list[str], counters: list[str], weights: list[int]) -> TargetRecord:
    return {
        "checks": [{"message": each} for each in checks],
        "kernels": [{"name": each} for each in kernels],
        "counters": counters,
        "weights": weights,
    }


TARGETS = {
    "x86-64": record(["never seven"], ["scalar"], ["scalar[any shape]"], [0]),
    "x86-64-v3": record(["", "never eight"], ["head", "wide"], ["head[a]", "wide[a]", "wide[b]"], [0, 1]),
}
DESCRIBED = {
    **{key: value for key, value in add_manifest().items() if key not in TargetRecord.__annotations__},
    "inputs": [{"name": "x", "dtype": "f32", "dims": ["S0"]}],
    "outputs": [{"name": "y", "dtype": "f32", "rank": 1}],
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    target = tmp_path / "a.disc"
    artifact.write_artifact(target, DESCRIBED, CODE, WEIGHTS, targets=TARGETS)  # pyright: ignore[reportArgumentType]
    return target


def both(path: Path, isa: str) -> list[Executable]:
    """From the file and from memory."""
    return [load(path, isa=isa), Executable.from_parts(DESCRIBED, CODE, WEIGHTS, targets=TARGETS, isa=isa)]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("isa", "factor", "count", "kernel", "size", "check"),
    [("x86-64", 2, {"scalar[any shape]": 1}, "scalar", 7, "never seven"),
     ("x86-64-v3", 3, {"head[a]": 0, "wide[a]": 0, "wide[b]": 1}, "wide", 8, "never eight")],
)  # fmt: skip
def test_each_target_has_its_own(path: Path, isa: str, factor: int, count: dict[str, int], kernel: str, size: int, check: str) -> None:
    x = np.arange(5, dtype=np.float32)
    for executable in both(path, isa):
        np.testing.assert_array_equal(executable(x), x * factor)
        stats = executable.stats()
        assert stats["counters"] == count
        assert {name: runs for name, runs in stats["kernels"].items() if runs} == {kernel: 1}  # type: ignore[union-attr]
        with pytest.raises(ShapeConstraintError, match=check):
            executable(np.zeros(size, np.float32))
        assert executable.manifest["counters"] == list(count)
        assert [each["name"] for each in executable.manifest["weights"]] == [WEIGHTS[n][0] for n in TARGETS[isa]["weights"]]


def test_the_best_is_loaded_and_described(path: Path) -> None:
    assert load(path).isa == "x86-64-v3"
    assert artifact.read_manifest(path) == load(path).manifest
    assert artifact.read_manifest(path, "x86-64") == load(path, isa="x86-64").manifest
    with pytest.raises(TargetError, match="the artifact has no code for x86-64-v4"):
        load(path, isa="x86-64-v4")


def test_saved_again(path: Path, tmp_path: Path) -> None:
    for number, executable in enumerate(both(path, "x86-64")):
        executable.save(tmp_path / f"{number}.disc")
        assert (tmp_path / f"{number}.disc").read_bytes() == path.read_bytes()


def changed(path: Path, **changes: object) -> Container:
    good = taken_apart(path.read_bytes())
    return good.changed(b"manifest", content=json.dumps({**json.loads(good[b"manifest"]), **changes}).encode())


def test_what_contradicts_itself_is_refused(path: Path) -> None:
    good = taken_apart(path.read_bytes())
    own = json.loads(good[b"manifest"])["targets"]
    wide = own["x86-64-v3"]
    cases: list[tuple[Container, str]] = [
        (changed(path, targets={"x86-64": own["x86-64"]}), "manifest.targets: not those of manifest.code"),
        (changed(path, targets={**own, "x86-64-v4": wide}), "manifest.targets: not those of manifest.code"),
        (changed(path, targets={**own, "x86-64-v3": {**wide, "weights": [2]}}), "a number of none of the 2 weights"),
        (changed(path, targets={**own, "x86-64-v3": {**wide, "weights": [-1]}}), "a number of none of the 2 weights"),
        (changed(path, targets={**own, "x86-64-v3": {**wide, "counters": ["head[a]"]}}), "section 'signature/x86-64-v3' differs"),
        (changed(path, targets={**own, "x86-64": {**own["x86-64"], "counters": []}}), "section 'signature/x86-64' differs"),
        (changed(path, targets=[]), "manifest.targets: expected an object"),
        (changed(path, format=1), "manifest"),
        (good.without(b"signature/x86-64-v3"), "section 'signature/x86-64-v3' is missing"),
        (good.changed(b"signature/x86-64-v3", content=b""), "signature/x86-64-v3"),
        (good.changed(b"signature/x86-64-v3", content=good[b"signature/x86-64"]), "section 'signature/x86-64-v3' differs"),
    ]
    for number, (container, message) in enumerate(cases):
        bad = path.with_name(f"{number}.disc")
        bad.write_bytes(container.to_bytes())
        for reader in (artifact.verify, artifact.read_manifest, load):
            with pytest.raises(ArtifactError) as caught:
                reader(bad)
            assert message in str(caught.value), (number, reader, caught.value)
