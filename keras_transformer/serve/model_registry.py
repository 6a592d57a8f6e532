"""All models of a server: loads new versions, and unloads old ones."""

import asyncio
import contextlib
import dataclasses
import logging
import math
import os
import pathlib
import time
from collections.abc import (
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)

import numpy as np
from tensorflow_serving.apis import get_model_status_pb2

from keras_transformer.export.files import versions_in
from keras_transformer.serve.engine import FIRST_PAUSE, LONGEST_PAUSE
from keras_transformer.serve.errors import (
    ProcessEndedError,
    VersionEndedError,
    no_label,
    not_served,
)
from keras_transformer.serve.model_config import ModelConfig
from keras_transformer.serve.served_model import ServedModel

logger = logging.getLogger("keras_transformer.serve")

# A request may have found a version and not yet be waiting in it.
SECONDS_BEFORE_UNLOADING = 1.0

StartVersion = Callable[[str, pathlib.Path], Awaitable[ServedModel]]


@dataclasses.dataclass(frozen=True)
class VersionStatus:
    """State of one version of a model.

    Args:
        version: number of the version.
        state: "START", "LOADING", "AVAILABLE", "UNLOADING" or "END".
        error_code: name of a gRPC status code. Defaults to "OK".
        error_message: text of the error. Defaults to "".
    """

    version: int
    state: str
    error_code: str = "OK"
    error_message: str = ""


@dataclasses.dataclass
class _Entry:
    """A version that is or was served.

    Args:
        status: its state.
        path: folder that it was loaded from.
        files: what was in its folder when it was last tried.
        served: the version, while it is available or being unloaded.
    """

    status: VersionStatus
    path: pathlib.Path
    files: frozenset | None
    served: ServedModel | None = None

    def may_become(self, path: pathlib.Path) -> bool:
        """Returns whether its place is for a version of this folder."""
        if self.status.state == "AVAILABLE":
            return self.path != path
        return self.status.state == "END"


