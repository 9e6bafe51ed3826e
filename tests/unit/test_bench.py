"""The benchmark's own arithmetic, reports, and processes; nothing is timed here but calls that do nothing."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import nn

from bench import figures, peers, report, run
from bench.cases import CASES, SUITE_CASES, Case, Instances, TrainedInstances, TrainingStep, build, parse_shapes
from bench.cases.case import random_tensor
from bench.cases.dynamic import parse_trees
from bench.checks import error_of, first_tensor, matrix_flops, weight_elements, work_of
from bench.compare import comparison
from bench.compare import figures as compared
from bench.dtypes import DTYPES
from bench.job import Job
from bench.limits import Limits, Work, bound, higher
from bench.peer_process import PeerProcess
from bench.plot import plot
from bench.suites.latency import peer_names, sizes_of
from bench.suites.stream import Visit, quantiles, stream_shapes
from bench.suites.stream import summary as stream_summary
from disc.cli.bench.process import PeerFailed
from disc.cli.bench.timing import calls_per_turn, interleave, summarize, time_turn
from tests.unit.bench_records import compile_record, record, row, stream_record, timing

TINY = Case("tiny", "tiny", nn.Identity, lambda shape: (torch.ones(shape),), ((2,),), (0,), (3,))


# --- turns ----------------------------------------------------------------------------------------------------------------------


def test_summary_of_turns() -> None:
    found = summarize([4.0, 1.0, 2.0, 3.0, 5.0])
    assert (found.median, found.low, found.high, found.turns) == (3.0, 1.0, 5.0, 5)
    assert found.spread == pytest.approx(2 / 3)
    assert summarize([2.0]).spread == 0.0


def test_everybody_has_as_many_turns_and_the_order_rotates() -> None:
    order: list[str] = []

    def turn(name: str) -> float:
        order.append(name)
        return float(len(order))

    found = interleave({name: lambda name=name: turn(name) for name in "abc"}, 3)
    assert {name: result.turns for name, result in found.items()} == {"a": 3, "b": 3, "c": 3}
    assert "".join(order) == "abcbcacab"


def test_a_turn_makes_as_many_calls_as_it_is_told() -> None:
    calls: list[int] = []
    assert time_turn(lambda: calls.append(1), 5) >= 0
    assert len(calls) == 5
    assert calls_per_turn(lambda: None) > 100


def test_quantiles_of_a_stream() -> None:
    found = quantiles([1.0] * 99 + [3.0])
    assert (found["p50"], found["p90"], found["max"]) == (1.0, 1.0, 3.0)
    assert 1.0 < found["p99"] < 3.0


# --- checks and work ------------------------------------------------------------------------------------------------------------


def test_error_of_results() -> None:
    one = torch.tensor([1.0, float("nan"), float("inf")])
    assert error_of(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5])) == 0.2  # over the largest value, 2.5
    assert error_of(torch.tensor([0.25]), torch.tensor([0.5])) == 0.25  # over 1
    assert error_of(torch.ones(2), torch.ones(3)) == math.inf
    assert error_of(torch.tensor([1.0, 2.0, 3.0]), one) == math.inf
    assert error_of(torch.tensor([1.0, float("nan"), 3.0]), one) == math.inf
    assert error_of(one, one) == 0.0
    assert error_of(torch.ones(0), torch.ones(0)) == 0.0


def test_work_of_a_linear_layer() -> None:
    x, model = torch.ones(3, 8), nn.Linear(8, 4)
    with torch.no_grad():
        found = work_of(model, (x,), model(x), DTYPES["fp32"])
        half = work_of(model, (x,), model(x), DTYPES["bf16"])
    assert found == Work(2 * 3 * 8 * 4, 4 * (3 * 8 + 8 * 4 + 4), 4 * 3 * 4)
    assert half.read == found.read - 2 * (8 * 4 + 4)


def test_tables_of_embeddings_are_not_read_whole_and_shared_weights_count_once() -> None:
    linear = nn.Linear(8, 8)
    assert weight_elements(nn.Sequential(nn.Embedding(100, 8), linear, linear)) == 72


def test_roofline() -> None:
    limits = Limits(1e9, {100: 4e9, 1000: 2e9}, {100: 2e9, 1000: 1e9})
    assert bound(Work(2_000_000, 0, 0), limits).compute_ms == pytest.approx(2.0)
    read = bound(Work(0, 500, 0), limits)  # the rate of 100 bytes: 500 may be cached like them
    assert read.memory_ms == pytest.approx(500 / 4e9 * 1e3)
    both = bound(Work(0, 3000, 1000), limits)  # 1000 read and written as by a copy, 2000 more read
    assert both.memory_ms == pytest.approx((2000 / 1e9 + 2000 / 2e9) * 1e3)
    assert both.ms == both.memory_ms
    assert bound(Work(0, 10, 0), limits).memory_ms == pytest.approx(10 / 4e9 * 1e3)  # smaller than all that was measured


def test_the_higher_of_two_limits() -> None:
    found = higher(Limits(1.0, {1: 5.0}, {1: 1.0}), Limits(2.0, {1: 4.0}, {1: 3.0}))
    assert found == Limits(2.0, {1: 5.0}, {1: 3.0})


# --- cases ----------------------------------------------------------------------------------------------------------------------


def test_shapes_on_the_command_line() -> None:
    case = CASES["bert"]
    assert parse_shapes("1x16,4x50", case) == ((1, 16), (4, 50))
    assert parse_shapes(None, case) == case.shapes
    assert parse_shapes("7", CASES["linear-768x768"]) == ((7,),)
    for wrong in ("1x2x3", "0x4", "x", "7"):
        with pytest.raises(ValueError):
            parse_shapes(wrong, case)


def test_every_case_has_a_name_of_its_own_and_an_unmeasured_example() -> None:
    cases = list(
        dict.fromkeys(case for suite, own in SUITE_CASES.items() if suite != "compile" for case in own)
    )  # some measure others' cases
    assert len({case.name for case in cases}) == len(cases) == len(CASES)
    assert all(case.example not in case.shapes for case in cases)
    assert all(len(shape) == len(case.example) for case in cases for shape in case.shapes)


@pytest.mark.parametrize("case", [*SUITE_CASES["memory"], *SUITE_CASES["gemm"][:1], *SUITE_CASES["conv"][2:]], ids=lambda case: case.name)
def test_layers_run_on_their_example(case: Case) -> None:
    with torch.no_grad():
        first, second = (build(case)(*case.inputs(case.example)) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("case", [*SUITE_CASES["library"], SUITE_CASES["recurrent"][0]], ids=lambda case: case.name)
def test_functions_and_recurrent_layers_run_on_their_example(case: Case) -> None:
    """Of several results the first is compared, by itself and among those of a peer."""
    with torch.no_grad():
        result = build(case)(*case.inputs(case.example))
    first = result[0] if isinstance(result, tuple) else result
    assert torch.equal(first_tensor(result), first)
    assert torch.equal(peers.as_tensor(result), first.to(torch.float32) if first.is_floating_point() else first)


@pytest.mark.parametrize("case", SUITE_CASES["dynamic"][::2], ids=lambda case: case.name)
def test_models_batched_by_hand_are_the_models(case: Case) -> None:
    with torch.no_grad():
        model, inputs = build(case), case.inputs((2,))
        assert isinstance(model, Instances)
        plain = Instances.forward(model, *inputs)
        assert error_of(model.by_hand(*inputs), plain) < 1e-5
        assert matrix_flops(model, inputs) > 0


def test_a_step_of_a_batched_model() -> None:
    model, inputs = build(CASES["treelstm-256-training"]), (torch.arange(2),)
    assert isinstance(model, TrainedInstances)
    with torch.no_grad():
        loss = model(*inputs)
        assert torch.equal(loss, Instances.forward(model, *inputs).square().mean()) and not loss.requires_grad
        assert all(each.grad is not None for each in model.parameters())
        assert matrix_flops(model, inputs) == 3 * matrix_flops(Instances(model.model, parse_trees), inputs)


def test_a_training_step_makes_gradients_where_none_are_wanted() -> None:
    """In training mode whatever its user asks for, with what is dropped drawn anew; of a compiled network those of the network."""
    case = CASES["training"]
    step = build(case)
    assert isinstance(step, TrainingStep) and step.network.training
    weight = next(step.network.parameters())
    with torch.no_grad():
        losses = [step(*case.inputs(case.example)) for _ in range(2)]
        assert losses[0] != losses[1] and error_of(losses[0], losses[1]) < (case.tolerance or 0)
        first = weight.grad
        step.compile_network("eager")
        step(*case.inputs(case.example))
    assert first is not None and weight.grad is not None and weight.grad is not first
    assert not losses[0].requires_grad


@pytest.mark.parametrize(("peer", "dtype", "products"), [("eager", "bf16", "bfloat16"), ("eager", "fp32", "float32")])
def test_steps_of_training_compute_in_the_dtype_beside_weights_of_f32(peer: str, dtype: str, products: str, tmp_path: Path) -> None:
    case = CASES["training-lstm"]
    step = build(case)
    assert isinstance(step, TrainingStep)
    seen: list[torch.dtype] = []
    head = step.network.get_submodule("head")
    head.register_forward_hook(lambda _module, _inputs, output: seen.append(output.dtype))
    made = peers.build_peer(peer, peers.Workbench(case, step, 1, tmp_path, DTYPES[dtype]))
    assert isinstance(made, peers.Peer)
    made.bind(case.inputs(case.example))()
    assert seen == [getattr(torch, products)]
    assert {each.dtype for each in step.parameters()} == {torch.float32}
    assert {each.grad.dtype for each in step.parameters() if each.grad is not None} == {torch.float32}


def test_steps_of_training_are_compiled_in_the_dtype_that_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What disc's 16 bits are judged by is in f32; 8 bits and autocast of another kind take no part."""
    case = CASES["training-lstm"]
    made_in: dict[str, torch.dtype] = {}

    def made(name: str, bench: peers.Workbench, step: TrainingStep, *_: object) -> peers.Peer:
        made_in[name] = step.computed_in
        return peers.Peer(name, lambda _inputs: lambda: None, 0.0)

    monkeypatch.setattr(peers, "_trained", made)
    for name, dtype in (("disc", "bf16"), ("disc-fp32", "bf16"), ("inductor/plain", "bf16")):
        assert isinstance(peers.build_peer(name, peers.Workbench(case, build(case), 1, tmp_path, DTYPES[dtype])), peers.Peer)
    assert made_in == {"disc": torch.bfloat16, "disc-fp32": torch.float32, "inductor": torch.bfloat16}
    for name, dtype in (("disc", "int8"), ("autocast", "bf16")):
        assert isinstance(peers.build_peer(name, peers.Workbench(case, build(case), 1, tmp_path, DTYPES[dtype])), peers.Skipped)


