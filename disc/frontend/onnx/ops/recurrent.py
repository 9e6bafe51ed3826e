"""RNN, GRU and LSTM: a loop over the sequence, behind one product for the inputs of all steps.

Gates lie in ONNX's order (LSTM: input, output, forget, cell; GRU: update, reset, hidden), which is not PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from disc.frontend.onnx.node import Node
from disc.frontend.onnx.ops.control import scanned
from disc.frontend.onnx.values import Leaf, NodeError, Result, constant_of

Rule = Callable[[Node], Result]
Activation = Callable[[Tensor], Tensor]
ACTIVATIONS: dict[str, Activation] = {"Sigmoid": torch.sigmoid, "Tanh": torch.tanh, "Relu": torch.relu}


@dataclass(frozen=True)
class _Direction:
    """The weights of one direction. inner: [gates * hidden, hidden]; bias: of the state [gates * hidden]; peepholes: [3 * hidden]; clip:
    the largest magnitude of what goes into an activation."""

    inner: Tensor
    bias: Tensor | None
    peepholes: Tensor | None
    functions: Sequence[Activation]
    clip: float | None

    def tensors(self) -> list[Tensor]:
        return [each for each in (self.inner, self.bias, self.peepholes) if each is not None]

    def of(self, tensors: Sequence[Tensor]) -> _Direction:
        """With these in the place of its own."""
        given = iter(tensors)
        inner, bias, peepholes = (next(given) if each is not None else None for each in (self.inner, self.bias, self.peepholes))
        assert inner is not None
        return replace(self, inner=inner, bias=bias, peepholes=peepholes)

    def bounded(self, gates: Tensor) -> Tensor:
        return gates if self.clip is None else torch.clamp(gates, -self.clip, self.clip)

    def hidden(self, state: Tensor) -> Tensor:
        product = torch.matmul(state, self.inner.t())
        return product if self.bias is None else product + self.bias


State = tuple[Tensor, ...]
Step = Callable[[Node, _Direction, Tensor, State], State]


def _rnn_step(node: Node, way: _Direction, inputs: Tensor, state: State) -> State:
    return (way.functions[0](way.bounded(inputs + way.hidden(state[0]))),)


def _gru_step(node: Node, way: _Direction, inputs: Tensor, state: State) -> State:
    (h,), (sigma, tanh), size = state, way.functions, state[0].shape[-1]
    own = way.hidden(h)
    update, reset = (sigma(way.bounded(inputs[:, i * size : (i + 1) * size] + own[:, i * size : (i + 1) * size])) for i in range(2))
    if node.attr_int("linear_before_reset", 0):
        inner = reset * own[:, 2 * size :]
    else:
        inner = torch.matmul(reset * h, way.inner[2 * size :].t())
        inner = inner if way.bias is None else inner + way.bias[2 * size :]
    new = tanh(way.bounded(inputs[:, 2 * size :] + inner))
    return ((1 - update) * new + update * h,)


def _lstm_step(node: Node, way: _Direction, inputs: Tensor, state: State) -> State:
    (h, c), (sigma, tanh, last) = state, way.functions
    into, out, forget, cell = (inputs + way.hidden(h)).chunk(4, -1)
    seen = way.peepholes.chunk(3) if way.peepholes is not None else None
    if seen is not None:
        into, forget = into + seen[0] * c, forget + seen[2] * c
    taken = sigma(way.bounded(into))
    kept = 1 - taken if node.attr_int("input_forget", 0) else sigma(way.bounded(forget))
    c = kept * c + taken * tanh(way.bounded(cell))
    out = out + seen[1] * c if seen is not None else out
    return sigma(way.bounded(out)) * last(c), c


def _rule(step: Step, gates: int, states: int, defaults: Sequence[str]) -> Rule:
    """Inputs: x [length, batch, in] (batch first with `layout`), weights [ways, gates * hidden, in], of the state [.., hidden], biases
    [ways, 2 * gates * hidden], lengths [batch], first states [ways, batch, hidden], peepholes."""

    def rule(node: Node) -> Result:
        layout = node.attr_int("layout", 0)
        x = node.tensor(0).transpose(0, 1) if layout else node.tensor(0)
        ways = {"forward": 1, "reverse": 1, "bidirectional": 2}[node.attr_text("direction", "forward")]
        first = [node.tensor(5 + i).transpose(0, 1) if layout else node.tensor(5 + i) for i in range(states) if node.has(5 + i)]
        hidden = int(node.tensor(2).shape[-1])
        first = first or [torch.zeros(ways, x.shape[1], hidden, dtype=x.dtype)]
        first += [torch.zeros_like(first[0])] * (states - len(first))
        results = [
            _run(node, step, x, _direction(node, way, gates, defaults), way, tuple(each[way] for each in first)) for way in range(ways)
        ]
        y = torch.stack([outputs for outputs, _ in results], 1)  # [length, ways, batch, hidden]
        last = [torch.stack([state[i] for _, state in results]) for i in range(states)]
        if layout:
            y, last = y.permute(2, 0, 1, 3), [each.transpose(0, 1) for each in last]
        return (y, *last)

    return rule


def _direction(node: Node, way: int, gates: int, defaults: Sequence[str]) -> _Direction:
    given = node.attributes.get("activations")
    names = [each.decode() if isinstance(each, bytes) else str(each) for each in given] if isinstance(given, list) else []
    names = names[way * len(defaults) : (way + 1) * len(defaults)] or list(defaults)
    if not set(names) <= set(ACTIVATIONS) or node.given("activation_alpha") or node.given("activation_beta"):
        raise NodeError(f"activations {', '.join(names)}, or parameters of theirs")
    bias = _own(node, 3, way).chunk(2)[1] if node.has(3) else None
    peepholes = _own(node, 7, way) if gates == 4 and node.has(7) else None
    clip = node.attr_float("clip") if node.given("clip") else None
    return _Direction(_own(node, 2, way), bias, peepholes, [ACTIVATIONS[name] for name in names], clip)


def _own(node: Node, place: int, way: int) -> Tensor:
    """What a direction has of an input. Of a constant it is one, too: a loop reads it as a weight, packed when compiling."""
    constant = node.known(place)
    if constant is None:
        return node.tensor(place)[way]
    return node.as_tensor(constant_of(lambda: constant.data[way].contiguous())).clone()


def _run(node: Node, step: Step, x: Tensor, way: _Direction, number: int, state: State) -> tuple[Tensor, State]:
    """The outputs of all steps [length, batch, hidden], and the last state. Behind the end of a sequence outputs are 0."""
    backward = number == 1 or node.attr_text("direction", "forward") == "reverse"
    inputs = torch.matmul(x, _own(node, 1, number).t())
    if node.has(3):
        inputs = inputs + _own(node, 3, number).chunk(2)[0]
    rows = [torch.flip(inputs, [0]) if backward else inputs]
    if node.has(4):
        places = torch.arange(x.shape[0])
        rows.append(torch.flip(places, [0]) if backward else places)

    def once(given: Sequence[Tensor], slices: Sequence[Tensor], outside: Sequence[Leaf]) -> list[Tensor]:
        weights = [each for each in outside if isinstance(each, Tensor)]
        before, new = tuple(given), step(node, way.of(weights), slices[0], tuple(given))
        if len(slices) == 1:
            return [*new, new[0]]
        inside = weights[-1] > slices[1]
        kept = [torch.where(inside, after, earlier) for after, earlier in zip(new, before, strict=True)]
        return [*kept, torch.where(inside, new[0], torch.zeros_like(new[0]))]

    lengths = [node.tensor(4).unsqueeze(-1)] if node.has(4) else []
    last, (outputs,) = scanned(once, state, rows, [*way.tensors(), *lengths])
    return torch.flip(outputs, [0]) if backward else outputs, tuple(last)


RULES: dict[str, Rule] = {
    "RNN": _rule(_rnn_step, 1, 1, ("Tanh",)), "GRU": _rule(_gru_step, 3, 1, ("Sigmoid", "Tanh")),
    "LSTM": _rule(_lstm_step, 4, 2, ("Sigmoid", "Tanh", "Tanh")),
}  # fmt: skip
