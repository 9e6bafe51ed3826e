"""One job of the compile service, in a process of its own: `python -m disc.serving.compile_service.job` in the job's folder.

Reads `job.json` (the fields of `Request`), `program` and `weights`; writes `model.disc`. Standard output gets one JSON object per line:
{"stage": ..., "percent": ...} as it goes on, then {"done": true} or {"error": {"kind": ..., "message": ...}}. The process is confined by
`serving.sandbox`.
"""

from __future__ import annotations

import errno
import json
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from disc.config import Options
from disc.errors import CompilerBug, DiscError, UnsupportedFormatError

if TYPE_CHECKING:
    from disc.ral.executable import Executable

LIMIT = "limit"  # the kind of an error for which the service has too little memory or disk


@dataclass(frozen=True)
class Request:
    """format: "stablehlo" or "imported". targets: ISA names. single: of `read_portable`. threads: per call, None for the default. The
    others: of `disc.Options`."""

    format: str
    targets: list[str]
    dtype: str
    threads: int | None
    single: bool
    embed_stablehlo: bool


def main() -> int:
    try:
        _compile(Request(**json.loads(Path("job.json").read_text()))).save("model.disc")
        _say(done=True)
    except MemoryError:
        _fail(LIMIT, "memory")
    except CompilerBug as error:
        print(error, file=sys.stderr)
        _fail("CompilerBug", "")
    except DiscError as error:
        _fail(type(error).__name__, str(error))
    except OSError as error:
        traceback.print_exc()
        full = error.errno in (errno.EFBIG, errno.ENOSPC, errno.EDQUOT)
        _fail(LIMIT if full else type(error).__name__, "disk" if full else "")
    except Exception as error:
        traceback.print_exc()
        _fail(type(error).__name__, "")
    return 0


def _compile(request: Request) -> Executable:
    _say(stage="starting", percent=0)
    from disc import api
    from disc.ir.dialect import make_context
    from disc.speculation.session import open_session

    options = Options(threads=request.threads, dtype=request.dtype, cache=False, embed_stablehlo=request.embed_stablehlo)
    session = open_session(request.targets, options)
    if request.format == "stablehlo":
        # The front end chooses by the suffix; it distinguishes text from bytecode itself.
        return api.compile_program(Path("program").rename("program.mlirbc"), session, _step)
    if request.format != "imported":
        raise UnsupportedFormatError(f"there is no format {request.format!r}")
    from disc.frontend.portable import read_portable

    _say(stage="import", percent=0)
    program, weights = Path("program").read_bytes(), Path("weights").read_bytes()
    imported = read_portable(program, weights, single=request.single, context=make_context())
    return api.compile_imported(imported, session, on_step=_step)


def _step(name: str, share: float) -> None:
    _say(stage=name, percent=round(100 * share))


def _fail(kind: str, message: str) -> None:
    _say(error={"kind": kind, "message": message})


def _say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    sys.exit(main())
