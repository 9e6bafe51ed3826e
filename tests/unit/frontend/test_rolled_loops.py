"""Loops that Python unrolled: which runs of nodes are found, that the graph computes the same with a scan, what leaves the loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch._higher_order_ops import scan
from torch._higher_order_ops.scan import scan_op
from torch.fx.experimental.proxy_tensor import make_fx

from disc.frontend import dynamo, graph_programs
from disc.frontend.loops_found import FEWEST_STEPS
from disc.frontend.rolled_loops import roll_loops
from disc.frontend.scan_loops import SCAN

STEPS = FEWEST_STEPS + 2
B, F_IN, H = 3, 5, 4


def rolled(function: Callable[..., object], *inputs: Tensor) -> tuple[fx.GraphModule, int]:
    """The graph of the function after rolling, checked against the function, and the number of loops found."""
    module = make_fx(function, tracing_mode="fake")(*inputs)
    found = roll_loops(module)
    module.graph.lint()
    for ours, expected in zip(_leaves(module(*inputs)), _leaves(function(*inputs)), strict=True):
        torch.testing.assert_close(ours, expected)
    return module, found


def _leaves(value: object) -> list[Tensor]:
    return torch.utils._pytree.tree_leaves(value)


def targets(module: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


def weights() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(F_IN, H), torch.randn(H, H), torch.randn(B, H)


def forwards(x: Tensor, w: Tensor, u: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    states = []
    for t in range(STEPS):
        h = torch.tanh(x[t] @ w + h @ u)
        states.append(h)
    return torch.stack(states), h


def backwards(x: Tensor, w: Tensor, u: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    states = []
    for t in reversed(range(STEPS)):
        h = torch.tanh(x[t] @ w + h @ u)
        states.insert(0, h)
    return torch.stack(states, 1), h


def columns(x: Tensor, w: Tensor, u: Tensor, h: Tensor) -> Tensor:
    """Rows along another dim, by unbind; the first one is taken before the loop."""
    first, *others = x.transpose(0, 1).unbind(1)
    h = h * first.sum()
    for each in others:
        h = torch.tanh(each @ w + h @ u)
    return h


def two_states(x: Tensor, w: Tensor, u: Tensor, h: Tensor) -> tuple[Tensor, ...]:
    """What is carried twice; values of one iteration in the middle; an invariant in the loop."""
    cell, seen = torch.zeros_like(h), []
    for t in range(STEPS):
        a, b = (x[t] @ w + h @ (u * u.norm())).chunk(2, -1)
        cell = cell * torch.sigmoid(a).repeat(1, 2) + torch.tanh(b).repeat(1, 2)
        h = torch.tanh(cell)
        seen.append(a)
    return h, cell, seen[3], seen[4] + seen[5]


@pytest.mark.parametrize("function", [forwards, backwards, columns, two_states])
def test_a_loop_is_found(function: Callable[..., object]) -> None:
    module, found = rolled(function, torch.randn(STEPS, B, F_IN), *weights())
    assert found == 1
    assert len(targets(module)) < 4 * STEPS
    assert targets(module).count("aten.mm.default") == 1  # of all inputs, before the loop


def test_a_stack_of_all_states_is_the_result_of_the_loop() -> None:
    module, _ = rolled(backwards, torch.randn(STEPS, B, F_IN), *weights())
    names = targets(module)
    assert not {"aten.cat.default", "aten.stack.default"} & set(names) and names.count("aten.select.int") == 1  # the last state alone


def test_several_loops_one_behind_the_other() -> None:
    def both(x: Tensor, w: Tensor, u: Tensor, h: Tensor) -> Tensor:
        states, _ = forwards(x, w, u, h)
        for t in range(STEPS):
            h = torch.sigmoid(states[t] * h) + h.square()
        return h

    assert rolled(both, torch.randn(STEPS, B, F_IN), *weights())[1] == 2


def without_rows(x: Tensor, w: Tensor, u: Tensor, h: Tensor) -> Tensor:
    for _ in range(STEPS):
        h = torch.tanh(h @ u + w.sum()).exp()
    return h + x.sum()


def rows_of_sums_alone(x: Tensor, w: Tensor, u: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Once the sum has left the loop, the loop reads no row."""
    total = torch.zeros_like(w)
    for t in range(STEPS):
        h = torch.tanh(h @ u).exp()
        total = total + x[t].t() @ h
    return h, total


