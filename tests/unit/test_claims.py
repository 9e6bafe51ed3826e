"""What docs/answers.md and docs/compared.md claim: each row is held by tests that are there, or says that nothing of it can be run; each
command in a document is one that the command line takes."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from disc.cli.main import app

ROOT = Path(__file__).parents[2]
COMMAND: Any = typer.main.get_command(app)
# Frictions by number → the tests that hold what is said of them.
ANSWERS: dict[str, str] = {
    "1": "errors/test_export_errors.py::test_one_tensor_is_one_input",
    "2": "unit/test_installation.py::test_nothing_tells_people_to_install_from_the_index",
    "3": "e2e/test_torch_compile_transformers.py::test_generate",
    "4": "diff/test_channels_last.py::test_images diff/test_channels_last.py::test_dense",
    "5": "serving/test_readiness.py::test_what_cannot_be_served_is_said_and_ends_the_command serving/test_readiness.py::test_failed_models_may_be_left_out",
    "6": "errors/test_export_errors.py::test_a_model_in_training_mode_says_so",
    "7": "errors/test_export_errors.py::test_models errors/test_export_errors.py::test_examples",
    "8": "errors/test_export_errors.py::test_dynamic_shapes",
    "9": "e2e/test_results.py::test_outputs_of_transformers e2e/test_results.py::test_names",
    "10": "e2e/test_readme.py::test_every_block_runs_in_order",
    "11": "unit/test_installation.py::test_the_wheel_with_numpy_alone",
    "12": "unit/frontend/test_frontend_dynamo.py::test_options_that_are_not_there_are_refused errors/test_warning_places.py::test_the_users_line_is_named",
    "13": "unit/frontend/test_frontend_dynamo.py::test_one_graph_serves_every_batch_from_two_on",
    "14": "e2e/test_caches.py::test_any_batch_length_and_past",
    "15": "diff/test_state.py::test_buffers_are_kept_from_call_to_call diff/test_state.py::test_caches_are_written_in_place",
    "16": "errors/test_typical_mistakes.py::test_what_a_typical_mistake_is_told ral/test_call.py::test_it_is_neither_pickled_nor_copied",
    "17": "errors/test_export_errors.py::test_another_value_is_refused_by_name errors/test_export_errors.py::test_fixed_values_are_in_the_artifact",
    "18": "errors/test_index_bounds.py::test_the_inputs_that_hold_indices_are_named e2e/test_source_paths.py::test_artifacts_hold_no_folder_of_the_machine",
    "19": "unit/test_installation.py::test_people_get_ranges_and_the_tests_what_was_tested",
    "20": "",
    "21": "e2e/test_debug.py::test_what_an_internal_error_leaves e2e/test_debug.py::test_replay_says_whether_it_fails_still",
    "22": "unit/ir/test_progress.py::test_the_command_prints_every_step_once e2e/test_observing.py::test_loggers",
    "23": "errors/test_warning_places.py::test_the_users_line_is_named",
    "24": "unit/test_installation.py::test_repr_of_an_executable e2e/test_results.py::test_names",
    "25": "e2e/test_calls_as_people_write_them.py::test_a_mapping_is_a_call_by_name e2e/test_calls_as_people_write_them.py::test_cast_widens_what_stays_exact",
    "26": "ral/test_call.py::test_gradients_are_not_tracked",
    "27": "e2e/test_cli.py::test_cache_commands",
    "28": "unit/test_installation.py::test_version unit/test_installation.py::test_short_help unit/test_installation.py::test_as_a_module",
    "29": "e2e/test_cli.py::test_run_prints_six_digits",
    "30": "unit/explain/test_sweep.py::test_explain_measures_several_calls",
    "31": "e2e/test_cli.py::test_compile_amp_is_the_option_dtype",
    "32": "serving/test_readiness.py::test_what_cannot_be_served_is_said_and_ends_the_command",
    "33": "serving/test_http_form.py::test_what_there_is",
    "34": "serving/test_operations.py::test_numbers_have_all_their_digits",
    "35": "diff/test_packed.py::test_pooling serving/test_compiled_models.py::test_packed_sentence_embeddings",
    "36": "diff/test_recurrent.py::test_recurrent_layers_of_all_kinds_take_any_batch_and_length",
    "37": "e2e/test_cli_help.py::test_the_command_line_takes_every_example",
    "38": "errors/test_cli_errors.py::test_mistake",
    "39": "unit/serving/test_logs.py::test_a_line_has_its_time_in_words serving/test_operations.py::test_request_log",
    "40": "test_version.py::test_dir_shows_what_users_call",
}
# Rows by their first words → the tests that hold them; "" where there is nothing to run: what disc does not do, and where else to look.
COMPARED: dict[str, str] = {
    "one artifact for all shapes": "e2e/test_models.py::test_one_compile_serves_every_shape",
    "an artifact that runs without the framework": "unit/test_installation.py::test_the_wheel_with_numpy_alone e2e/test_cpp_example.py::test_it_gives_what_python_gives",
    "ONNX, `.pt2`": "diff/test_onnx_models.py::test_model diff/test_jax.py::test_one_compile_gives_what_jax_gives e2e/test_cli.py::test_compile_pt2_warns",
    "Hugging Face": "e2e/test_hf.py::test_a_pipeline_cannot_tell e2e/test_sentences.py::test_embeddings_are_those_of_eager serving/test_text.py::test_labels_and_vectors",
    "`generate`": "e2e/test_hf.py::test_generation_is_that_of_the_model e2e/test_torch_compile_transformers.py::test_generate",
    "keys and values kept": "diff/test_state.py::test_caches_are_written_in_place diff/test_state.py::test_a_server_refuses_what_keeps_state",
    "a cache object": "e2e/test_caches.py::test_the_ways_to_give_one e2e/test_caches.py::test_requests_with_caches_may_be_joined",
    "caches of other kinds": "e2e/test_hf.py::test_generation_that_does_not_go e2e/test_caches.py::test_sliding_windows_over_a_cache_of_all_tokens",
    "top-k, sort, sampling": "operators/test_operators.py::test_rows_end_as_recorded e2e/test_hf.py::test_generation_is_that_of_the_model",
    "LSTM, GRU": "diff/test_recurrent.py::test_recurrent_layers_of_all_kinds_take_any_batch_and_length",
    "control flow on values": "diff/test_torch_control_flow.py::test_control_flow_agrees_with_eager errors/test_export_errors.py::test_models",
    "ops without a lowering": "unit/frontend/test_frontend_dynamo.py::test_unsupported_op_runs_in_pytorch diff/test_custom_ops.py::test_one_launch_each_of_the_op_itself",
    "gradients": "unit/frontend/test_frontend_dynamo.py::test_training_gives_the_gradients_of_pytorch ral/test_call.py::test_gradients_are_not_tracked",
    "bf16, f16, int8": "diff/test_reduced_precision.py::test_models_in_mixed_precision diff/test_int8.py::test_models",
    "models that were quantized elsewhere": "unit/frontend/test_onnx.py::test_operators_of_onnx_runtime errors/test_export_errors.py::test_models",
    "int4 weights": "",
    "weights apart": "",
    "new weights, LoRA": "unit/frontend/test_frontend_dynamo.py::test_training_gives_the_gradients_of_pytorch",
    "arm64": "",
    "names, types and shapes": "e2e/test_results.py::test_names",
    "`exe(tokenizer(...))`": "e2e/test_calls_as_people_write_them.py::test_a_mapping_is_a_call_by_name",
    "int32 ids": "e2e/test_calls_as_people_write_them.py::test_cast_widens_what_stays_exact",
    "`.to()`": "errors/test_typical_mistakes.py::test_what_a_typical_mistake_is_told",
    "pickle": "ral/test_call.py::test_it_is_neither_pickled_nor_copied",
    "nested arguments": "e2e/test_results.py::test_what_is_nested_stays_so",
    "bf16 of NumPy arrays": "ral/test_call.py::test_every_dtype_goes_through",
    "several threads": "diff/test_calls.py::test_one_executable_in_many_threads",
    "the command as a module": "unit/test_installation.py::test_as_a_module e2e/test_cli.py::test_the_help_is_in_groups_and_shells_complete",
    "a benchmark with parallel callers": "e2e/test_bench_command.py::test_against_others e2e/test_bench_command.py::test_callers_and_results_that_differ",
    "a profile per op": "unit/explain/test_explain.py::test_timeline e2e/test_observing.py::test_kernels_are_ranges_within_their_call",
    "a viewer of the model": "unit/explain/test_sweep.py::test_the_graph_for_model_explorer",
    "logs, dumps": "e2e/test_observing.py::test_the_module_and_the_report_are_among_the_artifacts_of_torch_trace e2e/test_debug.py::test_reduce_needs_nothing_but_a_report",
    "why a kernel is as fast": "unit/explain/test_explain.py::test_with_inputs",
    "`disc doctor`": "e2e/test_cli.py::test_doctor",
    "the command after a plain installation": "unit/test_installation.py::test_the_wheel_with_numpy_alone",
    "packages on PyPI": "unit/test_installation.py::test_nothing_tells_people_to_install_from_the_index",
    "a wheel for any Linux": "unit/test_installation.py::test_wheels_that_fit_this_machine_alone",
    "documentation as a site": "unit/test_docs_site.py::test_the_site_builds_without_the_network",
    "Open Inference Protocol": "serving/test_inference_protocol.py::test_raw_contents_of_every_type_and_shape serving/test_http_form.py::test_inference_in_json",
    "dynamic batching": "serving/test_compiled_models.py::test_joined_requests_agree_with_eager serving/test_compiled_models.py::test_packed_requests_need_no_padding",
    "packed batches": "serving/test_compiled_models.py::test_packed_sentence_embeddings diff/test_packed.py::test_refusals_name_the_op",
    "tokenizers in the server": "serving/test_text.py::test_labels_and_vectors",
    "ensembles": "",
    "token streams": "",
    "response cache": "",
    "a model analyzer": "",
    "metrics": "serving/test_operations.py::test_metrics_on_their_own_port serving/test_operations.py::test_every_metric_of_the_dashboard_exists",
    "log levels": "serving/test_operations.py::test_request_log",
    "OpenAPI": "serving/test_operations.py::test_answers_are_as_described serving/test_status_page.py::test_the_page_shows_each_model_and_what_it_did",
    "readiness": "serving/test_readiness.py::test_what_cannot_be_served_is_said_and_ends_the_command",
    "signed, hashed files": "unit/artifact/test_signing.py::test_a_signed_artifact_loads_and_is_else_the_same",
}
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]


def rows(page: str) -> list[list[str]]:
    """Cells of each row of the tables of a page, without their heads."""
    found: list[list[str]] = []
    head = True
    for line in (ROOT / "docs" / page).read_text().splitlines():
        if not line.startswith("|"):
            head = True
        elif line.startswith("|---"):
            head = False
        elif not head:
            found.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return found


@cache
def named_in(file: str) -> set[str]:
    return {each.name for each in ast.walk(ast.parse((ROOT / "tests" / file).read_text())) if isinstance(each, ast.FunctionDef)}


def missing(held: str) -> list[str]:
    return [each for each in held.split() if each.partition("::")[2] not in named_in(each.partition("::")[0])]


def test_every_friction_is_answered_and_held() -> None:
    frictions = [row for row in rows("answers.md") if row[0].isdecimal()]
    assert [row[0] for row in frictions] == list(ANSWERS) == [str(number) for number in range(1, 41)]
    assert {row[2] for row in frictions} == {"done", "answered"} and all(row[3] for row in frictions)
    assert all(ANSWERS[row[0]] for row in frictions if row[2] == "done")
    assert not [each for held in ANSWERS.values() for each in missing(held)]


def test_every_row_of_the_comparison_is_held() -> None:
    found: dict[str, str] = {}
    for what, state, where in rows("compared.md"):
        (start,) = [each for each in COMPARED if what.startswith(each)]
        found[start] = state
        assert state in ("yes", "no", "in part", "on request") and where, what
        assert state == "no" or COMPARED[start], f"{what}: no test"
    assert list(found) == list(COMPARED)
    assert not [each for held in COMPARED.values() for each in missing(held)]


def test_what_is_not_held_is_found() -> None:
    assert missing("unit/test_claims.py::test_every_friction_is_answered_and_held unit/test_claims.py::no_such_test")


# --- commands in documents ------------------------------------------------------------------------------------------------------


def commands(page: Path) -> Iterator[list[str]]:
    """Words of each command `disc ...`, between backticks or on a line of a block, up to what a shell does with it."""
    text = page.read_text()
    spans = [match[1] for match in re.finditer(r"(?<!`)`(disc [^`\n]+)`(?!`)", text)]
    lines = [
        line
        for block in re.findall(r"^```bash\n(.*?)^```$", text, re.M | re.S)
        for line in re.findall(r"(?:^|exec )(disc .+)$", block, re.M)
    ]
    for line in (*spans, *lines):
        if not re.match(r"disc [a-z-]", line) or line.startswith("disc artifact,"):
            continue
        words = shlex.split(re.split(r" #| [&<>]| \\?\| |\)|\\$", line)[0], posix=True)
        yield words[1:]


def wrong_words(words: list[str]) -> list[str]:
    """Of a command line: what is no command and no option of it."""
    command: Any = COMMAND
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        names = words[0].split("|")
        if any(name not in command.commands for name in names):
            return [words[0]]
        command, words = command.commands[names[0]], words[1:]
    known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | {"--help", "-h"}
    return [word for word in words if word.startswith("-") and word.partition("=")[0] not in known]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_those_of_the_command_line(page: Path) -> None:
    wrong = {" ".join(words): said for words in commands(page) if (said := wrong_words(words))}
    assert not wrong


def test_what_is_no_command_is_found() -> None:
    assert sum(1 for page in PAGES for _ in commands(page)) > 80
    assert wrong_words(["fly"]) == ["fly"] and wrong_words(["run", "a.disc", "--wings=2"]) == ["--wings=2"]
    assert not wrong_words(["ray", "serve|tune"]) and not wrong_words(["--version"])
