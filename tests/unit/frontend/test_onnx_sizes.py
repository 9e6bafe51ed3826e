"""ONNX operators whose results have sizes that data decides, or that depend on sizes in steps: one compile, against ONNX's reference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import disc
from disc.config import Options
from disc.errors import DiscError, ShapeConstraintError

Array = np.ndarray
RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def whole(*values: int) -> Array:
    return np.array(values, np.int64)


def model(operator: str, inputs: Sequence[tuple[Sequence[str | int], Array]], results: Sequence[int], **attributes: Any) -> onnx.ModelProto:
    """inputs: their dims, and an array of their type; results: ranks."""
    names = [f"x{place}" for place in range(len(inputs))]
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), dims)
        for name, (dims, array) in zip(names, inputs, strict=True)
    ]
    made = [f"y{place}" for place in range(len(results))]
    node = helper.make_node(operator, names, made, **attributes)
    kind = TensorProto.INT64 if inputs[0][1].dtype == np.int64 and operator == "Range" else TensorProto.FLOAT
    kinds = [kind, TensorProto.INT64]
    outputs = [
        helper.make_tensor_value_info(name, kinds[place], [None] * rank)
        for place, (name, rank) in enumerate(zip(made, results, strict=True))
    ]
    graph = helper.make_graph([node], operator, given, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def check(made: onnx.ModelProto, calls: Sequence[Sequence[Array]], folder: Path) -> disc.Executable:
    onnx.save(made, folder / "model.onnx")
    exe = disc.compile(folder / "model.onnx", options=Options(cache=False))
    reference = ReferenceEvaluator(made)
    for call in calls:
        wanted = reference.run(None, {each.name: array for each, array in zip(made.graph.input, call, strict=True)})
        found = exe(*call)
        for have, want in zip(found if isinstance(found, tuple) else (found,), wanted, strict=True):
            np.testing.assert_allclose(
                np.asarray(have), np.asarray(want), 1e-5, 1e-5, err_msg=str([each.tolist() for each in call if each.size < 9])
            )
    return exe


X = (["a", "b"], normal(1))
SIZES = {
    "Expand": ([(["a", 1], normal(1)), ([2], whole(1))], [[normal(3, 1), whole(3, 4)], [normal(2, 1), whole(1, 7)], [normal(2, 1), whole(2, 0)]]),
    "Tile": ([X, ([2], whole(1))], [[normal(3, 4), whole(2, 3)], [normal(1, 2), whole(1, 0)]]),
    "Reshape": ([X, ([2], whole(1))], [[normal(3, 4), whole(2, 6)], [normal(3, 4), whole(-1, 3)], [normal(3, 7), whole(0, 7)]]),
    "Slice": (
        [X, ([2], whole(1)), ([2], whole(1)), ([2], whole(1)), ([2], whole(1))],
        [
            [normal(3, 5), whole(0, 1), whole(2, 5), whole(0, 1), whole(1, 2)],
            [normal(4, 7), whole(0, -1), whole(100, -100), whole(0, 1), whole(2, -2)],
            [normal(2, 5), whole(1, 4), whole(-1, 2), whole(0, 1), whole(1, 1)],
            [normal(1, 1), whole(-3, 0), whole(2**62, -1), whole(0, 1), whole(1, -1)],
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_are_data(name: str, tmp_path: Path) -> None:
    inputs, calls = SIZES[name]
    if name == "Slice":  # its axes are known
        inputs = [*inputs[:3], inputs[4]]
        calls = [[*call[:3], call[4]] for call in calls]
        made = model(name, inputs, [2])
        made.graph.node[0].input[:] = ["x0", "x1", "x2", "axes", "x3"]
        made.graph.initializer.append(numpy_helper.from_array(whole(0, 1), "axes"))
    else:
        made = model(name, inputs, [2])
    check(made, calls, tmp_path)


def test_parts_whose_sizes_are_data(tmp_path: Path) -> None:
    calls = [
        [normal(2, 10), whole(2, 3, 5)],
        [normal(1, 1), whole(0, 1, 0)],
        [normal(0, 7), whole(5, 1, 1)],
        [normal(2, 0), whole(0, 0, 0)],
    ]
    made = model("Split", [X, ([3], whole(1))], [2], axis=1)
    made.graph.node[0].output.extend(["y1", "y2"])
    made.graph.output.extend(helper.make_tensor_value_info(f"y{place}", TensorProto.FLOAT, [None, None]) for place in (1, 2))
    exe = check(made, calls, tmp_path)
    for sizes in (whole(3, 3, 3), whole(11, -1, 0)):
        with pytest.raises(ShapeConstraintError, match="Split"):
            exe(normal(2, 10), sizes)


IMAGE = (["n", "c", "h", "w"], normal(1))
COUNTINGS = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("counting", COUNTINGS)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_images_resized_to_sizes_that_are_data(mode: str, counting: str, tmp_path: Path) -> None:
    how = {"mode": mode, "coordinate_transformation_mode": counting}
    sizes = [[normal(1, 2, 4, 6), whole(1, 2, 8, 9)], [normal(2, 1, 5, 7), whole(2, 1, 3, 4)], [normal(1, 1, 1, 3), whole(1, 1, 4, 1)]]
    made = model("Resize", [IMAGE, ([4], whole(1))], [4], **how)
    made.graph.node[0].input[:] = ["x0", "", "", "x1"]
    exe = check(made, sizes, tmp_path)
    infinite = np.full([1, 2, 3, 3], np.inf, np.float32)
    infinite[:, 1] = 1
    assert np.isfinite(np.asarray(exe(infinite, whole(1, 2, 2, 5)))[:, 1]).all()
    scales = [[normal(1, 2, 4, 6), np.array([1, 1, 2, 1.5], np.float32)], [normal(2, 1, 5, 8), np.array([1, 1, 0.6, 0.25], np.float32)]]
    made = model("Resize", [IMAGE, ([4], normal(1))], [4], **how)
    made.graph.node[0].input[:] = ["x0", "", "x1"]
    check(made, scales, tmp_path)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_images_resized_at_one_scale(policy: str, tmp_path: Path) -> None:
    made = model("Resize", [(["n", 1, "h", "w"], normal(1))], [4], mode="linear", axes=[2, 3], keep_aspect_ratio_policy=policy)
    made.graph.node[0].input[:] = ["x0", "", "", "sizes"]
    made.graph.initializer.append(numpy_helper.from_array(whole(4, 4), "sizes"))
    check(made, [[normal(2, 1, 7, 10)], [normal(1, 1, 2, 3)], [normal(1, 1, 5, 4)]], tmp_path)


def test_a_region_that_is_data(tmp_path: Path) -> None:
    region = np.array([0, 0, 0.1, 0.2, 1, 1, 0.8, 1.2], np.float32)
    how = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.0}
    made = model("Resize", [IMAGE, ([8], region), ([4], whole(1))], [4], mode="linear", **how)
    made.graph.node[0].input[:] = ["x0", "x1", "", "x2"]
    check(made, [[normal(2, 1, 7, 9), region, whole(2, 1, 3, 4)], [normal(1, 1, 7, 9), region, whole(1, 1, 1, 4)]], tmp_path)


@pytest.mark.parametrize("scale", [0.7, 0.3, 0.9, 2.3])
def test_a_scale_means_one_size_whether_the_dim_is_static_or_not(scale: float, tmp_path: Path) -> None:
    """7 for 10 * 0.7, as ONNX Runtime and PyTorch have it, though the f32 is a little less. From 3 on, 0.3 of a size of the trace is 0."""
    for size in (10, "w"):
        made = model("Resize", [(["n", 1, size], normal(1))], [3], mode="linear")
        made.graph.node[0].input[:] = ["x0", "", "scales"]
        made.graph.initializer.append(numpy_helper.from_array(np.array([1, 1, scale], np.float32), "scales"))
        onnx.save(made, tmp_path / "model.onnx")
        exe = disc.compile(tmp_path / "model.onnx", options=Options(cache=False))
        assert np.asarray(exe(normal(2, 1, 10))).shape == (2, 1, round(10 * scale))


def test_ranges_counts_and_pads(tmp_path: Path) -> None:
    numbers = [([], np.array(0))] * 3
    calls = [[np.array(each) for each in call] for call in ((0, 5, 1), (3, -4, -2), (3, 3, 1), (5, 2, 1))]
    exe = check(model("Range", numbers, [1]), calls, tmp_path)
    with pytest.raises(DiscError):
        exe(np.array(0), np.array(5), np.array(0))
    floats = [[np.array(each, np.float32) for each in call] for call in ((0, 5.5, 1), (3, -4, -2), (1, 0, 0.5))]
    check(model("Range", [([], floats[0][0])] * 3, [1]), floats, tmp_path)
    check(model("ConstantOfShape", [([2], whole(1))], [2]), [[whole(2, 3)], [whole(0, 4)]], tmp_path)
    check(model("Pad", [X, ([4], whole(1))], [2]), [[normal(3, 4), whole(1, 0, 0, 2)], [normal(1, 2), whole(0, 0, 3, 1)]], tmp_path)
    reflected = [[normal(3, 4), whole(1, 0, 0, 2)], [normal(4, 5), whole(0, 0, 3, 1)]]
    check(model("Pad", [X, ([4], whole(1))], [2], mode="reflect"), reflected, tmp_path)
    onehot = model("OneHot", [(["a"], whole(1)), ([], np.array(0)), ([2], normal(2))], [2])
    check(onehot, [[whole(0, 2, 1), np.array(4), normal(2)], [whole(0, 1), np.array(2), normal(2)]], tmp_path)
    top = model("TopK", [X, ([1], whole(1))], [2, 2])
    exe = check(top, [[normal(3, 5), whole(2)], [normal(2, 7), whole(7)], [normal(2, 7), whole(0)]], tmp_path)
    for count in (-1, 8):
        with pytest.raises(DiscError):
            exe(normal(2, 7), whole(count))


def test_a_size_that_does_not_fit_fails_the_call(tmp_path: Path) -> None:
    exe = check(model("Expand", [X, ([2], whole(1))], [2]), [[normal(3, 4), whole(3, 1)], [normal(2, 5), whole(1, 5)]], tmp_path)
    for sizes in (whole(2, 4), whole(-1, 4)):
        with pytest.raises(DiscError):
            exe(normal(3, 4), sizes)
    exe = check(model("Reshape", [X, ([2], whole(1))], [2]), [[normal(3, 4), whole(4, 3)]], tmp_path)
    with pytest.raises(DiscError):
        exe(normal(3, 4), whole(5, 3))


Y = (["c", "d"], normal(1))
EQUAL = {
    "MatMul": ([X, Y], {}, [[normal(3, 5), normal(5, 2)], [normal(2, 7), normal(7, 1)], [normal(1, 1), normal(1, 4)]]),
    "Gemm": ([X, Y, (["e"], normal(1))], {}, [[normal(3, 5), normal(5, 2), normal(2)], [normal(2, 7), normal(7, 4), normal(4)]]),
    "Add": ([X, (["c"], normal(1))], {}, [[normal(3, 5), normal(5)], [normal(2, 7), normal(7)], [normal(0, 1), normal(1)]]),
    "LayerNormalization": ([X, (["c"], normal(1))], {}, [[normal(3, 5), normal(5)], [normal(2, 4), normal(4)]]),
    "Einsum": (
        [(["a", "b", "c"], normal(1)), (["d", "e", "f"], normal(1))],
        {"equation": "bij,bjk->bik"},
        [[normal(3, 5, 2), normal(3, 2, 7)], [normal(2, 7, 1), normal(2, 1, 4)]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("operator", EQUAL)
def test_dims_of_different_names_that_an_operator_makes_equal(operator: str, tmp_path: Path) -> None:
    inputs, attributes, calls = EQUAL[operator]
    exe = check(model(operator, inputs, [3 if operator == "Einsum" else 2], **attributes), calls, tmp_path)
    first, second, *rest = calls[0]
    with pytest.raises(ShapeConstraintError, match="must equal dim"):
        exe(first[..., :-1], second, *rest)


def test_a_graph_that_no_equal_dims_help_says_what_fails_in_it(tmp_path: Path) -> None:
    made = model("MatMul", [(["a", 3], normal(1)), ([4, "b"], normal(1))], [2])
    onnx.save(made, tmp_path / "model.onnx")
    with pytest.raises(DiscError, match="cannot be computed"):
        disc.compile(tmp_path / "model.onnx", options=Options(cache=False))


IMAGES = ((1, 2, 7, 8), (2, 2, 5, 5), (1, 2, 4, 6), (0, 2, 9, 6), (1, 2, 3, 3))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0]], ids=str)
@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
def test_pools_with_a_last_window_that_reaches_beyond(operator: str, pads: list[int], tmp_path: Path) -> None:
    """`ceil_mode` of dynamic sizes. For some averages without pads, ONNX Runtime and the reference disagree."""
    for strides in ([2, 2], [3, 2]) if operator == "MaxPool" or any(pads) else ([2, 2],):
        included = {"count_include_pad": 1} if operator == "AveragePool" and any(pads) else {}
        made = model(
            operator, [(["n", 2, "h", "w"], normal(1))], [4], kernel_shape=[3, 3], strides=strides, pads=pads, ceil_mode=1, **included
        )
        check(made, [[normal(*shape)] for shape in IMAGES], tmp_path)


@pytest.mark.parametrize("example", [(1, 2, 3, 8), (1, 2, 2, 2), (1, 2, 6, 3)], ids=str)
@pytest.mark.parametrize(
    "attributes", [{"ceil_mode": 1}, {"ceil_mode": 1, "pads": [1, 1, 1, 1], "dilations": [2, 2]}, {"auto_pad": "SAME_UPPER"}], ids=str
)
def test_examples_whose_pooled_size_is_one_fix_no_dim(attributes: dict[str, Any], example: tuple[int, ...], tmp_path: Path) -> None:
    made = model("AveragePool", [(["n", 2, "h", "w"], normal(1))], [4], kernel_shape=[3, 3], strides=[2, 2], **attributes)
    onnx.save(made, tmp_path / "model.onnx")
    exe = disc.compile(tmp_path / "model.onnx", [torch.randn(*example)], options=Options(cache=False))
    reference = ReferenceEvaluator(made)
    for shape in (example, *IMAGES[:3]):
        x = normal(*shape)
        np.testing.assert_allclose(np.asarray(exe(x)), np.asarray(reference.run(None, {"x0": x})[0]), 1e-5, 1e-5)  # pyright: ignore


def test_a_pool_of_unknown_rank(tmp_path: Path) -> None:
    """What a file does not say of its results is no fault."""
    made = model("MaxPool", [(["n", 2, "h", "w"], normal(1))], [4], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)
    made.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(made, tmp_path / "model.onnx")
    exe = disc.compile(tmp_path / "model.onnx", options=Options(cache=False))
    for height, width in ((2, 2), (2, 5), (7, 3)):
        x = torch.randn(2, 2, height, width)
        torch.testing.assert_close(torch.as_tensor(exe(x)), torch.nn.functional.max_pool2d(x, 2, 2, ceil_mode=True))


@pytest.mark.parametrize("how", ["SAME_UPPER", "SAME_LOWER"])
def test_pools_of_as_many_windows_as_steps(how: str, tmp_path: Path) -> None:
    """Against ONNX Runtime: odd sizes have a window more than the example's even ones suggest."""
    runtime = pytest.importorskip("onnxruntime")
    made = model("MaxPool", [(["n", 2, "h", "w"], normal(1))], [4], kernel_shape=[3, 2], strides=[2, 2], auto_pad=how)
    onnx.save(made, tmp_path / "model.onnx")
    exe = disc.compile(tmp_path / "model.onnx", options=Options(cache=False))
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    for shape in ((1, 2, 7, 8), (2, 2, 5, 5), (1, 2, 4, 6), (3, 2, 1, 1)):
        x = normal(*shape)
        np.testing.assert_array_equal(np.asarray(exe(x)), session.run(None, {"x0": x})[0])


def test_a_loop_of_no_turns_stacks_no_rows(tmp_path: Path) -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Add", ["a", "x"], ["b"]), helper.make_node("Identity", ["b"], ["row"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("a", TensorProto.FLOAT, ["k"]),
        ],
        [
            helper.make_tensor_value_info("d", TensorProto.BOOL, []), helper.make_tensor_value_info("b", TensorProto.FLOAT, ["k"]),
            helper.make_tensor_value_info("row", TensorProto.FLOAT, ["k"]),
        ],
    )  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("Loop", ["n", "", "start"], ["last", "rows"], body=body)],
        "loop",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["k"]) for name in ("start", "x")],
        [
            helper.make_tensor_value_info("last", TensorProto.FLOAT, ["k"]),
            helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["t", "k"]),
        ],
        [numpy_helper.from_array(np.array(0), "n")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "model.onnx")
    exe = disc.compile(tmp_path / "model.onnx", options=Options(cache=False))
    for size in (3, 1, 0, 7):
        last, rows = exe(start := normal(size), normal(size))  # pyright: ignore[reportGeneralTypeIssues]
        np.testing.assert_array_equal(np.asarray(last), start)
        assert np.asarray(rows).shape == (0, size)
