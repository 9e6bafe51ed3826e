"""Options and fixtures of all tests."""

import functools
import gc
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import levels
import pytest

# Before anything loads PyTorch: its threads would spin for the next small op of a tiny model, on the core that another worker compiles on.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

_MANY = 4  # cases of a test of which `--half` leaves every other one
TURN = "DISC_TEST_TURN"  # a number: the first half has the first case where it is even, else the second one
OBJECTS = Path(__file__).resolve().parents[1] / "build" / "test_objects"  # of `_shared_objects`


def pytest_configure(config: pytest.Config) -> None:
    gc.set_threshold(200_000, 50, 50)  # what modules import is no garbage: full collections were a quarter of the time of its import
    if config.getoption("--long"):
        os.environ[levels.EVERY] = "1"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also run the tests marked `long`, which take minutes")
    parser.addoption("--half", choices=("first", "second"), help="one half of the cases of long parametrized tests; `second`: these alone")
    parser.addoption("--update-golden", action="store_true", help="write what the tests get into their golden files")


def pytest_collection_finish() -> None:
    """What is imported stays to the end: the collector need not look at it again and again (a tenth of the time of all tests was its).

    pytest listens to every logger that does not propagate, so PyTorch would write down for it each symbol and guard, with its stack.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 20)
    logging.getLogger("torch.__trace").propagate = True


def pytest_sessionfinish() -> None:
    """What was kept may go: the interpreter's exit would call it leaked, by the name of each type of MLIR's and Triton's bindings."""
    gc.unfreeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if half := config.getoption("--half"):
        _leave_half(config, items, half == "second")
    if config.getoption("--long"):
        return
    seen: Counter[str] = Counter()
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason="takes minutes: run with --long"))
        sampled = item.get_closest_marker("sampled")
        if sampled is not None and "[" in item.nodeid:
            number = seen[_test_of(item)]
            seen[_test_of(item)] += 1
            if number % sampled.args[0]:
                item.add_marker(pytest.mark.skip(reason=f"one case of {sampled.args[0]} runs: all with --long"))


def _leave_half(config: pytest.Config, items: list[pytest.Item], second: bool) -> None:
    """Leaves every other case of the tests that have many; in the first half all of the others too."""
    cases = Counter(_test_of(item) for item in items)
    turn = int(os.environ.get(TURN, "0"))
    seen: Counter[str] = Counter()
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        test = _test_of(item)
        in_second = cases[test] >= _MANY and (seen[test] + turn) % 2 == 1
        seen[test] += 1
        (kept if in_second == second else left).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)


def _test_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test sees the user's compile cache, nor fills the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISC_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("DISC_CACHE_SIZE", "200M")
        yield


@pytest.fixture(scope="session")
def _share_objects() -> Iterator[Callable[[], None]]:
    with ExitStack() as stack:

        @functools.cache
        def start() -> None:
            from shared_objects import shared_objects

            stack.enter_context(shared_objects(OBJECTS))

        yield start


@pytest.fixture(autouse=True)
def _shared_objects(_share_objects: Callable[[], None]) -> None:
    """LLVM compiles no text twice, nor what it compiled for the tests before the last change: most of the time of all tests would be its.

    It starts where something has loaded what compiles, which a session of few tests may never do.
    """
    if "disc.codegen.mlir.lower" in sys.modules:
        _share_objects()


@pytest.fixture
def every_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what differs between ISA levels: they compile for all."""
    monkeypatch.setenv(levels.EVERY, "1")


@pytest.fixture
def own_objects() -> Iterator[None]:
    """For tests of the code itself: it is cut and compiled as for a user."""
    from shared_objects import own_objects

    with own_objects():
        yield


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """torch.compile without graphs, counters and compilers of other tests, and a seed."""
    import torch

    from disc.frontend import dynamo

    torch._dynamo.reset()
    dynamo.reset_statistics()
    torch.manual_seed(0)
    yield
    dynamo.set_compiler(None)
    torch._dynamo.reset()


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """True when golden files are to be written instead of compared."""
    return bool(request.config.getoption("--update-golden"))