@pytest.mark.parametrize("case", [case for case in SUITE_CASES["training"] if case.network], ids=lambda case: case.name)
def test_sizes_of_one_compile_differ_in_the_dims_that_may_change(case: Case) -> None:
    shapes = sizes_of(case)
    assert len(set(shapes)) == len(shapes) == 50 and case.example not in shapes
    kept = set(range(len(case.example))) - set(case.dynamic)
    assert all(shape[dim] == case.example[dim] for shape in shapes for dim in kept)


def test_a_report_says_what_compiling_a_step_costs() -> None:
    measured = record(2.0, 3.0)
    (result,) = cast("list[dict[str, object]]", measured["results"])
    result["compiling"] = {"seconds": {"cold": 12.34, "cached": 0.56}, "sizes": 50, "compiles": 2}
    assert "12.3 s, from the compile cache 0.6 s. Compiles for 50 other sizes: 2." in report.markdown(measured)
    result["compiling"] = {"failed": "no memory"}
    assert "could not be measured: no memory" in report.markdown(measured)


def test_random_tensors_repeat() -> None:
    assert torch.equal(random_tensor(2, 3), random_tensor(2, 3))


def test_one_slow_process_does_not_decide_about_a_shape() -> None:
    def visit(first: list[float]) -> Visit:
        return Visit(first, [2.0, 2.0], [1.0, 1.0], [2**20], 2**20, 1, 0.0)

    found = stream_summary([visit([1.0, 2.0]), visit([9.0, 2.0]), visit([1.0, 2.0])])
    assert found["quantiles"] == quantiles([1.0, 2.0])
    assert found["again"] == quantiles([0.5, 1.0])
    assert (found["first_s"], found["steady_s"], found["ratio"]) == (3.0, 2.0, 1.5)


