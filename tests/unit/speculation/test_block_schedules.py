"""Schedules of products on GPUs: their texts, trees of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from disc.codegen.plan.tree_text import node_texts, read_nodes
from disc.errors import DiscWarning
from disc.speculation import block_fit
from disc.speculation.block_families import ANY_PRODUCT, FAMILIES, FEW_ROWS, attention_family
from disc.speculation.block_fit import (
    ATTENTION_TOP,
    CORRECTED_TOP,
    FEW_TOP,
    TOP,
    UNSURE,
    Measured,
    fit_attention,
    fit_to_model,
    read_times,
    write_times,
)
from disc.speculation.block_model import element_bytes
from disc.speculation.block_schedules import CUBLASLT, BlockSchedule, read_attention_block, read_schedule
from disc.speculation.block_trees import (
    ALONG_K,
    FAST,
    HALF,
    KINDS,
    SINGLE,
    BlockTree,
    attention_trees,
    find_trees,
    one_schedule,
    packaged_trees,
    product_trees,
    read_block_tree,
    tuned_file,
    write_trees,
)
from disc.speculation.schedules import FEATURES, LIBRARY
from disc.speculation.tree import LEAF
from disc.targets.cuda_thresholds import GPUS
from disc.targets.thresholds import Gpu

DATA = Path(__file__).parents[3] / "tools" / "data"
ALL = tuple(dict.fromkeys(each for kinds in FAMILIES.values() for family in kinds.values() for each in family))


def test_texts_are_read_back() -> None:
    assert [read_schedule(str(each)) for each in ALL] == list(ALL)
    assert str(BlockSchedule(16, 64, 128, 4, 4, parts=8)) == "16x64x128+w4+s4+g8/8"
    assert read_schedule("128x256x64+w8+s3+g8+p+h2") == BlockSchedule(128, 256, 64, 8, 3, halves=2, persistent=True)
    assert str(BlockSchedule(128, 128, 64, 8, 4, halves=2, persistent=True, mapped=True)) == "128x128x64+w8+s4+g8+t+p+h2"
    assert BlockSchedule(64, 64, 64, 4, 4, mapped=True).describe().endswith("4 stages, by TMA")


@pytest.mark.parametrize("text", ["", "16x64", "12x64x32+w4+s3+g8", "64x64x32+w3+s3+g8", "64x64x32+w4+s0+g8", "64x16x32+w4+s3+g8+h2", "8x32x64+w4+s3+g8+h2",
                                  "8x32x64+w4+s3+g8+p", "64x64x32+w4+s3+g8+p/2", "8x32x64+w4+s3+g8+t", "64x512x32+w8+s3+g8+t"])  # fmt: skip
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"schedule|blocks|warps|halves|stored at once|tensor maps"):
        read_schedule(text)


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: f"sm_{gpu.architecture}")
def test_the_trees_that_come_with_disc_choose_among_the_family(gpu: Gpu) -> None:
    for kind, tree in packaged_trees(gpu.architecture).items():
        assert set(tree.schedules) <= set(FAMILIES[gpu.architecture][kind])
        assert tree.prune({}) == tree, "every schedule and node is reached"
        assert len(tree.schedules) <= (CORRECTED_TOP if tree.measured else TOP) + FEW_TOP
        above, below = (tree.prune({0: m}) for m in (FEW_ROWS + 1, FEW_ROWS))
        assert not any(each.streams for each in above.blocks) and len(above.blocks) <= (CORRECTED_TOP if tree.measured else TOP)
        assert any(each.streams for each in below.blocks) or kind in (HALF, FAST), "in f32 they are by far the faster ones"
        assert not any(each.persistent or each.mapped for each in tree.blocks), "only times may say that they are faster"
        layer = tree.prune({FEATURES.index("n"): 4096, FEATURES.index("k"): 4096, FEATURES.index("batch"): 1})
        chosen = layer.schedules[layer.choose((1, 4096, 4096, 1, gpu.sms))]
        assert isinstance(chosen, BlockSchedule) and chosen.rows <= 64


@pytest.mark.parametrize("architecture", [80, 90])
def test_a_tree_that_comes_with_disc_is_that_of_the_model(architecture: int) -> None:
    """`python tools/profile_gemm.py --model` makes them anew, also of times that were measured."""
    gpu, times = next(gpu for gpu in GPUS if gpu.architecture == architecture), read_times(DATA, architecture)
    packaged = packaged_trees(architecture)[HALF]
    assert fit_to_model(gpu, (HALF,), times)[HALF].tree == replace(packaged, measured="")
    assert packaged.measured == ("" if times is None else times["gpu"])


def test_times_correct_the_model() -> None:
    """At sizes that were measured the corrected model takes what the times say, and it does better than the model at matrices held out."""
    gpu, times = next(gpu for gpu in GPUS if gpu.architecture == 90), read_times(DATA, 90)
    assert times is not None
    for kind in KINDS:
        measured = Measured(times, gpu, kind)
        plain = [row.min() / row[model.argmin()] for row, model in zip(measured.times, measured.model, strict=True)]
        assert measured.held_out().mean > sum(plain) / len(plain)
        known = np.isfinite(measured.times) & np.isfinite(measured.model)
        near = (measured.model * measured.corrections(measured.points))[known] / measured.times[known]
        assert np.abs(np.log(near)).mean() < 0.5 * np.abs(np.log(measured.model[known] / measured.times[known])).mean()


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: f"sm_{gpu.architecture}")
def test_the_trees_of_attention_that_come_with_disc(gpu: Gpu) -> None:
    """Blocks fit into shared memory whatever the head; programs share the keys of one query, and none those of many."""
    for (kind, head), tree in attention_trees(gpu.architecture).items():
        assert set(tree.schedules) <= set(attention_family(gpu.architecture, kind, head)) and len(tree.schedules) <= ATTENTION_TOP
        assert tree.prune({}) == tree, "every schedule and node is reached"
        for each in tree.schedules:
            held = (2 * each.stages * each.keys + each.rows) * head * element_bytes(kind)
            assert held <= gpu.shared_block, (kind, head, str(each))
            assert read_attention_block(str(each)) == each
        one, many = (tree.schedules[tree.choose((queries, 8192, head, heads, gpu.sms))] for queries, heads in ((1, 4), (8192, 32)))
        assert one.rows == 16 and one.parts > 1 and many.parts == 1 and many.rows >= one.rows


def test_a_tree_of_attention_is_that_of_the_model() -> None:
    gpu = next(gpu for gpu in GPUS if gpu.architecture == 90)
    assert fit_attention(gpu, HALF, 64).tree == attention_trees(90)[HALF, 64]


def test_maps_are_as_far_off_the_model_as_plain_loads() -> None:
    """Until there are times: by the same blocks, with a margin."""
    gpu, times = next(gpu for gpu in GPUS if gpu.architecture == 90), read_times(DATA, 90)
    assert times is not None
    for kind in (HALF, ALONG_K[FAST]):
        family, measured = FAMILIES[90][kind], Measured(times, gpu, kind)
        factors = measured.corrections(measured.points)
        mapped = [each for each in family if each.mapped]
        assert mapped and not any(measured.measured[family.index(each)] for each in mapped)
        for each in mapped:
            plain = replace(each, mapped=False)
            if not each.persistent:
                assert np.allclose(factors[:, family.index(each)], UNSURE * factors[:, family.index(plain)], rtol=0, atol=2e-6)


def test_new_schedules_are_taken_where_times_say_so() -> None:
    """Persistent ones by times alone, and those by tensor maps; those of few rows as the model has them, until there are times, which then
    count."""
    gpu, times = next(gpu for gpu in GPUS if gpu.architecture == 90), read_times(DATA, 90)
    assert times is not None
    own = [each for each in times["points"] if each["kind"] == HALF]
    new = {str(each): each for each in FAMILIES[90][HALF] if each.streams or each.persistent or each.mapped}
    for schedule, least, most in (
        ("128x128x64+w8+s4+g8+p", 1024, 1 << 20), ("128x256x64+w8+s3+g8+t+p+h2", 1024, 1 << 20), ("64x128x128+w4+s4+g8+t", 64, 1 << 20),
        ("1x64x64+w4+s1+g8", 1, 1),
    ):  # fmt: skip
        points = [
            {**each, "times": {**each["times"], schedule: min(each["times"].values()) * (0.7 if least <= each["m"] <= most else 1.5)}}
            if not new[schedule].streams or each["m"] <= FEW_ROWS
            else each
            for each in own
        ]
        tree = fit_to_model(gpu, (HALF,), {**times, "points": points})[HALF].tree
        assert new[schedule] in tree.schedules
        sizes = {m: str(tree.schedules[tree.choose((m, 4096, 4096, 1, gpu.sms))]) for m in (1, 64, 2048, 4096)}
        assert {m for m, chosen in sizes.items() if chosen == schedule} == {m for m in sizes if least <= m <= most}, sizes


@pytest.mark.parametrize("architecture", [90, 100])
def test_no_model_takes_persistent_programs_or_maps(architecture: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much faster it takes new schedules to be: there are no times of them."""
    gpu, times = next(gpu for gpu in GPUS if gpu.architecture == architecture), read_times(DATA, architecture)
    assert any(each.mapped for each in FAMILIES[architecture][HALF])
    monkeypatch.setattr(block_fit, "UNSURE", 0.5)
    tree = fit_to_model(gpu, (HALF,), times)[HALF].tree
    assert not any(each.persistent or each.mapped for each in tree.blocks)