def sums_alone(x: Tensor, w: Tensor, u: Tensor, h: Tensor) -> Tensor:
    """Nothing is carried from step to step once the sum has left."""
    total = torch.zeros_like(w)
    for t in range(STEPS):
        total = total + x[t].t() @ torch.tanh(x[t] @ w + h).exp()
    return total


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("function", [without_rows, rows_of_sums_alone, sums_alone])
def test_loops_that_go_over_nothing_or_carry_nothing(function: Callable[..., object]) -> None:
    inputs = (torch.randn(STEPS, B, F_IN), *weights())
    assert rolled(function, *inputs)[1] == 1
    with torch.no_grad():
        compiled = torch.compile(function, backend="disc", dynamic=True, options={"strict": True})
        for ours, expected in zip(_leaves(compiled(*inputs)), _leaves(function(*inputs)), strict=True):
            torch.testing.assert_close(ours, expected)


def own_weights(x: Tensor, w: Tensor, u: Tensor, h: Tensor) -> Tensor:
    for t in range(STEPS):
        h = torch.tanh(h @ (u if t % 3 else u.t()) + w.sum())
    return h


def few(x: Tensor, w: Tensor, u: Tensor, h: Tensor) -> Tensor:
    for t in range(FEWEST_STEPS - 1):
        h = torch.tanh(x[t] @ w + h @ u)
    return h


def other_numbers(x: Tensor, w: Tensor, u: Tensor, h: Tensor) -> Tensor:
    for t in range(STEPS):
        h = torch.tanh(h @ u + 0.5**t).exp()
    return h


def every_third_row(x: Tensor, w: Tensor, u: Tensor, h: Tensor) -> Tensor:
    for t in range(STEPS):
        h = torch.tanh(x[3 * t % STEPS] @ w + h @ u)
    return h


def two_before(x: Tensor, w: Tensor, u: Tensor, h: Tensor) -> Tensor:
    states = [h, h + 1]
    for t in range(STEPS):
        states.append(torch.tanh(x[t] @ w + states[-2] @ u))
    return states[-1]


def test_iterations_may_begin_in_the_middle_of_one() -> None:
    """What the iteration before the last one had is carried by a product of the last one."""
    assert rolled(two_before, torch.randn(STEPS, B, F_IN), *weights())[1] == 1


@pytest.mark.parametrize("function", [own_weights, few, other_numbers, every_third_row])
def test_what_is_no_loop_stays(function: Callable[..., object]) -> None:
    assert rolled(function, torch.randn(STEPS, B, F_IN), *weights())[1] == 0


def test_random_numbers_stay() -> None:
    def function(x: Tensor, w: Tensor, u: Tensor, h: Tensor) -> Tensor:
        for t in range(STEPS):
            h = torch.tanh(F.dropout(x[t] @ w, 0.5, True) + h @ u)
        return h

    module = make_fx(function, tracing_mode="fake")(torch.randn(STEPS, B, F_IN), *weights())
    assert roll_loops(module) == 0