def test_stream_shapes_differ_and_repeat() -> None:
    shapes = stream_shapes(1000)
    assert len(set(shapes)) == 1000
    assert shapes == stream_shapes(1000)


# --- report, plot, comparison ---------------------------------------------------------------------------------------------------


def test_report_has_ratios_and_the_shares_of_both_limits() -> None:
    text = report.markdown(record(4.0, 10.0))
    line = next(line for line in text.splitlines() if line.startswith("| 1x16"))
    assert [cell.strip() for cell in line.split("|")[2:9]] == ["4.00", "1%", "50%", "25%", "50%", "10.00", "2.50"]
    assert "ort was skipped: not installed" in text
    assert "read 10.0 GB/s, copy 8.0 GB/s" in text
    assert "First calls of all shapes together, recompiles included: eager 2.0 s" in text
    assert "| disc  |      50 |  500 |   510 |" in text
    assert "smoke test" not in text and "- **eager**: how eager is run" in text and "`python -m bench.run`" in text
    assert "A smoke test: busy" in report.markdown({**record(4.0, 10.0), "smoke": ["busy"]})


def test_report_without_limits() -> None:
    bare = record(4.0, 10.0)
    results = bare["results"]
    assert isinstance(results, list)
    results[0]["limits"] = results[0]["rows"][0]["bound"] = results[0]["memory"] = None
    text = report.markdown(bare)
    assert "could not be measured" in text and "2.50" in text


