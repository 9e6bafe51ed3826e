"""Which products are loaded by tensor maps (TMA), and under which guards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from test_library_products import BRAIN, DOUBLE, HALF, compute

from disc.codegen.cuda.emission import emit_device, may_have
from disc.codegen.cuda.gemm import may_have_maps, product_tree
from disc.codegen.cuda.plans import product_plan
from disc.codegen.plan.text import IllegalPlan
from disc.speculation.block_families import ANY_PRODUCT, FAMILIES
from disc.speculation.block_schedules import CUBLASLT, BlockSchedule
from disc.speculation.block_trees import ALONG_K, BASE, FAST, SINGLE, BlockTree, every_leaf
from disc.speculation.guards import ALWAYS
from disc.speculation.tree import LEAF

PLAIN = BlockSchedule(32, 64, 32, 4, 3)
MAPPED, PERSISTENT = replace(PLAIN, mapped=True), replace(PLAIN, mapped=True, persistent=True)
TREE = BlockTree((MAPPED, PLAIN, PERSISTENT), ((0, 5, 1, 2), (LEAF, 0, 0, 0), (0, 9, 3, 4), (LEAF, 1, 0, 0), (LEAF, 2, 0, 0)))
FAMILY = (PLAIN, replace(PLAIN, persistent=True), MAPPED, PERSISTENT)
Case = tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...], torch.dtype]
# The maps of both factors, as the text has them, and what the guard asks for besides addresses of multiples of 16 bytes and positions of 32
# bits. Dims other than 16, 8 and 2 vary.
TAKEN: dict[str, tuple[Case, tuple[str, str], str]] = {
    "layer": (
        (lambda layer, x: layer(x), ((5, 16),), torch.float32),
        ("a0, [n_S0, 16], [16, 1], [32, 32]", "a1, [24, 16], [16, 1], [64, 32]"),
        "",
    ),
    "product": (
        (lambda _, x, y: x @ y, ((5, 11), (11, 7)), torch.float32),
        ("a0, [n_S0, n_S1], [n_S1, 1], [32, 32]", "a1, [n_S1, n_S2], [n_S2, 1], [32, 64]"),
        "divides(4, S1) and divides(4, S2) and at_least(1, S1)",
    ),
    "turned": (
        (lambda _, x, y: x.mT @ y.mT, ((11, 5), (7, 11)), BRAIN),
        ("a0, [n_S0, n_S1], [n_S1, 1], [32, 32]", "a1, [n_S2, n_S0], [n_S0, 1], [64, 32]"),
        "divides(8, S0) and divides(8, S1) and divides(8, S2) and at_least(1, S0)",
    ),
    "one row": (
        (lambda _, x, y: x @ y, ((3, 1, 11), (3, 11, 16)), BRAIN),
        ("[1, n_S1], [n_S1, 1], [32, 32]", "[n_S1, 16], [16, 1], [32, 64]"),
        "divides(8, S1) and at_least(1, S1)",
    ),
    "one column": (
        (lambda _, x, y: x @ y, ((5, 16), (16, 1)), HALF),
        ("a0, [n_S0, 16], [16, 1], [32, 32]", "a1, [1, 16], [16, 1], [64, 32]"),
        "",
    ),
    "heads": (
        (lambda _, x, y: x @ y, ((3, 8, 5, 16), (3, 8, 16, 7)), HALF),
        ("[n_S1, 16], [16, 1], [32, 32]", "[16, n_S2], [n_S2, 1], [32, 64]"),
        "divides(8, S2)",
    ),
}  # fmt: skip
REFUSED: dict[str, Case] = {
    "rows of 4 bytes": (lambda _, x, y: x @ y, ((5, 2), (2, 8)), BRAIN),
    "one row for all": (lambda _, x, y: x[:1].expand(5, 16) @ y, ((2, 16), (16, 8)), torch.float32),
    "a convolution": (lambda _, x, y: torch.nn.functional.conv1d(x, y, padding=1), ((1, 8, 11), (16, 8, 3)), torch.float32),
    "one k": (lambda _, x, y: x @ y, ((5, 1), (1, 7)), BRAIN),
    "one k of a batch": (lambda _, x, y: x @ y, ((3, 5, 1), (3, 1, 7)), BRAIN),
    "neighbors of a batch, one row": (lambda _, x, y: torch.einsum("kb,bkn->bn", x, y), ((11, 8), (8, 11, 16)), BRAIN),
    "neighbors of a batch, one column": (lambda _, x, y: torch.einsum("bmk,kb->bm", x, y), ((16, 5, 16), (16, 16)), BRAIN),
    "neighbors of a batch that varies": (lambda _, x, y: torch.einsum("bmk,kb->bm", x, y), ((3, 5, 11), (11, 3)), torch.float32),
    "a slice": (lambda _, x, y: x[:, 1:] @ y[1:], ((5, 11), (11, 8)), torch.float32),
}


@pytest.mark.parametrize("name", TAKEN)
def test_maps(name: str) -> None:
    (function, shapes, element), maps, wanted = TAKEN[name]
    work, target = compute(function, *shapes, element=element)
    versions = emit_device(work, product_plan(every_leaf((MAPPED, ANY_PRODUCT)), SINGLE), target).versions
    (mapped,) = (each for each in versions if each.maps)
    assert mapped.maps == 2 == mapped.text.count("tl.make_tensor_descriptor(") and mapped.schedule == 0
    assert all(each in mapped.text for each in maps), mapped.text
    loop = mapped.text.partition("for step")[2]
    assert loop.count(".load([") == 2 and "tl.load(" not in loop.partition("tl.dot")[0], "both factors, and nothing else"
    asked = [part for part in str(mapped.guard).split(" and ") if not part.startswith(("at_most", "aligned"))]
    assert " and ".join(asked) == wanted and "aligned(16)" in str(mapped.guard)
    # Who has a call that the guard refuses gets plain loads, 16 bytes at a time where that is possible.
    others = [each for each in versions[versions.index(mapped) + 1 :] if each.schedule is None]
    assert others and not any("make_tensor_descriptor" in each.text for each in others) and others[-1].guard == ALWAYS
    assert any("aligned(16)" in str(each.guard) for each in others)


def test_maps_take_a_bounded_amount_of_memory() -> None:
    """A program has scratch for its maps: another version serves where there are too many. Persistent ones are as many as SMs, and parts of k
    have a limit of their own."""
    for schedule, wanted in (
        (MAPPED, ["at_most(65536, floordiv(S0 + 31, 32) * floordiv(S2 + 63, 64))"]),
        (PERSISTENT, []),
        (replace(MAPPED, parts=2), ["at_most(512, floordiv(S0 + 31, 32) * floordiv(S2 + 63, 64))"]),
    ):
        work, target = compute(lambda _, x, y: x @ y, (5, 11), (11, 7))
        versions = emit_device(work, product_plan(every_leaf((schedule,)), SINGLE), target).versions
        (mapped,) = (each for each in versions if each.maps)
        assert [part for part in str(mapped.guard).split(" and ") if "floordiv" in part] == wanted, mapped.guard
    work, target = compute(lambda _, x, y: x @ y, (16, 8), (8, 16))  # sizes that say so ask for nothing
    versions = emit_device(work, product_plan(every_leaf((MAPPED,)), SINGLE), target).versions
    assert versions[0].maps == 2 and "at_most" not in str(versions[0].guard), versions[0].guard


ONES: dict[str, tuple[Case, str]] = {  # what a version asks for that loads 16 bytes at a time; dims other than 16 and 1 vary
    "one column": ((lambda _, x, y: x @ y, ((5, 16), (16, 1)), HALF), ""),
    "a layer to one": ((lambda _, x, y: torch.nn.functional.linear(x, y), ((5, 16), (1, 16)), torch.float32), ""),
    "a layer from one": ((lambda _, x, y: torch.nn.functional.linear(x, y), ((5, 1), (16, 1)), torch.float32), ""),
    "one row": ((lambda _, x, y: x @ y, ((1, 11), (11, 7)), HALF), "divides(8, S1)"),
    "one row of a layer": ((lambda _, x, y: x @ y.mT, ((1, 11), (7, 11)), HALF), "divides(8, S0)"),
    "one row and column": ((lambda _, x, y: x @ y, ((3, 1, 11), (3, 11, 1)), HALF), "divides(8, S1)"),
}  # fmt: skip


@pytest.mark.parametrize("name", ONES)
def test_sizes_of_one_ask_for_nothing(name: str) -> None:
    """A tensor that such a size makes small beside the others may lie as it likes: schedules serve all batches."""
    (function, shapes, element), wanted = ONES[name]
    work, target = compute(function, *shapes, element=element)
    versions = emit_device(work, product_plan(every_leaf((PLAIN,)), SINGLE), target).versions
    (fast,) = (each for each in versions if each.schedule == 0)
    assert " and ".join(part for part in str(fast.guard).split(" and ") if part.startswith("divides")) == wanted, fast.guard


@pytest.mark.parametrize("name", REFUSED)
def test_what_maps_cannot_load(name: str) -> None:
    """Trees have the same schedules with plain loads in their place."""
    function, shapes, element = REFUSED[name]
    work, _ = compute(function, *shapes, element=element)
    assert not may_have_maps(work, [MAPPED, CUBLASLT]) and may_have_maps(work, [PLAIN, CUBLASLT])
    with pytest.raises(IllegalPlan, match="tensor maps load matrices in memory"):
        may_have(work, product_plan(TREE, SINGLE))
    tree = product_tree(work, dict.fromkeys(BASE, TREE), dict.fromkeys(BASE, FAMILY), SINGLE)
    assert set(tree.schedules) <= {PLAIN, replace(PLAIN, persistent=True)}


def test_other_leaves_of_a_tree_stay() -> None:
    tree = TREE.without_maps(lambda each: each != MAPPED, FAMILY)
    assert [tree.schedules[tree.choose((m, 8, 8, 1, 132))] for m in (5, 9, 10)] == [PLAIN, PLAIN, PERSISTENT]
    assert tree.schedules == (PLAIN, PERSISTENT) and TREE.without_maps(lambda _: True, FAMILY) is TREE


def test_what_stands_in_for_maps_is_in_the_family() -> None:
    """It has been compiled for the GPU, so that it stays within its registers and shared memory."""
    for kinds in FAMILIES.values():
        for family in kinds.values():
            mapped = [each for each in family if each.mapped]
            trees = [every_leaf((each,)).without_maps(lambda _: False, family) for each in mapped]
            assert all(set(tree.blocks) <= set(family) and not tree.blocks[0].mapped for tree in trees), mapped
    assert any(each.mapped and replace(each, mapped=False) not in FAMILIES[90][ALONG_K[FAST]] for each in FAMILIES[90][ALONG_K[FAST]])


def test_persistent_programs_of_a_batch_have_none() -> None:
    """They would make maps for every block."""
    for shapes, able in ((((5, 11), (11, 7)), True), (((3, 5, 11), (3, 11, 7)), False)):
        work, _ = compute(lambda _, x, y: x @ y, *shapes)
        tree = product_tree(work, dict.fromkeys(BASE, TREE), dict.fromkeys(BASE, FAMILY), SINGLE)
        assert (PERSISTENT in tree.schedules) == able and MAPPED in tree.schedules
        assert tree.prune({}) == tree and may_have_maps(work, tree.schedules) and may_have_maps(work, TREE.schedules) == able


def test_elements_that_tensor_cores_do_not_multiply() -> None:
    work, _ = compute(lambda _, x, y: x @ y, (5, 11), (11, 7), element=DOUBLE)
    assert product_tree(work, dict.fromkeys(BASE, TREE), dict.fromkeys(BASE, FAMILY), SINGLE).schedules == (ANY_PRODUCT,)


def test_maps_of_persistent_programs_are_made_once() -> None:
    work, target = compute(lambda _, x, y: x @ y, (5, 11), (11, 7))
    versions = emit_device(work, product_plan(every_leaf((PERSISTENT,)), SINGLE), target).versions
    (mapped,) = (each for each in versions if each.maps)
    before, _, loop = mapped.text.partition("for tile in")
    assert before.count("make_tensor_descriptor") == 2 and "make_tensor_descriptor" not in loop
