"""Folders of models: versions, loading and unloading under load, memory, administration."""

from __future__ import annotations

import gc
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from oip_client import Client, failure, serving, write_add, write_twice

from disc.artifact.manifest import Manifest
from disc.errors import ConfigurationError, DiscError, OverloadedError
from disc.serving.repository import Repository
from disc.serving.settings import settings_of

X = np.ones((2, 3), np.float32)


def place(root: Path, name: str, version: int, ms: int = 0) -> Path:
    """Puts a version of `twice` into the folder, by rename as a careful operator does."""
    path = root / name / str(version) / "model.disc"
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = root / f".new-{name}-{version}"
    write_twice(fresh, ms)
    fresh.rename(path)
    return path


def states(client: Client) -> dict[str, str]:
    return {f"{each.name}:{each.version}": each.state for each in client.call("RepositoryIndex").models}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    place(tmp_path, "twice", 1)
    return tmp_path


def test_the_newest_version_answers_unless_one_is_named(root: Path) -> None:
    place(root, "twice", 9)
    place(root, "twice", 10)
    for odd in ("01", "x", "0", "-1", "٣"):
        (root / "twice" / odd).mkdir()
        shutil.copy(root / "twice/1/model.disc", root / "twice" / odd / "model.disc")
    with serving(root, admin=True, models={"twice": {"versions": 2}}) as client:
        assert states(client) == {"twice:1": "UNAVAILABLE", "twice:9": "READY", "twice:10": "READY"}
        assert client.call("ModelMetadata", name="twice").versions == ["9", "10"]
        inputs = [{"name": "x", "datatype": "FP32", "shape": [2, 3]}]
        for asked, answered in (("", "10"), ("9", "9"), ("10", "10")):
            answer = client.call("ModelInfer", model_name="twice", model_version=asked, inputs=inputs, raw_input_contents=[X.tobytes()])
            assert answer.model_version == answered
        assert failure(lambda: client.call("ModelReady", name="twice", version="3"))[0] == "NOT_FOUND"


def test_load_and_unload(root: Path) -> None:
    with serving(root, admin=True) as client:
        place(root, "other", 1)
        assert failure(lambda: client.infer("other", x=X))[0] == "NOT_FOUND"
        client.call("RepositoryModelLoad", model_name="other")
        np.testing.assert_array_equal(client.infer("other", x=X)["y"], 2 * X)
        client.call("RepositoryModelUnload", model_name="other")
        assert failure(lambda: client.infer("other", x=X))[0] == "UNAVAILABLE"
        assert not client.call("ModelReady", name="other").ready
        assert states(client) == {"other:1": "UNAVAILABLE", "twice:1": "READY"}
        assert [each.name for each in client.call("RepositoryIndex", ready=True).models] == ["twice"]
        client.call("RepositoryModelLoad", model_name="other")
        np.testing.assert_array_equal(client.infer("other", x=X)["y"], 2 * X)


@pytest.mark.parametrize("name", ["nobody", "", "../twice", "twice/1", ".", "/etc"])
def test_only_models_of_the_folder_can_be_loaded(root: Path, name: str) -> None:
    with serving(root, admin=True) as client:
        for method in ("RepositoryModelLoad", "RepositoryModelUnload"):
            assert failure(lambda method=method: client.call(method, model_name=name))[0] == "NOT_FOUND"
        np.testing.assert_array_equal(client.infer("twice", x=X)["y"], 2 * X)


