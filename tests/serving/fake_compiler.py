"""In the place of the compiler in tests of the compile service: does what the program, a word, says. Needs the standard library alone."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden" / "0.1.0" / "linear.disc"


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def done() -> None:
    shutil.copyfile(GOLDEN, "model.disc")
    say(done=True)


def outcome(action) -> str:
    """The error of what is tried, or "allowed"."""
    try:
        action()
    except OSError as error:
        return error.strerror or "error"
    return "allowed"


def main(word: str, rest: list[str]) -> None:
    say(stage="compiling")
    if word == "slow":
        time.sleep(1.5)
        done()
    elif word == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1000)
    elif word == "spin":
        while True:
            pass
    elif word == "eat":
        hoard = []
        while True:
            hoard.append(b"x" * (1 << 24))
    elif word == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif word == "crash-import":
        say(stage="import", percent=0)
        os.kill(os.getpid(), signal.SIGSEGV)
    elif word == "disk":
        for index in range(1000):
            Path(f"file{index}").write_bytes(bytes(range(256)) * 4096)
        time.sleep(1000)
    elif word == "file":
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        with open("file", "wb") as file:
            while True:
                file.write(bytes(1 << 20))
    elif word == "refuse":
        say(error={"kind": "UnsupportedOpError", "message": f"{os.getcwd()}/program: 1 op of this model cannot be compiled"})
    elif word == "refuse-here":
        say(error={"kind": "UnsupportedOpError", "message": f"{sys.prefix}/lib/some.py and model.py:3: 1 op cannot be compiled"})
    elif word == "bug":
        print("Traceback: secret", file=sys.stderr)
        say(error={"kind": "CompilerBug", "message": ""})
    elif word == "half":
        Path("model.disc").write_bytes(GOLDEN.read_bytes()[:-1])
        say(done=True)
    elif word == "link":
        os.symlink(GOLDEN, "model.disc")
        say(done=True)
    elif word == "pipe":
        os.mkfifo("model.disc")
        say(done=True)
    elif word == "noise":
        while True:
            print("x" * 1000)
    elif word == "deep":
        print("[" * 100_000)
        done()
    elif word == "child":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        done()
    elif word == "reach":
        network = outcome(lambda: socket.create_connection(("127.0.0.1", int(rest[0])), timeout=2))
        files = outcome(lambda: Path("../elsewhere").write_text("x"))
        say(error={"kind": "Reached", "message": f"network: {network}; files: {files}"})
    elif word == "good":
        done()


main(*(lambda words: (words[0], words[1:]))(Path("program").read_text().split()))
