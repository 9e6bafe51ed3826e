"""The code blocks of the documents but README: each runs, in the order of its page, or is run by another test, or says why it is not."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from commands import shell

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix() for path in (ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/*.md"))
)
ELSEWHERE = {  # page → the test that runs its blocks
    "docs/architecture.md": "tests/unit/test_worked_example.py",
    "docs/commands.md": "tests/e2e/test_readme.py",
    "docs/custom-ops.md": "tests/diff/test_custom_ops.py",
    "docs/tutorials.md": "tests/e2e/test_readme.py",
    "examples/cpp/README.md": "tests/e2e/test_cpp_example.py",
    "examples/embedding_server/README.md": "tests/e2e/test_examples.py",
    "examples/image_server/README.md": "tests/e2e/test_examples.py",
    "examples/sentence_pipeline/README.md": "tests/e2e/test_examples.py",
}
NOT_RUN = {  # page → the first words of a block → why
    "CONTRIBUTING.md": {
        ". tools/setup.sh": "makes the environment that this runs in",
        "bash tools/test.sh": "runs this test",
        "python -m bench.run --suite models": "measures for an hour; tests/unit/test_bench.py runs its parts",
    },
    "docs/batched.md": {
        "import tritonclient.grpc": "tests/serving/test_foreign_clients.py runs it, in an environment with Triton's client",
    },
    "docs/deployment.md": {
        "import numpy as np\nimport tritonclient": "tests/serving/test_foreign_clients.py asks so, in an environment with Triton's client",
        "pip install": "changes the environment; tests/unit/test_installation.py builds and installs the wheel",
        "cp new.disc": "tests/serving/test_served_files.py replaces models so",
        "pip wheel": "needs docker; tests/serving/test_deploy.py checks the files that it names",
        "kubectl apply": "needs a cluster; tests/serving/test_deploy.py checks the files that it names",
        "disc ray serve": "needs a cluster; tests/serving/test_ray_cluster.py runs one",
        "OTEL_EXPORTER": "needs a collector; tests/serving/test_tracing.py is one",
    },
}
LANGUAGES = ("python", "bash")


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of each block that is code to run."""
    found = re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S)
    return [(language, text) for language, text in found if language in LANGUAGES]


def is_run(page: str, text: str) -> bool:
    return page not in ELSEWHERE and not any(text.startswith(start) for start in NOT_RUN.get(page, {}))


@pytest.mark.parametrize("page", [page for page in PAGES if any(is_run(page, text) for _, text in blocks(page))])
def test_blocks_run_in_order(page: str, tmp_path: Path) -> None:
    for name in ("tools", "tests", "disc"):
        (tmp_path / name).symlink_to(ROOT / name)
    script = ""
    for language, text in blocks(page):
        if not is_run(page, text):
            continue
        if language == "bash":
            done = shell(tmp_path, text)
            assert done.returncode == 0, f"{page}\n{text}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        else:
            script += text
    if script:
        (tmp_path / "page.py").write_text(script)
        done = shell(tmp_path, f"{sys.executable} page.py")
        assert done.returncode == 0, f"{page}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        assert "leaked" not in done.stderr


@pytest.mark.parametrize("page", ELSEWHERE)
def test_the_other_test_reads_the_page(page: str) -> None:
    assert blocks(page)
    text = (ROOT / ELSEWHERE[page]).read_text()
    assert Path(page).name in text, f"{ELSEWHERE[page]} does not name {page}"


def test_what_is_not_run_is_there() -> None:
    for page, starts in NOT_RUN.items():
        for start in starts:
            assert any(text.startswith(start) for _, text in blocks(page)), f"{page}: {start}"
