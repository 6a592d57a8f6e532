"""Checkpoints: all state of a training run in one file, whole or not at all.

A checkpoint is a NumPy archive `step-00001000.npz` with the model's weights,
the optimizer's variables and the state of every random generator, each array
under the name of its variable, and metadata in JSON. Each member has a
checksum. The file is written aside, flushed and renamed.
"""

import contextlib
import errno
import json
import os
import pathlib
import re
import struct
import warnings
import zipfile
from collections.abc import Callable
from typing import TypeVar

import keras
import numpy as np

import keras_transformer
from keras_transformer.archives import check_arrays
from keras_transformer.atomic_files import write_aside
from keras_transformer.validation import shown

Path = str | os.PathLike
Contents = TypeVar("Contents")

FORMAT = 2
RESTART = (
    "The checkpoints before are whole: start a new run with a smaller "
    "--learning-rate-scale, more --warmup-steps or --global-clipnorm 1."
)
NAME = re.compile(r"step-(\d{8})\.npz")
METADATA = "about"  # the member of the archive
# Reading a file raises one of these when its bytes are wrong.
DAMAGE = (
    ValueError,
    KeyError,
    EOFError,
    OSError,
    RuntimeError,
    struct.error,
    zipfile.BadZipFile,
)


class DamagedCheckpointError(ValueError):
    """The file of a checkpoint is not what was written."""


