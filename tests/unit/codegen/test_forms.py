"""Which micro-kernel serves a product on which CPU."""

from __future__ import annotations

import pytest

from disc.codegen.x86.gemm.forms import FORMS, choose_form
from disc.codegen.x86.gemm.micro import micro_source
from disc.targets.x86 import USED


@pytest.mark.parametrize(
    ("operands", "features", "name"),
    [
        (("f32", "f32", "f32"), "", "f32"),
        (("bf16", "bf16", "f32"), "", "bf16wide"),
        (("bf16", "bf16", "f32"), "avx512bf16", "bf16dot"),
        (("f16", "f16", "f32"), "avx512bf16", "f16wide"),
        (("ui8", "i8", "i32"), "avx512vnni", "u8dot"),
        (("ui8", "i8", "i32"), "avx512bf16", "u8wide"),
        (("ui8", "i8", "f32"), "avx512vnni", "u8scaled"),
        (("ui8", "i8", "f32"), "", "u8widescaled"),
    ],
)
def test_choice(operands: tuple[str, str, str], features: str, name: str) -> None:
    assert choose_form(*operands, features.split()).name == name


def test_features_of_forms_are_those_of_targets() -> None:
    """A native target keeps a feature for programs with such left operands, and none that no micro-kernel uses."""
    used = {(form.feature, form.left) for form in FORMS.values() if form.feature}
    assert used == {(feature.name, element) for feature in USED for element in feature.elements}


def test_every_form_is_written() -> None:
    for form in FORMS.values():
        assert f"func.func @disc_micro_{form.name}_2x1x16(" in micro_source(form.name, 2, 1, 16)


def test_forms_of_one_element_share_the_panels() -> None:
    narrow = [form for form in FORMS.values() if form.left != form.right or form.group > 1]
    for right in ("bf16", "f16", "i8"):
        assert len({form.group for form in narrow if form.right == right}) == 1