def test_wrong_results_have_no_ratio() -> None:
    wrong = record(4.0, 10.0, wrong=("disc",))
    assert "WRONG: disc" in report.markdown(wrong)
    results = wrong["results"]
    assert isinstance(results, list)
    assert figures.ratios(results[0], "eager") == []


def test_a_peer_that_is_missing_at_one_shape() -> None:
    results = record(4.0, 10.0)["results"]
    assert isinstance(results, list)
    other = row(5.0, 1.0)
    other["ms"] = {"disc": timing(5.0)}
    results[0]["rows"].append(other)
    assert figures.peer_names(results[0]) == ["eager"]
    assert figures.ratios(results[0], "eager") == [2.5]
    assert figures.shares(results[0], "disc") == [0.5, 0.4]
    assert figures.summary(results, ["eager"]) == (pytest.approx([2.5]), pytest.approx(math.sqrt(0.2)))


@pytest.mark.parametrize(
    "made", [record(4.0, 10.0), record(1.0, 2.0, suite="gemm"), stream_record(), compile_record()], ids=lambda r: r["suite"]
)
def test_every_suite_has_a_report_and_a_plot(made: dict[str, object], tmp_path: Path) -> None:
    made = json.loads(json.dumps(made))  # as a run gives it
    assert report.markdown(made).startswith(f"# {made['suite']}, today")
    assert comparison(made, made).count("+0.0%") == len(compared(made)) > 0
    pytest.importorskip("matplotlib")
    path = tmp_path / "plot.png"
    assert plot(made, path) is None
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_there_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "matplotlib is not installed" in (plot(record(1.0, 2.0), tmp_path / "plot.png") or "")


def test_comparison_marks_ratios_and_shares_only() -> None:
    text = comparison(record(4.0, 10.0), record(5.0, 10.0))
    marked = [line for line in text.splitlines() if "WORSE" in line]
    assert len(marked) == 2
    assert "of limit" in marked[0] and "eager ÷ disc" in marked[1]
    assert compared(record(4.0, 10.0))["bert t1 fp32 1x16 disc ms"] == 4.0
    assert compared(record(4.0, 10.0))["bert t1 fp32 disc MiB in calls"] == 510.0


# --- peers and their processes --------------------------------------------------------------------------------------------------


def test_missing_and_failing_peers_are_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(bench: peers.Workbench) -> peers.Peer:
        raise RuntimeError("no")

    failing = peers.Variant(fail, "")
    absent = peers.Variant(fail, "", ("no_such_package",))
    monkeypatch.setattr(peers, "VARIANTS", {**peers.VARIANTS, "disc": failing, "ort": absent})
    bench = peers.Workbench(TINY, nn.Identity(), 1, tmp_path)
    made = [peers.build_peer(name, bench) for name in ("eager", "disc", "ort", "onednn-packed", "autocast", "quantized")]
    assert isinstance(made[0], peers.Peer)
    reasons = [each.reason.split(":")[0] for each in made[1:] if isinstance(each, peers.Skipped)]
    assert reasons == ["RuntimeError", "not installed", "ValueError", "ValueError", "ValueError"]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("onednn-packed", "fp32"),
        ("onednn-packed", "bf16"),
        ("mkl-packed", "fp32"),
        ("eager", "bf16"),
        ("eager", "fp16"),
        ("quantized", "int8"),
    ],
)
def test_peers_of_a_linear_layer_agree(name: str, dtype: str, tmp_path: Path) -> None:
    case = CASES["linear-512x512"]
    inputs = case.inputs((7,))
    with torch.no_grad():
        expected = build(case)(*inputs)
        peer = peers.VARIANTS[name].build(peers.Workbench(case, build(case), 1, tmp_path, DTYPES[dtype]))
        error = error_of(peers.as_tensor(peer.bind(inputs)()), expected)
    assert error <= DTYPES[dtype].tolerance
    assert (error > 1e-5) == (dtype != "fp32")


