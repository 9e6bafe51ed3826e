"""Commands whose standard output or error goes nowhere: a full disk, a reader that has left, a closed stream; and Ctrl-C while they load."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

ROOT = Path(__file__).parents[2]
GOLDEN = sorted((ROOT / "tests" / "golden").glob("*/*.disc"))[0]
DISC = [sys.executable, "-m", "disc.cli"]


def shell(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The script in bash, with `$disc` for the command and `$1`... for the arguments."""
    environment = {**os.environ, "disc": " ".join(DISC)}
    return subprocess.run(["bash", "-c", script, "bash", *arguments], env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("arguments", ["inspect $1", "inspect $1 --json", "inspect nowhere.disc --json", "--help", "--version", "doctor"])
def test_a_full_disk_is_said_and_is_no_mistake_of_disc(arguments: str) -> None:
    done = shell(f"$disc {arguments} > /dev/full", str(GOLDEN))
    assert (done.returncode, done.stderr) == (1, "disc: standard output cannot be written: No space left on device\n")


@pytest.mark.parametrize(
    ("script", "code", "errors"),
    [
        ("$disc inspect $1 >&-", 0, ""),
        ("$disc --version >&-", 0, ""),
        ("$disc inspect nowhere.disc 2>&-", 1, ""),
        ("$disc inspect nowhere.disc 2> /dev/full", 1, ""),
        ("$disc inspect $1 --json | true; exit ${PIPESTATUS[0]}", 0, ""),
        ("$disc inspect nowhere.disc --json | true; exit ${PIPESTATUS[0]}", 1, ""),
    ],
)
def test_streams_that_nobody_reads_end_no_command(script: str, code: int, errors: str) -> None:
    done = shell(script, str(GOLDEN))
    assert (done.returncode, done.stderr) == (code, errors)


@pytest.mark.parametrize("output", ["| true", "> /dev/full", ">&-"])
def test_a_server_goes_on_without_its_output(output: str) -> None:
    """It dies of nothing but the signal that ends a server."""
    with subprocess.Popen(
        ["bash", "-c", f'"$@" {output}', "bash", *DISC, "serve", str(GOLDEN), "--port", "0", "--http-port", "0"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as running:  # fmt: skip
        assert running.stderr is not None
        log: list[str] = []
        try:
            log = [running.stderr.readline() for _ in range(2)]
            port = log[1].split('"http_port": ')[1].split(",")[0]
            time.sleep(0.5)  # it prints after it has logged
            assert urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=10).status == 200
            os.killpg(running.pid, signal.SIGTERM)
            assert '"all_answered": true' in running.stderr.read()
        except URLError as error:
            pytest.fail(f"the server has ended: {error}; {log}")
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)


def test_interrupted_while_it_loads_it_prints_no_traceback() -> None:
    for delay in (0.15, 0.3, 0.45, 0.6, 0.9):
        script = f"import sys, disc.cli.__main__ as command; print('begins', flush=True); sys.argv[1:] = ['inspect', {str(GOLDEN)!r}]; "
        script += "sys.exit(command.main())"
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            running.stdout.readline()
            time.sleep(delay)
            running.send_signal(signal.SIGINT)
            errors = running.communicate(timeout=30)[1]
        assert errors == "" and running.returncode in (-signal.SIGINT, 130, 0), errors
