"""PRelu before operator set 7, which the standard's converter leaves as it is: slopes lay along the channels.

PRelu(x [n, c, h, w], slope [c])   ─►   PRelu(x, slope [c, 1, 1]), as later sets broadcast
"""

from __future__ import annotations

import math

import onnx
from onnx import shape_inference

CHANNELS = 1  # the dim that they are


def broadcast_slopes(model: onnx.ModelProto) -> bool:
    """Rewrites the nodes of the main graph; False where slopes are no initializer, or what they are for has no known rank."""
    nodes = [node for node in model.graph.node if node.op_type == "PRelu" and len(node.input) == 2]
    slopes = {each.name: each for each in model.graph.initializer}
    if any(node.input[1] not in slopes for node in nodes):
        return False
    several = [node for node in nodes if math.prod(slopes[node.input[1]].dims) != 1]
    ranks = _ranks(model) if several else {}
    if any(ranks.get(node.input[0], 0) <= CHANNELS for node in several):
        return False
    for node in several:
        node.input[1] = _reshaped(model.graph, slopes[node.input[1]], ranks[node.input[0]] - CHANNELS - 1)
    return True


def _ranks(model: onnx.ModelProto) -> dict[str, int]:
    """Of the values whose shapes the file or the standard's inference says."""
    try:
        graph = shape_inference.infer_shapes(model).graph
    except (shape_inference.InferenceError, RuntimeError, ValueError):
        graph = model.graph
    values = [each for each in (*graph.input, *graph.value_info) if each.type.tensor_type.HasField("shape")]
    return {each.name: len(each.type.tensor_type.shape.dim) for each in values}


def _reshaped(graph: onnx.GraphProto, slope: onnx.TensorProto, ones: int) -> str:
    """The name of an initializer of the same numbers with as many dims of size 1 behind them."""
    name = f"{slope.name}/{ones}"
    if ones and all(each.name != name for each in graph.initializer):
        dims = [*slope.dims, *[1] * ones]
        graph.input.append(onnx.helper.make_tensor_value_info(name, slope.data_type, dims))
        made = graph.initializer.add()
        made.CopyFrom(slope)
        made.name = name
        del made.dims[:]
        made.dims.extend(dims)
    return name if ones else slope.name