class ModelRegistry:
    """The models of a server, which follow the folders of their versions.

    Args:
        read_configs: returns the models to serve; called before each look.
        start_version: loads the version of a model in a folder.
        poll_seconds: seconds between two looks for new versions.
    """

    def __init__(
        self,
        read_configs: Callable[[], Sequence[ModelConfig]],
        start_version: StartVersion,
        poll_seconds: float,
    ):
        self._read_configs = read_configs
        self._start_version = start_version
        self._poll_seconds = poll_seconds
        self._configs: dict[str, ModelConfig] = {}
        self._entries: dict[str, dict[int, _Entry]] = {}
        self._labels: dict[str, dict[str, int]] = {}  # that are in force
        self._errors: dict[str, str] = {}  # of the last look, by subject
        # Versions to try again: when, and after how long a pause.
        self._again: dict[pathlib.Path, tuple[float, float]] = {}
        self._unloading: set[asyncio.Task] = set()

    def find(
        self, name: str, version: int | None = None, label: str | None = None
    ) -> ServedModel:
        """Returns a version that answers requests, by default the newest.

        Raises:
            ServingError: `NOT_FOUND` for an unknown model or version;
                `INVALID_ARGUMENT` for an unknown label.
        """
        if label is not None:
            version = self._labels.get(name, {}).get(label)
            if version is None:
                raise no_label(label)
        available = self.available(name)
        number = max(available, default=None) if version is None else version
        served = (
            self._entries[name][number].served if number in available else None
        )
        if served is None:
            raise not_served(name, version)
        return served

    def statuses(
        self, name: str, version: int | None = None, label: str | None = None
    ) -> list[VersionStatus]:
        """Returns the states of a model's versions, newest first.

        Raises:
            ServingError: see `find`.
        """
        if label is not None:
            version = self.find(name, label=label).number
        found = [
            status
            for status in self._known(name)
            if version in (None, status.version)
        ]
        if not found:
            raise not_served(name, version)
        return found

    @property
    def names(self) -> list[str]:
        """Returns the names of the models."""
        return sorted(self._configs)

    def available(self, name: str) -> list[int]:
        """Returns the versions of a model that answer, newest first."""
        return [
            status.version
            for status in self._known(name)
            if status.state == "AVAILABLE"
        ]

    def _known(self, name):
        """Returns the states of a model's versions, newest first."""
        entries = self._entries.get(name, {})
        return [entries[number].status for number in sorted(entries)[::-1]]

    @property
    def are_ready(self) -> bool:
        """Whether each model has versions, whose requests are computed."""
        return bool(self._configs) and all(map(self._is_running, self._configs))

    def _is_running(self, name):
        served = [self.find(name, n) for n in self.available(name)]
        return bool(served) and all(version.is_running for version in served)

    def require_ready(self) -> None:
        """Raises a `ValueError` if a model has no version that answers."""
        for name, config in self._configs.items():
            if self.available(name):
                continue
            errors = [status.error_message for status in self._known(name)]
            errors.append(self._errors.get(f"model {name}", ""))
            raise ValueError(
                f"No version of model {name!r} in "
                f"{str(config.base_path)!r} can be served. "
                f"{' '.join(errors)}".strip()
            )

    async def watch(self) -> None:
        """Looks for new versions, for ever."""
        while True:
            await asyncio.sleep(self._poll_seconds)
            with self._logging_errors("all models"):
                await self.update()

    async def update(self) -> None:
        """Loads the versions that are to be served, then unloads others."""
        self._configs = {config.name: config for config in self._read_configs()}
        for config in self._configs.values():
            self._move_labels(config)
        for config in self._configs.values():
            with self._logging_errors(f"model {config.name}"):
                await self._update_model(config)
        for name in self._entries.keys() - self._configs.keys():
            self._labels.pop(name, None)
            for entry in self._entries[name].values():
                self._unload(name, entry)

    @contextlib.contextmanager
    def _logging_errors(self, subject):
        """Logs an error, unless the last look at the subject had the same."""
        text = ""
        try:
            yield
        except (OSError, ValueError) as error:
            text = f"{error}"
            if text != self._errors.get(subject):
                logger.error("%s", text)
        self._errors[subject] = text

    async def predict(
        self,
        served: ServedModel,
        wanted: tuple[str, int | None, str | None],
        signature_name: str,
        inputs: Mapping[str, np.ndarray],
        timeout: float | None = None,
    ) -> dict[str, np.ndarray]:
        """Computes a signature by a version, or by the one that has taken over
        if that cannot answer any more.

        Args:
            served: the version that `find` returned.
            wanted: arguments of `find`.
            signature_name, inputs, timeout: as in `ServedModel.predict`.

        Raises:
            ServingError: with a code for the client.
        """
        try:
            return await served.predict(signature_name, inputs, timeout)
        except VersionEndedError:
            other = self.find(*wanted)
            if other is served:
                raise
            return await other.predict(signature_name, inputs, timeout)

    async def stop(self) -> None:
        """Answers all requests that were accepted, and ends all versions."""
        served = [
            entry.served
            for entries in self._entries.values()
            for entry in entries.values()
            if entry.served and entry.status.state == "AVAILABLE"
        ]
        stopping = [version.stop() for version in served]
        await asyncio.gather(*stopping, *self._unloading)

    async def _update_model(self, config):
        self._entries.setdefault(config.name, {})
        found = versions_in(config.base_path)
        wanted = config.wanted(found)
        await self._load_wanted(config, found, wanted)
        self._unload_others(config, wanted)
        config.check_found(found)

    async def _load_wanted(self, config, found, wanted):
        for number in wanted:
            await self._load_if_new(config, number)
        if not config.versions:
            # Rather an older version than none.
            for number in sorted(set(found) - set(wanted), reverse=True):
                if self.available(config.name):
                    break
                await self._load_if_new(config, number)

    def _unload_others(self, config, wanted):
        """Unloads versions in use when others have taken their place."""
        available = set(self.available(config.name))
        if not available & set(wanted):
            return
        self._move_labels(config)
        waiting = {
            number
            for label, number in self._labels[config.name].items()
            if number != config.labels[label]
        }
        for number in available - set(wanted) - waiting:
            self._unload(config.name, self._entries[config.name][number])

    def _move_labels(self, config):
        """Has each label name its version, if that is available."""
        before = self._labels.get(config.name, {})
        available = self.available(config.name)
        labels: dict[str, int] = {}
        for label, number in config.labels.items():
            found = number if number in available else before.get(label)
            if found is not None and found in available:
                labels[label] = found
        self._labels[config.name] = labels

    async def _load_if_new(self, config, number):
        """Loads a version, unless it was loaded or tried as it is now.

        It is tried again if its process was killed, for want of memory say.
        """
        path = config.base_path / str(number)
        files = _files(path)
        entry = self._entries[config.name].get(number)
        again, _ = self._again.get(path, (math.inf, 0))
        is_due = time.monotonic() >= again
        if entry is None or (
            entry.may_become(path) and (is_due or entry.files != files)
        ):
            await self._load(config.name, number, path, files)
            self._move_labels(config)

    async def _load(self, name, number, path, files):
        entry = _Entry(VersionStatus(number, "LOADING"), path, files)
        in_use = self._entries[name].get(number)
        if in_use and not in_use.served:
            in_use = None
        if not in_use:  # else that of another folder answers until this does
            self._entries[name][number] = entry
        logger.info("Loading version %d of model %s.", number, name)
        try:
            entry.served = await self._start_version(name, path)
        except Exception as error:  # other versions are served on
            entry.status = VersionStatus(number, "END", "UNKNOWN", f"{error}")
            if in_use:
                in_use.files = files
            _, before = self._again.pop(path, (0, 0))
            if isinstance(error, ProcessEndedError | OSError):
                pause = min(max(FIRST_PAUSE, 2 * before), LONGEST_PAUSE)
                self._again[path] = time.monotonic() + pause, pause
            logger.warning(
                "Version %d of model %s is not served: %s", number, name, error
            )
            return
        self._again.pop(path, None)
        entry.status = VersionStatus(number, "AVAILABLE")
        self._entries[name][number] = entry
        if in_use:
            self._unload(name, in_use)
        logger.info("Serving version %d of model %s.", number, name)

    def _unload(self, name, entry):
        """Has a version answer its requests and end, in the background."""
        served, number = entry.served, entry.status.version
        if served is None or entry.status.state != "AVAILABLE":
            return
        entry.status = VersionStatus(number, "UNLOADING")

        async def unload():
            await asyncio.sleep(SECONDS_BEFORE_UNLOADING)
            await served.stop()
            entry.served = None
            # A version whose folder is put back is loaded again.
            entry.status, entry.files = VersionStatus(number, "END"), None
            logger.info("Version %d of model %s is unloaded.", number, name)

        task = asyncio.create_task(unload())
        self._unloading.add(task)
        task.add_done_callback(self._unloading.discard)


def status_response(
    statuses: Iterable[VersionStatus],
) -> get_model_status_pb2.GetModelStatusResponse:
    """Returns the states of a model's versions as a message, in their order."""
    response = get_model_status_pb2.GetModelStatusResponse()
    for status in statuses:
        added = response.model_version_status.add(
            version=status.version, state=status.state
        )
        # The enumeration of codes is TensorFlow's; its descriptor is here.
        codes = added.status.DESCRIPTOR.fields_by_name["error_code"].enum_type
        added.status.error_code = codes.values_by_name[status.error_code].number
        added.status.error_message = status.error_message
    return response


def _files(folder):
    """Returns names, sizes and times of a folder's files, to see a change."""
    found = set()
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                status = os.stat(os.path.join(root, name))
            except OSError:  # it is gone, or may not be looked at
                continue
            found.add((root, name, status.st_size, status.st_mtime_ns))
    return frozenset(found)
