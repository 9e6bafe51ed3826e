"""Looks after the files of the models that are served."""

from __future__ import annotations

import threading
import time
import weakref

from disc.errors import DiscError
from disc.serving.logs import log
from disc.serving.model import LoadedModel
from disc.serving.repository import Repository

LEASE_S = 0.1  # how long a writer waits before anything happens
LOOK_S = 1.0  # how often paths are looked at
CALLS_S = 40.0  # how long calls of a model that could not be copied are waited for; the kernel waits for 45 s


class ArtifactWatch:
    """A thread that checks whether another process is about to write to a model's file, and whether the file was replaced."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._stopped = threading.Event()
        self._moving: set[int] = set()
        self._thread = threading.Thread(target=self._watch, name="disc-artifacts", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        looked = 0.0
        while not self._stopped.wait(LEASE_S):
            self._move_wanted()
            if time.monotonic() - looked > LOOK_S:
                looked = time.monotonic()
                self._look_at_all()

    def _move_wanted(self) -> None:
        for model in self._repository.models():
            if model.source.is_wanted() and id(model) not in self._moving:
                self._moving.add(id(model))
                threading.Thread(target=self._move, args=(model,), name="disc-artifact", daemon=True).start()

    def _look_at_all(self) -> None:
        for model in self._repository.models():
            self._look(model)

    def _look(self, model: LoadedModel) -> None:
        before = model.source.note
        whole = model.source.look()
        if model.source.note != before:
            log("artifact_changed", model=model.name, version=model.version, note=model.source.note)
        if not whole:
            self._repository.take_out(model, "its file was overwritten while it was served; load it again")

    def _move(self, model: LoadedModel) -> None:
        """Copies the file before another process writes to it. Where that cannot be done the model is taken out of service after its
        calls."""
        source = model.source
        number = id(model)
        try:
            source.move_to_memory(model.executable)
            log("artifact_copied", model=model.name, version=model.version, reason="another process writes to its file")
        except (OSError, DiscError) as error:
            log("artifact_lost", model=model.name, version=model.version, error=str(error))
            self._repository.take_out(model, "its file was overwritten while it was served; load it again")
            used = weakref.ref(model)
            del model
            end = time.monotonic() + CALLS_S
            while used() is not None and time.monotonic() < end:
                time.sleep(LEASE_S)
        source.give_up_lease()
        self._moving.discard(number)