class Normed(nn.Module):
    """A recurrent cell whose weights are normed in every step, over words."""

    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        norm = torch.nn.utils.parametrizations.weight_norm
        self.embedding, self.state, self.gates = nn.Embedding(7, 4), norm(nn.Linear(hidden, hidden)), nn.Linear(4, hidden)
        self.head = nn.Linear(hidden, 7)

    def forward(self, ids: Tensor, words: Tensor) -> Tensor:
        state, states = torch.zeros(ids.shape[0], self.state.in_features), []
        for x in self.embedding(ids).unbind(1):
            state = torch.tanh(self.gates(x) + torch.sigmoid(self.state(state)) * state + 1)
            states.append(state)
        return F.cross_entropy(self.head(torch.stack(states, 1)).flatten(0, 1), words.flatten())


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("narrow", [False, True])
def test_training(monkeypatch: pytest.MonkeyPatch, narrow: bool) -> None:
    """Losses and gradients are eager's, also within autocast; in both directions there is a loop, and no product of a weight's gradient in
    one."""
    graphs: list[fx.GraphModule] = []
    counts: list[int] = []

    def recorded(module: fx.GraphModule) -> int:
        counts.append(roll_loops(module))
        graphs.append(module)
        return counts[-1]

    monkeypatch.setattr(graph_programs, "roll_loops", recorded)
    torch.manual_seed(0)
    model = Normed()
    compiled = torch.compile(model, backend="disc", dynamic=True, options={"strict": True})
    for batch in (4, 6, 3):
        ids, words = torch.randint(7, (2, batch, STEPS))
        found, expected = [], []
        for forward, results in ((compiled, found), (model, expected)):
            model.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
                loss = forward(ids, words)
            loss.backward()
            results += [loss.detach(), *(each.grad.clone() for each in model.parameters() if each.grad is not None)]
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(
                ours, theirs, rtol=0.02 if narrow else 1e-4, atol=0.02 * float(theirs.abs().max()) if narrow else 1e-5
            )
    assert counts == [2]
    sizes = {str(tuple(each.shape)) for each in model.parameters()}
    results = [value for node in graphs[0].graph.nodes if "scan" in str(node.target) for value in node.meta["val"]]
    assert results and not any(str(tuple(value.shape)[-2:]) in sizes for value in results)
    products = [str(node.target) for node in graphs[0].graph.nodes].count("aten.mm.default")
    assert products < 2 * STEPS, "a product for each step is left: there are four"


