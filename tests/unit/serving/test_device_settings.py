"""Where the models of a server run."""

from __future__ import annotations

import pytest

from disc.errors import ConfigurationError, TargetError
from disc.serving.settings import settings_of


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ({"models": {"a": {"device": "gpu"}}}, "models.a.device must be cpu, cuda, or cuda:N for one of several GPUs, not 'gpu'"),
        ({"defaults": {"device": "cpu:1"}}, "defaults.device must be cpu, cuda, or cuda:N for one of several GPUs, not 'cpu:1'"),
        ({"defaults": {"graphs": 1 << 17}}, "defaults.graphs must be at most 65536, not 131072"),
    ],
)
def test_a_mistake_is_named(tables: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        settings_of(tables)
    assert str(caught.value) == says


def test_the_options_of_the_command_hold_for_every_model() -> None:
    settings = settings_of({"defaults": {"graphs": 3}, "models": {"a": {"device": "cpu", "max_batch": 4}}}).for_all_models("cuda:1", None)
    a, other = settings.for_model("a"), settings.for_model("b")
    assert [(each.device, each.graphs, each.max_batch) for each in (a, other)] == [("cuda:1", 3, 4), ("cuda:1", 3, 32)]
    with pytest.raises(TargetError, match="device gpu: there are cpu, cuda, and cuda:N"):
        settings.for_all_models("gpu", None)
