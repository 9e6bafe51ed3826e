"""Which micro-kernel serves a product on which CPU, and targets with instructions that no micro-kernel uses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import disc
from disc.codegen.x86.gemm.forms import FORMS, choose_form, native_features
from disc.codegen.x86.gemm.micro import WRITERS, micro_source
from disc.config import Options
from disc.targets.x86 import ISAS, USED, read_isa

AMX_ISA = next(isa for isa in ISAS if "amx-tile" in isa)


@pytest.mark.parametrize(
    ("operands", "features", "name", "unused"),
    [
        (("f32", "f32", "f32"), "", "f32", ()),
        (("bf16", "bf16", "f32"), "", "bf16wide", ()),
        (("bf16", "bf16", "f32"), "avx512bf16", "bf16dot", ()),
        (("bf16", "bf16", "f32"), "avx512bf16 amx-tile amx-bf16", "bf16dot", ("amx-bf16",)),
        (("bf16", "bf16", "f32"), "avx512bf16 amx-tile amx-int8", "bf16dot", ()),
        (("f16", "f16", "f32"), "avx512bf16 amx-bf16", "f16wide", ()),
        (("ui8", "i8", "i32"), "avx512vnni", "u8dot", ()),
        (("ui8", "i8", "i32"), "amx-int8", "u8wide", ("amx-int8",)),
        (("ui8", "i8", "f32"), "avx512vnni amx-int8", "u8scaled", ("amx-int8",)),
        (("ui8", "i8", "f32"), "", "u8widescaled", ()),
    ],
)
def test_choice(operands: tuple[str, str, str], features: str, name: str, unused: tuple[str, ...]) -> None:
    choice = choose_form(*operands, frozenset(features.split()))
    assert (choice.form.name, choice.unused) == (name, unused)


def test_native_code_asks_for_features_that_are_used() -> None:
    assert native_features("bf16") == ("avx512bf16",)
    assert native_features("ui8") == ("avx512vnni",)
    assert native_features("f32") == ()
    assert {form.feature for form in FORMS.values() if form.feature and form.writer} == set(USED)


def test_every_form_with_a_writer_is_written() -> None:
    for form in FORMS.values():
        assert form.writer in ("", *WRITERS)
        if form.writer:
            assert f"func.func @disc_micro_{form.name}_2x1x16(" in micro_source(form.name, 2, 1, 16)


def test_forms_of_one_element_share_the_panels() -> None:
    narrow = [form for form in FORMS.values() if form.left != form.right or form.group > 1]
    for right in ("bf16", "f16", "i8"):
        assert len({form.group for form in narrow if form.right == right}) == 1


@pytest.mark.parametrize(("dtype", "name", "feature"), [("bf16", "bf16dot", "amx-bf16"), ("int8", "u8scaled", "amx-int8")])
def test_a_target_with_amx_takes_the_next_best_and_says_so(dtype: str, name: str, feature: str) -> None:
    """Compiled, not run: what is loaded here is the code for x86-64-v3."""
    assert {"amx-bf16", "amx-int8"} < read_isa(AMX_ISA).features
    model, x = nn.Linear(64, 48).eval(), torch.randn(5, 64)
    executable = disc.compile(model, (x,), target=["x86-64-v3", AMX_ISA], options=Options(dtype=dtype))
    assert AMX_ISA in executable.manifest["code"]
    assert f"micro-kernel: {name}; {feature} of the target is not used yet" in str(executable.explain())
    here = disc.compile(model, (x,), options=Options(dtype=dtype))
    assert "not used yet" not in str(here.explain())