def test_a_failed_load_keeps_what_answers(root: Path) -> None:
    with serving(root, admin=True) as client:
        damaged = place(root, "twice", 2)
        content = bytearray(damaged.read_bytes())
        content[len(content) // 2] ^= 1
        damaged.write_bytes(content)
        code, text = failure(lambda: client.call("RepositoryModelLoad", model_name="twice"))
        assert code == "UNAVAILABLE" and "ArtifactError" in text and str(root) not in text
        np.testing.assert_array_equal(client.infer("twice", x=X)["y"], 2 * X)
        assert {each.version: each.reason for each in client.call("RepositoryIndex").models} == {"1": "", "2": "ArtifactError"}
        place(root, "twice", 2)
        client.call("RepositoryModelLoad", model_name="twice")
        assert states(client) == {"twice:1": "UNAVAILABLE", "twice:2": "READY"}


def test_swapping_versions_under_load_loses_no_request(root: Path) -> None:
    with serving(root, admin=True) as client:
        errors: list[object] = []
        counts = [0]
        stop = threading.Event()

        def ask() -> None:
            while not stop.is_set():
                try:
                    np.testing.assert_array_equal(client.infer("twice", x=X)["y"], 2 * X)
                    counts[0] += 1
                except Exception as error:
                    errors.append(error)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for version in range(2, 12):
            place(root, "twice", version, ms=version % 3)
            client.call("RepositoryModelLoad", model_name="twice")
            shutil.rmtree(root / "twice" / str(version - 1))
        stop.set()
        for thread in threads:
            thread.join()
        assert not errors and counts[0] > 20
        assert client.call("ModelMetadata", name="twice").versions == ["11"]


def test_several_files(root: Path) -> None:
    place(root, "second", 1)
    first, second = root / "twice.disc", root / "second.disc"
    shutil.copy(root / "twice/1/model.disc", first)
    shutil.copy(root / "second/1/model.disc", second)
    repository = Repository([first, second], settings_of({}))
    repository.load_all()
    assert [model.name for model in repository.models()] == ["second", "twice"]
    with pytest.raises(ConfigurationError, match="second is a folder: give one folder of models, or files alone"):
        Repository([first, root / "second"], settings_of({}))
    with pytest.raises(ConfigurationError, match=r"twice.disc and .*/twice.disc would both be the model 'twice': rename one"):
        Repository([first, root / "second" / "twice.disc"], settings_of({}))


def test_a_file_that_has_not_changed_is_not_loaded_again(root: Path) -> None:
    repository = Repository(root, settings_of({}))
    repository.load_all()
    first = repository.find("twice")
    repository.load("twice")
    assert repository.find("twice") is first
    place(root, "twice", 1)
    repository.load("twice")
    assert repository.find("twice") is not first


def test_models_are_loaded_within_the_memory_budget(root: Path) -> None:
    size = (root / "twice/1/model.disc").stat().st_size
    repository = Repository(root, settings_of({"memory_bytes": size * 2 + 100}))
    place(root, "second", 1)
    place(root, "third", 1)
    repository.load("twice")
    repository.load("second")
    with pytest.raises(OverloadedError, match="model 'third' needs"):
        repository.load("third")
    repository.unload("second")
    repository.load("third")
    assert [model.name for model in repository.models()] == ["third", "twice"]


def test_a_model_that_cannot_be_loaded_leaves_the_others(root: Path) -> None:
    place(root, "broken", 1).write_bytes(b"nothing")
    with serving(root, admin=True) as client:
        assert states(client) == {"broken:1": "UNAVAILABLE", "twice:1": "READY"}
        assert failure(lambda: client.infer("broken", x=X))[0] == "UNAVAILABLE"


CONTRADICTIONS: dict[str, Callable[[Manifest], object]] = {
    "no such axis": lambda made: made.update(batch={"symbol": "S0", "inputs": [2], "outputs": [0]}),
    "a negative axis": lambda made: made.update(batch={"symbol": "S0", "inputs": [-1], "outputs": [0]}),
    "too many axes": lambda made: made.update(batch={"symbol": "S0", "inputs": [0, 0], "outputs": [0]}),
    "no such symbol": lambda made: made.update(batch={"symbol": "S9", "inputs": [0], "outputs": [0]}),
    "a dim that is no expression": lambda made: made["outputs"][0].update(dims=["S0", "1 +"]),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_a_manifest_that_contradicts_itself_is_refused_and_the_others_are_served(root: Path, case: str) -> None:
    (root / "odd" / "1").mkdir(parents=True)
    write_twice(root / "odd" / "1" / "model.disc", change=CONTRADICTIONS[case])
    with serving(root, admin=True) as client:
        assert states(client) == {"odd:1": "UNAVAILABLE", "twice:1": "READY"}
        assert failure(lambda: client.call("RepositoryModelLoad", model_name="odd"))[1].count("ArtifactError") == 1


def test_many_loads_and_unloads_leave_no_memory_behind(root: Path) -> None:
    """`python -m bench.serving reload` runs a thousand cycles."""
    repository = Repository(root, settings_of({}))
    for _ in range(40):
        repository.load("twice")
        repository.unload("twice")
    gc.collect()
    before = resident()
    for _ in range(150):
        repository.load("twice")
        repository.find("twice").executable(X)
        repository.unload("twice")
    assert resident() - before < 4 << 20


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_warm_up_and_its_mistakes(root: Path) -> None:
    repository = Repository(root, settings_of({"models": {"twice": {"warm_up": ["x=2x3", "x=1x1"]}}}))
    repository.load("twice")
    assert repository.find("twice").executable.stats()["calls"] == 2
    for text in ("x=axb", "y=1x1", ""):
        wrong = Repository(root, settings_of({"models": {"twice": {"warm_up": [text]}}}))
        with pytest.raises(DiscError, match="could not be loaded"):
            wrong.load("twice")


def test_parameters_of_administration(root: Path) -> None:
    from disc.serving.messages import message

    value = message("inference.ModelRepositoryParameter")(string_param="{}")
    with serving(root, admin=True) as client:
        assert failure(lambda: client.call("RepositoryModelLoad", model_name="twice", parameters={"config": value}))[0] == "UNIMPLEMENTED"
        assert failure(lambda: client.call("RepositoryModelUnload", model_name="twice", parameters={"x": value}))[0] == "INVALID_ARGUMENT"
        assert failure(lambda: client.call("RepositoryIndex", repository_name="other"))[0] == "NOT_FOUND"


def test_several_models_in_one_server(root: Path) -> None:
    (root / "add" / "1").mkdir(parents=True)
    write_add(root / "add" / "1" / "model.disc")
    with serving(root) as client:
        a = np.ones((2, 4), np.float32)
        np.testing.assert_array_equal(client.infer("add", a=a, b=a)["c"], 2 * a + 1.5)
        np.testing.assert_array_equal(client.infer("twice", x=X)["y"], 2 * X)
        assert len(client.call("ModelStatistics").model_stats) == 2
