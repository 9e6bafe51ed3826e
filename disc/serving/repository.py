"""The models of a server: which there are, which are loaded, and changing that while requests run.

A request takes a reference to the version that answers it, and a version lives as long as anybody refers to it. So a swap is one
assignment, and unloading waits for nobody and loses nothing.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from disc.errors import ConfigurationError, DiscError, ModelNotFoundError, NotReadyError, OverloadedError
from disc.serving.logs import log
from disc.serving.model import LoadedModel, load_model
from disc.serving.settings import ServerSettings

FILE_NAME = "model.disc"
Versions = Mapping[str, LoadedModel]
_VERSION = re.compile(r"[1-9][0-9]{0,17}")
_Stamp = tuple[int, int, int, int]


@dataclass(frozen=True)
class IndexEntry:
    """One version. state: READY or UNAVAILABLE. reason: why it is not ready."""

    name: str
    version: str
    state: str
    reason: str = ""


class Repository:
    """A folder of `name/version/model.disc` (versions are whole numbers), or one artifact, which is version 1 of its name."""

    def __init__(self, root: Path, settings: ServerSettings) -> None:
        self._root = root
        self._settings = settings
        self._change = threading.RLock()  # one load or unload at a time
        self._models: Mapping[str, Versions] = {}  # replaced as a whole, so that readers need no lock
        self._stamps: dict[tuple[str, str], _Stamp] = {}
        self._reasons: dict[tuple[str, str], str] = {}

    # --- what there is ------------------------------------------------------------------------------------------------------

    def scan(self) -> dict[str, dict[str, Path]]:
        """The artifacts of the folder: name → version → file. Names from requests are looked up here, never made into paths."""
        if self._root.is_file():
            return {self._root.stem: {"1": self._root}}
        found: dict[str, dict[str, Path]] = {}
        for folder in sorted(each for each in self._entries(self._root) if each.is_dir()):
            versions = [each for each in self._entries(folder) if _VERSION.fullmatch(each.name)]
            files = {each.name: each / FILE_NAME for each in sorted(versions, key=lambda each: int(each.name))}
            found[folder.name] = {version: path for version, path in files.items() if path.is_file()}
        return {name: versions for name, versions in found.items() if versions}

    def _entries(self, folder: Path) -> list[Path]:
        try:
            return [each for each in folder.iterdir() if not each.name.startswith(".")]
        except OSError as error:
            raise ConfigurationError(f"{folder} cannot be read: {error.strerror}") from error

    def index(self) -> list[IndexEntry]:
        """Every version that is there or loaded."""
        there, loaded = self.scan(), self._models
        entries: list[IndexEntry] = []
        for name in sorted({*there, *loaded}):
            for version in sorted({*there.get(name, {}), *loaded.get(name, {})}, key=int):
                ready = version in loaded.get(name, {})
                entries.append(IndexEntry(name, version, "READY" if ready else "UNAVAILABLE", self._reasons.get((name, version), "")))
        return entries

    def models(self) -> list[LoadedModel]:
        """Every loaded version, ordered by name and version."""
        return [versions[version] for _, versions in sorted(self._models.items()) for version in sorted(versions, key=int)]

    def find(self, name: str, version: str = "") -> LoadedModel:
        """The version that answers; "" = the newest loaded one. Raises ModelNotFoundError, NotReadyError (known, not loaded)."""
        versions = self._models.get(name)
        if versions:
            model = versions.get(version or max(versions, key=int))
            if model is not None:
                return model
        known = any(name == each and (not version or version == number) for each, number in [*self._stamps, *self._reasons])
        which = f"model {name[:100]!r}" + (f" version {version[:20]!r}" if version else "")
        if known:
            raise NotReadyError(f"{which} is not loaded")
        raise ModelNotFoundError(f"there is no {which}")

    def versions(self, name: str) -> list[str]:
        """The loaded versions of a model, oldest first."""
        return sorted(self._models.get(name, {}), key=int)

    # --- changes ------------------------------------------------------------------------------------------------------------

    def load_all(self) -> None:
        """Loads what the folder has. A model that fails is reported and left out."""
        for name in self.scan():
            try:
                self.load(name)
            except DiscError as error:
                log("load_failed", model=name, error=str(error))

    def load(self, name: str) -> None:
        """Loads the newest versions of a model in place of those loaded; versions whose file is unchanged stay.

        Raises ModelNotFoundError, NotReadyError when a version cannot be loaded, OverloadedError beyond the memory budget. Then the
        versions that were loaded stay.
        """
        with self._change:
            there = self.scan().get(name)
            if there is None:
                raise ModelNotFoundError(f"there is no model {name[:100]!r}")
            settings = self._settings.for_model(name)
            newest = list(there.items())[-max(settings.versions, 1) :]
            before = self._models.get(name, {})
            after = {version: self._version(name, version, path, before.get(version)) for version, path in newest}
            self._models = {**self._models, name: after}
        log("loaded", model=name, versions=list(after))

    def unload(self, name: str) -> None:
        """Takes a model out of service; requests under way are answered. Raises ModelNotFoundError."""
        with self._change:
            if name not in self._models:
                raise ModelNotFoundError(f"no model {name[:100]!r} is loaded")
            self._reasons.update({(name, version): "unloaded" for version in self._models[name]})
            self._models = {each: versions for each, versions in self._models.items() if each != name}
        log("unloaded", model=name)

    def _version(self, name: str, version: str, path: Path, loaded: LoadedModel | None) -> LoadedModel:
        status = os.stat(path)
        stamp = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
        if loaded is not None and self._stamps.get((name, version)) == stamp:
            return loaded
        self._check_memory(name, status.st_size)
        try:
            model = load_model(name, version, path, self._settings.for_model(name), self._settings.limits)
        except DiscError as error:
            kind = type(error).__name__
            log("load_failed", model=name, version=version, error=f"{kind}: {error}")
            self._reasons[name, version] = kind
            raise NotReadyError(f"model '{name}' version {version} could not be loaded: {kind}; the server's log says more") from error
        self._stamps[name, version] = stamp
        self._reasons.pop((name, version), None)
        return model

    def _check_memory(self, name: str, more: int) -> None:
        budget = self._settings.memory_bytes
        used = sum(model.bytes for model in self.models())
        if budget and used + more > budget:
            raise OverloadedError(f"model '{name}' needs {more} bytes; of the {budget} for all models {max(budget - used, 0)} are free")