def test_a_library_is_chosen_where_times_say_so(tmp_path: Path) -> None:
    """Of times, here those of cuBLAS beside the ones of an H200: where it was faster, near sizes that were measured and not in batches."""
    gpu, times = next(gpu for gpu in GPUS if gpu.architecture == 90), read_times(DATA, 90)
    assert times is not None
    points = [{**each, "times": {**each["times"], str(CUBLASLT): each["library"]}} for each in times["points"] if each["kind"] == HALF]
    write_times(tmp_path, times["gpu"], 90, points)
    measured = read_times(tmp_path, 90)
    assert measured is not None and measured["points"] == points
    own, family = Measured(measured, gpu, HALF), tuple(FAMILIES[90][HALF])
    tree = fit_to_model(gpu, (HALF,), measured)[HALF].tree
    assert CUBLASLT in tree.schedules and tree.prune({}) == tree
    assert own.judge(tree, family).mean > 0.9, "where there is no library disc's own schedules are chosen as well as before"
    with_library, without = own.beside_library(tree, family), own.beside_library(tree.without_library(), family)
    assert with_library is not None and without is not None and with_library.mean > 0.93 > without.mean
    assert tree.schedules[tree.choose((2048, 768, 3072, 1, 132, 1))] == CUBLASLT, "where cuBLAS took 0.6 of the time"
    assert all(tree.schedules[tree.choose((m, 64, 64, 384, 132, 1))] != CUBLASLT for m in (64, 512, 2048))


