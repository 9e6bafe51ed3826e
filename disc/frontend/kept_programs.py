"""Programs in the compile cache: what enters their keys, and how one is found. Nothing here loads what compiles."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from disc.artifact.cache import open_cache
from disc.config import Options
from disc.errors import TargetError, warn
from disc.frontend.user_lowerings import lowerings_digest
from disc.ral.custom_functions import registered_functions
from disc.ral.executable import Executable, describe, load
from disc.speculation.session import Session, open_session

_LOGGER = logging.getLogger("disc.cache")


def graph_facts(options: Options, targets: Sequence[str]) -> Mapping[str, str] | None:
    """What of options, targets and this process decides what `compile_graph` makes of a graph; None where it does not use the cache."""
    session = open_session(targets, options)
    return settings_of(session) if uses_cache(session) else None


def kept_graph(name: str, options: Options, targets: Sequence[str]) -> Executable | None:
    """What `compile_graph` has made and kept under the name (`Executable.entry`); None where the cache has it no more."""
    return found_program(name, open_session(targets, options))


def uses_cache(session: Session) -> bool:
    cached = session.options.cache and session.environment.cache and lowerings_digest() is not None
    return cached and session.environment.dump is None  # whoever asks for dumps wants the passes to run


def found_program(name: str, session: Session) -> Executable | None:
    """The entry of the cache, if there is one."""
    found = open_cache(session.environment).lookup(name, lambda path: _load_checked(path, session.options))
    if found is not None:
        _LOGGER.info("found in %s: %s", session.environment.cache_dir, name)
        for message in found.manifest.get("warnings", ()):
            warn(message)
        found.entry = name
    return found


def settings_of(session: Session) -> dict[str, str]:
    """What of the session enters the key."""
    settings = dataclasses.asdict(session.options)
    del settings["cache"], settings["debug_checks"], settings["graphs"]  # none of them changes the output
    custom = "\n".join([lowerings_digest() or "", *sorted(each.target for each in registered_functions().values())])
    own = {"custom": custom} if custom else {}
    return {"options": repr(settings), "targets": repr(session.targets), "schedules": session.tree.digest(), **own}


def _load_checked(path: Path, options: Options) -> Executable:
    """An entry of the cache; waits for the check of its weights, so that a damaged one is found while it can still be replaced."""
    try:
        found = load(path, threads=options.threads, graphs=options.graphs)
    except TargetError as error:  # it is code for other machines alone
        found = describe(path, reason=str(error))
    found.verify()
    return found
