"""Options and fixtures of all tests."""

import os
from collections.abc import Iterator

import pytest

# Before anything loads PyTorch: its threads would spin for the next small op of a tiny model, on the core that another worker compiles on.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also run the tests marked `long`, which take minutes")
    parser.addoption("--update-golden", action="store_true", help="write what the tests get into their golden files")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long"):
        return
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason="takes minutes: run with --long"))


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test sees the user's compile cache, nor fills the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISC_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("DISC_CACHE_SIZE", "200M")
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