def test_no_tree_that_comes_with_disc_takes_the_library() -> None:
    """Only times may say that it is faster."""
    for gpu in GPUS:
        assert not any(CUBLASLT in tree.schedules for tree in packaged_trees(gpu.architecture).values())


def test_a_library_is_chosen_where_there_is_one(tmp_path: Path) -> None:
    tree = BlockTree((ANY_PRODUCT, CUBLASLT), ((0, 2, 3, 1), (LIBRARY, 0, 3, 2), (LEAF, 1, 0, 0), (LEAF, 0, 0, 0)))
    there = [tree.schedules[tree.choose((m, 64, 64, 1, 132, 1))] for m in (2, 3)]
    assert there == [ANY_PRODUCT, CUBLASLT] and tree.schedules[tree.choose((3, 64, 64, 1, 132))] == ANY_PRODUCT
    assert tree.without_library() == one_schedule(ANY_PRODUCT) and tree.blocks == (ANY_PRODUCT,)
    assert read_nodes(node_texts(tree.nodes), 2) == tree.nodes and node_texts(tree.nodes)[1] == "library>0?2:3"
    assert find_trees(tmp_path, 90) == ""
    write_trees(tmp_path, 90, {HALF: tree}, "NVIDIA H200")
    found = product_trees(90, find_trees(tmp_path, 90))
    assert found[HALF] == replace(tree, measured="NVIDIA H200") and found[SINGLE] == packaged_trees(90)[SINGLE]


@pytest.mark.parametrize("text", ["[]", "{", '{"half": {"schedules": ["cublaslt"], "nodes": [[7, 0, 1, 1], [-1, 0, 0, 0]]}}'])
def test_a_file_of_trees_that_is_none_is_told(tmp_path: Path, text: str) -> None:
    tuned_file(tmp_path, 90).write_text(text)
    with pytest.warns(DiscWarning, match="cannot be read, those that come with disc are taken"):
        assert find_trees(tmp_path, 90) == ""


def test_a_tree_is_read_back() -> None:
    tree = one_schedule(ALL[0])
    assert read_block_tree(tree.to_record()) == tree
    with pytest.raises(ValueError, match="points outside"):
        read_block_tree({"schedules": [str(ALL[0])], "nodes": [[0, 5, 1, 9]]})
    with pytest.raises(ValueError, match="no tree"):
        read_block_tree({"nodes": []})
