"""The forms of operands that micro-kernels take, and which one serves a product on a CPU: the one place that knows features.

A new instruction for products is a form in `FORMS`, before those that it is better than, and what `micro.py` writes for it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from disc.ir.weights import ELEMENT_BYTES, SCALED_BLOCK


@dataclass(frozen=True)
class Form:
    """The layout in which a micro-kernel reads its operands.

    name: in function names; accumulator: element of the tile; left, right: elements in memory of A's rows and of B's panels; group:
    values of k that lie side by side in a panel, per column, and are read from A's rows as one number where these are as narrow;
    feature: what the CPU must have beyond its level. block: so many values of k are summed exactly, in i32, and their sum enters the tile
    times a scale (0 = none): a row of scales, one f32 per column, follows the rows of each block in a panel.
    """

    name: str
    accumulator: str
    left: str
    right: str
    group: int = 1
    feature: str = ""
    block: int = 0

    @property
    def register(self) -> str:
        """The element of the sums in registers."""
        return "i32" if self.block else self.accumulator

    def panel_rows(self, k: int) -> int:
        """Rows of a panel for `k` values."""
        return -(-k // self.group) + (-(-k // self.block) if self.block else 0)

    @property
    def unit(self) -> int:
        """Bytes of one column of a panel row: `group` values."""
        return ELEMENT_BYTES[self.right] * self.group

    @property
    def reads_groups(self) -> bool:
        """True when A is read in groups of k too, which must then be neighbours in memory."""
        return self.group > 1 and self.left != self.accumulator

    def serves(self, left: str, right: str, accumulator: str) -> bool:
        """True for operands stored as `left` and `right`; an A that is wider here is widened while it is packed."""
        widened = left == right and self.left == self.accumulator
        return self.accumulator == accumulator and self.right == right and (left == self.left or widened)


# Every form by its name: operands as they are accumulated, then those that are stored narrower, the best first. All forms of one narrow
# element share the layout of the panels, so that weights packed ahead of time serve every target of an artifact.
FORMS: dict[str, Form] = {
    form.name: form
    for form in (
        *(Form(element, element, element, element) for element in ("f32", "f64", "i64", "i32", "i16", "i8")),
        Form("bf16dot", "f32", "bf16", "bf16", 2, "avx512bf16"),
        Form("bf16wide", "f32", "f32", "bf16", 2),
        Form("f16wide", "f32", "f32", "f16"),
        Form("u8dot", "i32", "ui8", "i8", 4, "avx512vnni"),
        Form("u8wide", "i32", "ui8", "i8", 4),
        Form("u8scaled", "f32", "ui8", "i8", 4, "avx512vnni", SCALED_BLOCK),
        Form("u8widescaled", "f32", "ui8", "i8", 4, "", SCALED_BLOCK),
    )
}


def choose_form(left: str, right: str, accumulator: str, features: Collection[str]) -> Form:
    """The best form for stored elements `left` and `right` on a CPU with these features."""
    for form in FORMS.values():
        if form.serves(left, right, accumulator) and (not form.feature or form.feature in features):
            return form
    return FORMS[accumulator]