class ScannedCell(nn.Module):
    """A user's own `scan`: halves of one product are kept for backward; the state drops elements; a weight is normed in every step."""

    def __init__(self) -> None:
        super().__init__()
        self.by_input, self.by_state = nn.Linear(F_IN, 2 * H), nn.utils.parametrizations.weight_norm(nn.Linear(H, 2 * H, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        weight = cast("Tensor", self.by_state.weight)

        def step(state: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            gate, new = (self.by_input(row) + F.linear(state, weight)).chunk(2, 1)
            state = state + torch.sigmoid(gate) * (torch.tanh(new) - state)
            return state, state.clone()

        last, states = scan(step, torch.zeros(x.shape[1], H), x)
        return states.square().mean() + last.sum()


def test_a_scan_of_the_program_trains() -> None:
    torch.manual_seed(0)
    network = ScannedCell()
    compiled = torch.compile(network, backend="disc", dynamic=True, options={"strict": True})
    dynamo.reset_statistics()
    for length, batch in ((4, 3), (9, 2), (5, 7), (13, 17), (16, 15), (2, 16)):
        x = torch.randn(length, batch, F_IN, requires_grad=True)
        losses = []
        for each in (compiled, network):
            network.zero_grad()
            x.grad = None
            loss = each(x)
            loss.backward()
            losses.append([loss.detach(), x.grad, *(weight.grad for weight in network.parameters())])
        torch.testing.assert_close(*losses, atol=1e-5, rtol=1e-4)
    assert dynamo.statistics().graphs == 2  # forward and backward


def test_what_a_scan_adds_up_or_computes_alike_leaves_it() -> None:
    def step(state: Tensor, total: Tensor, unread: Tensor, row: Tensor, u: Tensor) -> list[Tensor]:
        new = torch.tanh(state @ u.exp()) + row.sum()
        return [new, total + row.t() @ new, unread + new.sum(), new * 2]

    def sums(x: Tensor, w: Tensor, u: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        last, total, *_ = cast("list[Tensor]", scan_op(step, [h, torch.zeros(F_IN, H), torch.zeros(())], [x], (u,)))
        return last, total

    module, found = rolled(sums, torch.randn(STEPS, B, F_IN), *weights())
    (loop,) = module.graph.find_nodes(op="call_function", target=SCAN)
    ops = inside(module)
    assert found == 1 and len(loop.args[1]) == 1  # of what it carried one is a product of all steps, one nobody reads
    assert ops.count("aten.mm.default") == 1 and "aten.exp.default" not in ops
    assert targets(module).count("aten.mm.default") == 1


def inside(module: fx.GraphModule) -> list[str]:
    """The ops of the body of its only loop."""
    (loop,) = module.graph.find_nodes(op="call_function", target=SCAN)
    body = getattr(module, loop.args[0].target)
    return [str(node.target) for node in body.graph.nodes if node.op == "call_function"]


def scanned(step: Callable[..., object], *inputs: Tensor, rows: int = 1) -> list[str]:
    """Ops outside of the rolled loop and inside of it. inputs: the first state, the rows of all steps, and what every step takes."""

    def function(*given: Tensor) -> object:
        return scan_op(step, [given[0]], list(given[1 : 1 + rows]), given[1 + rows :])

    module, found = rolled(function, *inputs)
    assert found == 1
    return [*targets(module), "|", *inside(module)]


PRODUCT, CONVOLUTION = "aten.mm.default", "aten.convolution.default"


def test_products_that_no_step_waits_for_leave_a_scan() -> None:
    """With what they need before the loop, with what is made of them behind it."""

    def step(h: Tensor, row: Tensor, w: Tensor, u: Tensor, bias: Tensor, v: Tensor) -> list[Tensor]:
        new = torch.tanh(torch.relu(torch.addmm(bias, torch.sigmoid(row), w)) + h @ u)
        return [new, (new.reshape(B, 2, 2).reshape(B, H) @ v).exp() * 2]

    w, u, h = weights()
    ops = scanned(step, h, torch.randn(STEPS, B, F_IN), w, u, torch.randn(H), torch.randn(H, 2))
    behind, body = ops[ops.index("scan") :], ops[ops.index("|") :]
    assert [op for op in body if "clone" not in op] == ["|", PRODUCT, "aten.add.Tensor", "aten.tanh.default"]
    assert ops[: ops.index("scan")].count("aten.addmm.default") == 1 and behind.count("aten.exp.default") == 1


def test_convolutions_and_embedded_rows_leave_a_scan() -> None:
    def image(h: Tensor, row: Tensor, scale: Tensor, kernel: Tensor, w: Tensor) -> list[Tensor]:
        y = torch.relu(F.conv1d(row * scale.squeeze(0), kernel)).flatten(1)
        y = torch.cat([y, row[:, 0].unsqueeze(2).expand(-1, -1, 2).transpose(1, 2)[:, 1, 1:]], 1)
        return [torch.tanh(y @ w + h), h.t().clone()]

    def word(h: Tensor, row: Tensor, table: Tensor, w: Tensor) -> list[Tensor]:
        return [torch.tanh(F.embedding(row, table) @ w) + h, h @ w[:H]]

    w, _, h = weights()
    ops = scanned(image, h, torch.randn(STEPS, B, 2, 7), torch.randn(STEPS), torch.randn(3, 2, 2), torch.randn(24, H), rows=2)
    assert not {PRODUCT, CONVOLUTION} & set(ops[ops.index("|") :]) and ops.count(CONVOLUTION) == 1
    ops = scanned(word, h, torch.randint(7, (STEPS, B)), torch.randn(7, F_IN), w)
    assert not {PRODUCT, "aten.embedding.default"} & set(ops[ops.index("|") :]) and ops.count(PRODUCT) == 2


def test_products_that_stay_in_a_scan() -> None:
    """A number of each step is no tensor by its dtype, of all steps it is one; what a narrow product reads would be kept for it alone; a
    state is read by the next step."""

    def number(h: Tensor, row: Tensor, scale: Tensor, w: Tensor) -> list[Tensor]:
        y = (row * scale) @ w
        return [h + y, y.float()]

    def narrow(h: Tensor, row: Tensor, w: Tensor) -> list[Tensor]:
        new = torch.tanh(h + row.sum())
        return [new, torch.cat([new, new, new], 1) @ w]

    def state(h: Tensor, row: Tensor, w: Tensor) -> list[Tensor]:
        new = row @ w
        return [new, new + h]

    w, _, h = weights()
    rows = torch.randn(STEPS, B, F_IN)
    assert PRODUCT in (ops := scanned(number, h.bfloat16(), rows.bfloat16(), torch.randn(STEPS), w.bfloat16(), rows=2))[ops.index("|") :]
    assert PRODUCT in (ops := scanned(narrow, h, rows, torch.randn(3 * H, 1)))[ops.index("|") :]
    assert PRODUCT in (ops := scanned(state, h, rows, w))[ops.index("|") :]


@pytest.mark.usefixtures("fresh_dynamo")
def test_any_number_of_steps() -> None:
    torch.manual_seed(0)
    network = ScannedCell()
    compiled = torch.compile(network, backend="disc", dynamic=True, options={"strict": True})
    for length in (7, 16, 17, 1):
        x = torch.randn(length, 4, F_IN)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), network(x))