def test_eager_brings_its_other_ways_in_bf16() -> None:
    job = Job("gemm", ("linear-768x768",), 1, ("eager", "ort/plain"), None, 1, "bf16")
    assert peer_names(job) == ["disc", "eager", "ort/plain", "autocast", "disc-fp32"]
    assert peer_names(dataclasses.replace(job, dtype="int8")) == ["disc", "eager", "ort/plain", "quantized", "disc-bf16"]
    assert peer_names(dataclasses.replace(job, dtype="fp32")) == ["disc", "eager", "ort/plain"]
    assert peer_names(dataclasses.replace(job, peers=())) == ["disc"]


def test_a_peer_in_its_own_process(tmp_path: Path) -> None:
    output = tmp_path / "result.npy"
    with PeerProcess("eager", {"OMP_NUM_THREADS": "1"}) as process:
        arguments = {"case": "add-one", "threads": 1, "folder": str(tmp_path)}
        with pytest.raises(PeerFailed, match="KeyError"):
            process.ask("open", peer="nobody", dtype="fp32", **arguments)
        with pytest.raises(PeerFailed, match="computes in bf16"):
            process.ask("open", peer="autocast", dtype="fp32", **arguments)
        assert process.ask("open", peer="eager", dtype="fp32", **arguments) == {"setup": 0.0}
        assert process.seconds("bind", "first", shape=[4], output=str(output)) > 0
        assert process.seconds("turn", "ms") > 0
        assert process.seconds("peak", "bytes") > 2**20
        pid = process.pid
        assert _state(pid) == "T"
    assert not Path(f"/proc/{pid}").exists()
    assert output.stat().st_size > 0


def test_a_peer_that_dies_has_a_reason() -> None:
    with PeerProcess("eager", {"OMP_NUM_THREADS": "nonsense"}) as process, pytest.raises(PeerFailed, match="ended with status 1"):
        process.ask("turn")


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


# --- the command ----------------------------------------------------------------------------------------------------------------


def test_a_peer_stands_for_its_variants_and_a_variant_for_itself() -> None:
    parse = run._parse
    assert parse(["--peers", "openvino,ort/plain"]).peers == ("openvino/pytorch", "openvino/onnx", "ort/plain")
    assert parse(["--peers", ""]).peers == ()
    assert parse([]).peers == (
        "eager", "inductor/plain", "inductor/frozen", "ort/plain", "ort/optimized", "openvino/pytorch", "openvino/onnx",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--peers", "nobody"], "unknown peers: nobody"),
        (["--peers", "ort/nothing"], "unknown peers: ort/nothing"),
        (["--dtype", "fp64"], "unknown dtypes: fp64"),
        (["--cases", "nothing"], "unknown cases: nothing"),
        (["--shapes", "1x2x3"], "shapes of bert are written as 3x17"),
    ],
)
def test_command_line_refuses_what_there_is_not(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run.main(arguments)
    assert message in capsys.readouterr().err


def test_networks_are_measured_alone_and_layers_together() -> None:
    parse = run._parse
    chosen = run.jobs(parse(["--threads", "1,2", "--cases", "bert,vit"]), "bf16", 2)
    assert [(job.cases, job.threads, job.dtype) for job in chosen] == [(("bert",), 2, "bf16"), (("vit",), 2, "bf16")]
    (layers,) = run.jobs(parse(["--suite", "gemm", "--cases", "512"]), "fp32", 1)
    assert layers.cases == ("linear-512x512", "linear-2048x512", "linear-512x2048")
    assert layers.peers == ("eager", "onednn-packed", "mkl-packed")
    networks_and_layers = run.jobs(parse(["--suite", "conv", "--cases", "resnet,depthwise"]), "fp32", 1)
    assert [job.cases for job in networks_and_layers] == [("resnet",), ("depthwise7x7-96", "depthwise3x3s2-96")]
