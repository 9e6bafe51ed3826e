"""What `serve.toml` may say: every mistake is named by the dotted path of its key, all of them at once."""

from __future__ import annotations

import datetime
import json
import math
import subprocess
import sys

import pytest

import docs
from disc.cli.main import main
from disc.errors import ConfigurationError
from disc.serving.settings import Metrics, ModelSettings, ServerSettings, settings_of, settings_schema

MISTAKES: list[tuple[dict[str, object], str]] = [
    ({"ports": 1}, "ports is no setting (did you mean port?); there are host, port, "),
    ({"limits": {"idle": 1}}, "limits.idle is no setting (did you mean idle_s?); there are message_bytes, "),
    ({"models": {"a": {"text": {"tokeniser": "x"}}}}, "models.a.text.tokeniser is no setting (did you mean tokenizer?); there are tokenizer, "),
    ({"tls": {"key": "k.pem"}}, "tls is not complete: certificate is missing"),
    ({"models": {"a": {"sequence": {"mask": "m"}}}}, "models.a.sequence is not complete: length is missing"),
    ({"tls": "server.pem"}, "tls must be a table, not str"),
    ({"models": 3}, "models must be a table, not int"),
    ({"models": {"a": [1]}}, "models.a must be a table, not a list"),
    ({"defaults": 3, "models": {"a": {}}}, "defaults must be a table, not int"),
    ({"defaults": {"warm_up": "x=1"}}, "defaults.warm_up must be a list, not str"),
    ({"defaults": {"warm_up": [1]}}, "defaults.warm_up.0 must be of type str, not int"),
    ({"host": {"name": "x"}}, "host must be of type str, not a table"),
    ({"port": "8001"}, "port must be of type int, not str"),
    ({"port": True}, "port must be of type int, not bool"),
    ({"port": 8001.0}, "port must be of type int, not float"),
    ({"port": datetime.date(2026, 1, 1)}, "port must be of type int, not date"),
    ({"admin": 1}, "admin must be of type bool, not int"),
    ({"admin": "yes"}, "admin must be of type bool, not str"),
    ({"port": -1}, "port must be at least 0, not -1"),
    ({"port": 70000}, "port must be at most 65535, not 70000"),
    ({"drain_delay_s": -0.5}, "drain_delay_s must be at least 0, not -0.5"),
    ({"limits": {"idle_s": 0}}, "limits.idle_s must be more than 0, not 0"),
    ({"limits": {"idle_s": math.inf}}, "limits.idle_s must be a finite number, not inf"),
    ({"limits": {"idle_s": math.nan}}, "limits.idle_s must be a finite number, not nan"),
    ({"defaults": {"concurrency": 0}}, "defaults.concurrency must be at least 1, not 0"),
    ({"models": {"a": {"sequence": {"length": "x.1", "mask": "m", "pad": {"x": "0"}}}}}, "models.a.sequence.pad.x must be of type float, not str"),
    ({"models": {"a": {"copy": "no"}}}, "models.a.copy must be one of 'when_needed', 'always' or 'never', not 'no'"),
    ({"defaults": {"text": {"tokenizer": ".."}}}, "defaults.text.tokenizer must be the name of a file in the model's folder, not '..'"),
    ({"tracing": {"endpoint": "collector:4318"}}, "tracing.endpoint must be a URL such as \"http://127.0.0.1:4318\", not 'collector:4318'"),
    ({"defaults": {"threads": 2000}}, "defaults.threads must be at most 1024, not 2000"),
    ({"limits": {"held_bytes": 1}}, "limits.held_bytes must not be less than limits.message_bytes"),
    ({"models": {"a": {"priority_levels": 3}}}, "models.a.default_priority, 5, must not be more than priority_levels, 3"),
]  # fmt: skip


def refused(tables: dict[str, object]) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        settings_of(tables)
    return str(caught.value).splitlines()


@pytest.mark.parametrize(("tables", "says"), MISTAKES, ids=[says[:40] for _, says in MISTAKES])
def test_a_mistake_is_named(tables: dict[str, object], says: str) -> None:
    (line,) = refused(tables)
    assert line.startswith(says)


def test_all_mistakes_are_named_at_once() -> None:
    assert refused({"port": "a", "limits": {"requests": 0, "inputs": 1.5}, "tls": {}}) == [
        "port must be of type int, not str",
        "limits.inputs must be of type int, not float",
        "limits.requests must be at least 1, not 0",
        "tls is not complete: certificate is missing",
        "tls is not complete: key is missing",
    ]


def test_a_mistake_in_the_defaults_is_not_one_of_each_model() -> None:
    wrong: dict[str, object] = {"defaults": {"copy": "no", "versions": 0}, "models": {"a": {}, "b": {"max_batch": 0, "versions": 0}}}
    assert [line.split(" must")[0] for line in refused(wrong)] == [
        "defaults.versions",
        "defaults.copy",
        "models.b.max_batch",
        "models.b.versions",
    ]


def test_a_model_starts_from_the_defaults() -> None:
    defaults = {"max_batch": 8, "text": {"max_texts": 3}}
    settings = settings_of({"defaults": defaults, "models": {"a": {"max_batch": 4}, "b": {"text": {"truncate": True}}}})
    a, b = settings.for_model("a"), settings.for_model("b")
    assert (a.max_batch, b.max_batch, settings.for_model("c").max_batch) == (4, 8, 8)
    assert a.text is not None and a.text.max_texts == 3
    assert b.text is not None and (b.text.max_texts, b.text.truncate) == (256, True), "a table within is taken whole"
    assert settings_of({"models": {"a": {}}}).models == {"a": ModelSettings()}


def test_a_whole_number_is_a_float() -> None:
    delay = settings_of({"drain_delay_s": 5}).drain_delay_s
    assert delay == 5.0 and isinstance(delay, float)


def test_settings_made_from_python_keep_what_spans_several() -> None:
    with pytest.raises(ConfigurationError, match=r"metrics\.port needs HTTP"):
        ServerSettings(http_port=None, metrics=Metrics(port=0))


def test_the_command_prints_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--schema"]) == 0
    assert capsys.readouterr().out == docs.schema_file()


def test_the_schema_has_no_null() -> None:
    """TOML has none."""
    assert "null" not in json.dumps(settings_schema())


def test_artifacts_run_without_pydantic() -> None:
    code = "import sys; sys.modules['pydantic'] = None; sys.modules['pydantic_core'] = None; import disc; disc.load; import disc.ral.executable"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
