"""The models of a server: which there are, which are loaded, and changing that while requests run.

A request takes a reference to the version that answers it, and a version lives as long as it has references. So a swap is one
assignment, and unloading neither waits nor loses a request.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from disc.errors import ConfigurationError, DiscError, ModelNotFoundError, NotReadyError, OverloadedError, did_you_mean
from disc.serving.artifact_source import Stamp
from disc.serving.logs import log
from disc.serving.model import LoadedModel, load_model
from disc.serving.settings import ServerSettings

FILE_NAME = "model.disc"
SUFFIX = ".disc"
Found = Mapping[str, Mapping[str, Path]]
Versions = Mapping[str, LoadedModel]
_VERSION = re.compile(r"[1-9][0-9]{0,17}")


@dataclass(frozen=True)
class IndexEntry:
    """One version. state: READY or UNAVAILABLE. reason: why it is not ready, or what has become of its file since it was loaded."""

    name: str
    version: str
    state: str
    reason: str = ""


@dataclass(frozen=True)
class _Folder:
    """The contents of the folder. ignored: what is no model, and why."""

    models: Found
    ignored: list[str]


class Repository:
    """A folder of `name/version/model.disc` (versions are whole numbers) and `name.disc` (version 1), or artifacts by their paths."""

    def __init__(self, root: Path | Sequence[Path], settings: ServerSettings) -> None:
        """root: the folder, an artifact, or several. Raises ConfigurationError for several that are no files, or of one name."""
        self._paths = [root] if isinstance(root, Path) else list(root)
        self._files = self._paths[0].is_file() or len(self._paths) > 1
        _check_several(self._paths)
        self._settings = settings
        self._change = threading.RLock()  # one load or unload at a time
        self._models: Mapping[str, Versions] = {}  # replaced as a whole, so that readers need no lock
        self._known: set[tuple[str, str]] = set()  # versions that are loaded, or have been
        self._reasons: dict[tuple[str, str], str] = {}
        self._required: set[str] = set()

    # --- what there is ------------------------------------------------------------------------------------------------------

    def scan(self) -> Found:
        """The artifacts of the folder: name → version → file. Names from requests are looked up here, never made into paths.

        Raises ConfigurationError.
        """
        return self._look().models

    def _look(self) -> _Folder:
        if self._files:
            return _Folder({path.stem: {"1": path} for path in self._paths if path.is_file()}, [])
        (root,) = self._paths
        models: dict[str, dict[str, Path]] = {}
        ignored: list[str] = []
        for entry in sorted(_entries(root)):
            if entry.is_dir():
                versions = [each for each in _entries(entry) if _VERSION.fullmatch(each.name) and (each / FILE_NAME).is_file()]
                found = {each.name: each / FILE_NAME for each in sorted(versions, key=lambda each: int(each.name))}
                name = entry.name
            else:
                found = {"1": entry} if entry.suffix == SUFFIX and entry.is_file() else {}
                name = entry.stem
            if not found:
                ignored.append(f"{entry.name}: it is neither a {SUFFIX} file nor a folder of VERSION/{FILE_NAME} (versions are 1, 2, ...)")
            elif name in models:
                ignored.append(f"{entry.name}: there is a folder of that name, too")
            else:
                models[name] = found
        return _Folder(models, ignored)

    def _look_for_client(self) -> Found:
        try:
            return self.scan()
        except ConfigurationError as error:
            log("folder_fault", error=str(error))
            raise NotReadyError("the folder of the models cannot be read; the server's log says more") from error

    def index(self) -> list[IndexEntry]:
        """Every version that is there or loaded."""
        there, loaded = self._look_for_client(), self._models
        entries: list[IndexEntry] = []
        for name in sorted({*there, *loaded}):
            for version in sorted({*there.get(name, {}), *loaded.get(name, {})}, key=int):
                model = loaded.get(name, {}).get(version)
                reason = self._reasons.get((name, version), "") if model is None else model.source.note
                entries.append(IndexEntry(name, version, "UNAVAILABLE" if model is None else "READY", reason))
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
        known = any(name == each and (not version or version == number) for each, number in [*self._known, *self._reasons])
        which = f"model {name[:100]!r}" + (f" version {version[:20]!r}" if version else "")
        if known:
            raise NotReadyError(f"{which} is not loaded")
        near = did_you_mean(name[:100], self._models) if name not in self._models else ""
        raise ModelNotFoundError(f"there is no {which}{near}")

    def versions(self, name: str) -> list[str]:
        """The loaded versions of a model, oldest first."""
        return sorted(self._models.get(name, {}), key=int)

    # --- changes ------------------------------------------------------------------------------------------------------------

    @property
    def complete(self) -> bool:
        """Whether there are models, and all are loaded that should be: those of the start and those loaded since, unless unloaded."""
        return bool(self._models) and all(name in self._models for name in self._required)

    def load_all(self) -> None:
        """Loads what the folder has, at the start.

        Raises ConfigurationError for a folder without models, settings of a model that is not there, and a model that cannot be loaded,
        unless clients may mend that (`admin`), or the settings allow the last.
        """
        folder = self._look()
        for text in folder.ignored:
            log("ignored", what=text)
        self._check_names(folder)
        failed: dict[str, DiscError] = {}
        for name in folder.models:
            try:
                self.load(name)
            except DiscError as error:
                log("load_failed", model=name, error=str(error.__cause__ or error))
                failed[name] = error
        if not self._settings.allow_failed_models:
            self._required.update(failed)
        if failed and not self._settings.admin and (not self._settings.allow_failed_models or not self._models):
            name, error = next(iter(failed.items()))
            raise ConfigurationError(
                f"model '{name}' cannot be served: {error.__cause__ or error}{_others(failed, self._models)}"
            ) from error

    def _check_names(self, folder: _Folder) -> None:
        """Whether there is something to serve, and the settings name no other model."""
        unknown = sorted(set(self._settings.models) - set(folder.models))
        problem = ""
        if not folder.models:
            why = "".join(f"\n  - {text}" for text in folder.ignored[:20])
            problem = f"{self._paths[0]} has no model: expected NAME{SUFFIX} or NAME/VERSION/{FILE_NAME}, such as bert/1/{FILE_NAME}{why}"
            if (self._paths[0] / "config.json").is_file():
                problem += f"\n{self._paths[0]} is a folder of Hugging Face: compile it first, disc compile hf:{self._paths[0]} --task ..."
            if any((version / FILE_NAME).is_file() for version in self._paths[0].iterdir() if version.name.isdecimal()):
                problem += f"\n{self._paths[0]} is a model's own folder: give the one around it"
        elif unknown:
            problem = f"[models.{unknown[0]}]: there is no such model; there are {', '.join(folder.models)}"
        if problem and not self._settings.admin:
            raise ConfigurationError(problem)
        if problem:
            log("configuration", warning=problem)

    def load(self, name: str) -> None:
        """Loads the newest versions of a model in place of those loaded; versions whose file is unchanged stay.

        Raises ModelNotFoundError, NotReadyError when a version cannot be loaded, OverloadedError beyond the memory budget. Then the
        versions that were loaded stay.
        """
        with self._change:
            there = self._look_for_client().get(name)
            if there is None:
                raise ModelNotFoundError(f"there is no model {name[:100]!r}{did_you_mean(name[:100], self._look_for_client())}")
            settings = self._settings.for_model(name)
            newest = list(there.items())[-max(settings.versions, 1) :]
            before = self._models.get(name, {})
            after = {version: self._version(name, version, path, before.get(version)) for version, path in newest}
            self._models = {**self._models, name: after}
            self._required.add(name)
        log("loaded", model=name, versions=list(after))

    def unload(self, name: str) -> None:
        """Takes a model out of service; requests under way are answered. Raises ModelNotFoundError."""
        with self._change:
            if name not in self._models:
                raise ModelNotFoundError(f"no model {name[:100]!r} is loaded")
            self._reasons.update({(name, version): "unloaded" for version in self._models[name]})
            self._models = {each: versions for each, versions in self._models.items() if each != name}
            self._required.discard(name)
        log("unloaded", model=name)

    def take_out(self, model: LoadedModel, reason: str) -> None:
        """Ends the service of a version whose bytes may no longer be what was loaded. The model is missing until it is loaded again."""
        with self._change:
            versions = self._models.get(model.name, {})
            if versions.get(model.version) is not model:
                return
            self._reasons[model.name, model.version] = reason
            left = {number: each for number, each in versions.items() if each is not model}
            self._models = {
                **{each: kept for each, kept in self._models.items() if each != model.name},
                **({model.name: left} if left else {}),
            }
        log("taken_out", model=model.name, version=model.version, reason=reason)

    def _version(self, name: str, version: str, path: Path, loaded: LoadedModel | None) -> LoadedModel:
        try:
            now = Stamp.of(os.stat(path))
        except OSError as error:
            raise NotReadyError(f"model '{name}' version {version} could not be loaded: its file is gone") from error
        if loaded is not None and loaded.source.stamp == now:
            return loaded
        self._check_memory(name, now.size)
        try:
            model = load_model(name, version, path, self._settings.for_model(name), self._settings.limits)
        except DiscError as error:
            kind = type(error).__name__
            log("load_failed", model=name, version=version, error=f"{kind}: {error}")
            self._reasons[name, version] = kind
            raise NotReadyError(f"model '{name}' version {version} could not be loaded: {kind}; the server's log says more") from error
        self._known.add((name, version))
        self._reasons.pop((name, version), None)
        return model

    def _check_memory(self, name: str, more: int) -> None:
        budget = self._settings.memory_bytes
        used = sum(model.bytes for model in self.models())
        if budget and used + more > budget:
            raise OverloadedError(f"model '{name}' needs {more} bytes; of the {budget} for all models {max(budget - used, 0)} are free")


def _check_several(paths: Sequence[Path]) -> None:
    """Raises ConfigurationError where these cannot be served together."""
    names: dict[str, Path] = {}
    for path in paths if len(paths) > 1 else ():
        if path.is_dir():
            raise ConfigurationError(f"{path} is a folder: give one folder of models, or files alone")
        if path.stem in names:
            raise ConfigurationError(f"{names[path.stem]} and {path} would both be the model {path.stem!r}: rename one")
        names[path.stem] = path


def _entries(folder: Path) -> list[Path]:
    try:
        return [each for each in folder.iterdir() if not each.name.startswith(".")]
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be read: {error.strerror}") from error


def _others(failed: Mapping[str, DiscError], loaded: Mapping[str, Versions]) -> str:
    more = f"; nor {', '.join(list(failed)[1:])}" if len(failed) > 1 else ""
    return f"{more}. --allow-failed-models serves the others" if loaded else more