def save(
    folder: Path,
    model: keras.Model,
    step: int,
    keep: int | None = None,
    every: int = 1,
    protected: int | None = None,
    **metadata: object,
) -> pathlib.Path:
    """Writes the checkpoint of a step and removes older ones.

    Args:
        folder: of the checkpoints; made if it does not exist.
        model: whose state is written.
        step: updates done.
        keep: how many checkpoints to keep. Defaults to all.
        every: only steps that are multiples of it count as one of `keep`;
            others are kept only until the next save.
        protected: a step whose checkpoint is kept besides. Defaults to none.
        metadata: more to store with the checkpoint, as JSON.

    Raises:
        ValueError: if a weight is not finite.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {
        f"{kind}/{name}": keras.ops.convert_to_numpy(variable)
        for kind, variables in state_of(model).items()
        for name, variable in variables.items()
    }
    for name, value in arrays.items():
        if name.startswith("weights/") and not np.isfinite(value).all():
            raise ValueError(
                f"Weights must be finite to be saved. Received: {name} with "
                f"NaN or infinity after step {step:,}. {RESTART}"
            )
    path = folder / f"step-{step:08}.npz"
    write(path, arrays, {"step": step, **metadata})
    if keep:
        found = dict(steps(folder))
        # Later checkpoints must be damaged: otherwise training would have
        # resumed from them.
        series = [
            n for n in found if n == step or (n < step and n % every == 0)
        ]
        for old in found.keys() - {*series[-keep:], protected}:
            found[old].unlink()
    return path


def write(path: Path, arrays: dict[str, np.ndarray], metadata: dict):
    """Writes arrays and their metadata, whole or not at all."""
    metadata = {
        **metadata,
        "format": FORMAT,
        "keras": keras.__version__,
        "keras_transformer": keras_transformer.__version__,
        "arrays": sorted(arrays),
    }
    with write_aside(path) as file:
        members: dict = {METADATA: np.array(json.dumps(metadata)), **arrays}
        np.savez(file, **members)


def state_of(model: keras.Model) -> dict[str, dict]:
    """Returns the variables that decide how training goes on: names and
    variables by kind.

    A name is the same in every process: it has neither the name of the model
    nor that of the optimizer, which Keras numbers. `model.weights` does not
    hold the states of random generators; `model.variables` does. Of a model
    with LoRA, training changes the two factors of each matrix alone.
    """
    weights = weights_of(model)
    factors = {n: v for n, v in weights.items() if "/lora_kernel_" in n}
    known = {id(v) for v in model.weights}
    seeds = [
        v
        for v in model.variables
        if id(v) not in known and v.path.endswith("seed_generator_state")
    ]
    optimizer = getattr(model, "optimizer", None)
    slots = optimizer.variables if optimizer else []
    prefix = optimizer.name if optimizer else ""
    return {
        "weights": factors or weights,
        "optimizer": {
            v.path.removeprefix(f"{prefix}/").removeprefix(f"{model.name}_"): v
            for v in slots
        },
        # Keras numbers the generators of a process; here, those of a model.
        "seeds": {f"{i:03}": v for i, v in enumerate(seeds)},
    }


def weights_of(model: keras.Model) -> dict[str, keras.Variable]:
    """Returns all weights of a model, by the names of `state_of`."""
    return {v.path.removeprefix(f"{model.name}/"): v for v in model.weights}


def read_metadata(path: Path) -> dict:
    """Returns the metadata of a checkpoint, without reading its arrays.

    Raises:
        DamagedCheckpointError: if it cannot be read.
    """
    with _open(path) as archive:
        return _metadata(archive[METADATA])


def read(path: Path) -> tuple[dict, dict[str, np.ndarray]]:
    """Returns the metadata of a checkpoint, and its arrays.

    Raises:
        DamagedCheckpointError: if the file is damaged.
        ValueError: if it has the format of another version.
    """
    with _open(path) as archive:
        wrong = archive.zip.testzip()  # NumPy itself skips the checksums
        if wrong is not None:
            raise zipfile.BadZipFile(f"wrong checksum of {wrong}")
        arrays = {name: archive[name] for name in archive.files}
        metadata = _metadata(arrays.pop(METADATA))
        if sorted(arrays) != metadata.get("arrays"):
            raise zipfile.BadZipFile("its list of contents is wrong")
    if metadata.get("format") != FORMAT:
        raise ValueError(
            f"{str(path)!r} has format {shown(metadata.get('format'))}, this "
            f"version reads format {FORMAT}. Train again, or install the "
            f"version that wrote it: {metadata.get('keras_transformer')!s:.50}."
        )
    return metadata, arrays


def _metadata(member):
    metadata = json.loads(str(member))
    if not isinstance(metadata, dict):
        raise ValueError("its metadata is no object")
    return metadata


@contextlib.contextmanager
def _open(path):
    """Opens a checkpoint; wrong bytes become a `DamagedCheckpointError`."""
    try:
        with (
            open(path, "rb") as file,  # which NumPy leaves open on an error
            np.load(file, allow_pickle=False) as archive,
        ):
            check_arrays(archive.zip, os.fstat(file.fileno()).st_size)
            yield archive
    except DAMAGE as error:
        # Wrong bytes make NumPy seek to impossible places; any other error of
        # the system says nothing of the file, and may be gone the next time.
        if getattr(error, "errno", None) not in (None, errno.EINVAL):
            raise
        raise DamagedCheckpointError(
            f"The checkpoint {str(path)!r} is damaged: {error}. Remove it to "
            "use the one before."
        ) from error


def restore(
    path: Path, model: keras.Model, with_optimizer: bool = True
) -> dict:
    """Puts a checkpoint's state into a model and returns its metadata, `step`
    among others.

    Raises:
        DamagedCheckpointError: if the file is damaged.
        ValueError: if it belongs to another model.
    """
    metadata, arrays = read(path)
    try:
        assign(model, arrays, with_optimizer)
    except ValueError as error:
        raise ValueError(f"Cannot use {str(path)!r}: {error}") from error
    return metadata


def restore_newest(
    folder: Path, model: keras.Model, with_optimizer: bool = True
) -> dict:
    """Restores the newest intact checkpoint; a warning names damaged ones.

    Raises:
        ValueError: if there is no intact checkpoint.
    """
    return newest_intact(
        folder, lambda path: restore(path, model, with_optimizer)
    )


def newest_intact(
    folder: Path, read: Callable[[pathlib.Path], Contents]
) -> Contents:
    """Returns what `read` returns for the path of the newest intact
    checkpoint; a warning names damaged ones.

    Raises:
        ValueError: if there is no intact checkpoint.
    """
    found = steps(folder)
    for _, path in reversed(found):
        try:
            return read(path)
        except DamagedCheckpointError as error:
            warnings.warn(str(error), stacklevel=2)
    raise ValueError(
        f"No checkpoint to load in {str(folder)!r}: found {len(found)}, none "
        "intact. Train first, or name another run."
    )


def read_weights(path: Path, model: keras.Model) -> dict[str, np.ndarray]:
    """Returns the weights of a checkpoint by name, as `assign` takes them.

    Raises:
        DamagedCheckpointError: if the file is damaged.
        ValueError: if the checkpoint does not belong to this model.
    """
    _, arrays = read(path)
    matched("weights", state_of(model)["weights"], arrays)
    return {n: x for n, x in arrays.items() if n.startswith("weights/")}


def assign(
    model: keras.Model,
    arrays: dict[str, np.ndarray],
    with_optimizer: bool = True,
):
    """Puts arrays as `read` gives them into a model, all or none.

    Raises:
        ValueError: if they belong to another model.
    """
    state = state_of(model)
    if not with_optimizer:
        del state["optimizer"], state["seeds"]
    pairs = []
    for kind, variables in state.items():
        pairs += matched(kind, variables, arrays)
    for variable, value in pairs:
        variable.assign(value)


def matched(
    kind: str,
    variables: dict[str, keras.Variable],
    arrays: dict[str, np.ndarray],
) -> list[tuple[keras.Variable, np.ndarray]]:
    """Returns pairs of a variable and its array, for one kind of state.

    Args:
        kind: of state, as in `checkpoints.state_of`.
        variables: of that kind, by name.
        arrays: as `checkpoints.read` returns them.

    Raises:
        ValueError: if the arrays belong to another model.
    """
    stored = {
        name.removeprefix(f"{kind}/"): array
        for name, array in arrays.items()
        if name.startswith(f"{kind}/")
    }
    if stored.keys() != variables.keys():
        missing = sorted(variables.keys() - stored.keys())
        unknown = sorted(stored.keys() - variables.keys())
        raise ValueError(
            f"The checkpoint belongs to another model. Its {kind} must have "
            "the names of the model's variables. Received: "
            f"{len(missing)} missing{_first(missing)}, "
            f"{len(unknown)} unknown{_first(unknown)}. Load it into the model "
            "that wrote it."
        )
    for name, variable in variables.items():
        shape, found = tuple(variable.shape), stored[name].shape
        if shape != found:
            raise ValueError(
                "The checkpoint belongs to another model: "
                f"{variable.path} has shape {shape}, the checkpoint has "
                f"{found}. Load it into the model that wrote it."
            )
    return [(variables[name], stored[name]) for name in variables]


def _first(names):
    return f" ({names[0]}, …)" if names else ""


def steps(folder: Path) -> list[tuple[int, pathlib.Path]]:
    """Returns the steps and paths of a folder's checkpoints, oldest first."""
    folder = pathlib.Path(folder)
    names = os.listdir(folder) if folder.is_dir() else []
    matches = [(NAME.fullmatch(name), folder / name) for name in names]
    return sorted((int(m[1]), path) for m, path in matches if m)
