"""Checkpoints: all state of a training run in one file, whole or not at all.

A checkpoint is a NumPy archive `step-00001000.npz` with the model's weights,
the optimizer's variables and the state of every random generator, each array
under the name of its variable; each member has a checksum. It is written aside,
flushed and renamed. Format 1, which held the arrays by position, is read, too.
"""

import errno
import json
import os
import pathlib
import re
import shutil
import struct
import warnings
import zipfile

import keras
import numpy as np

import keras_transformer
from keras_transformer.atomic_files import sync_folder, write_aside

FORMAT = 2
BY_POSITION = 1
RESTART = (
    "The checkpoints before are whole: start a new run with a smaller "
    "--learning-rate-scale, more --warmup-steps or --global-clipnorm 1."
)
NAME = re.compile(r"step-(\d{8})\.npz")


# What reading a file raises when its bytes are wrong, whichever they are.
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


def state_of(model) -> dict[str, dict]:
    """Returns the variables that decide how training goes on: names and
    variables by kind.

    A name is the same in every process: it has neither the name of the model
    nor that of the optimizer, which Keras numbers. `model.weights` does not
    hold the states of random generators; `model.variables` does.
    """
    known = {id(v) for v in model.weights}
    seeds = [
        v
        for v in model.variables
        if id(v) not in known and v.path.endswith("seed_generator_state")
    ]
    optimizer = getattr(model, "optimizer", None)
    slots = optimizer.variables if optimizer else []
    return {
        "weights": {
            v.path.removeprefix(f"{model.name}/"): v for v in model.weights
        },
        "optimizer": {
            v.path.removeprefix(f"{optimizer.name}/").removeprefix(
                f"{model.name}_"
            ): v
            for v in slots
        },
        # Keras numbers the generators of a process; here, those of a model.
        "seeds": {f"{i:03}": v for i, v in enumerate(seeds)},
    }


def save(
    folder, model, step: int, keep: int | None = None, every: int = 1, **about
) -> pathlib.Path:
    """Writes the checkpoint of a step and removes all but the last `keep`.

    Args:
        folder: of the checkpoints; made if it does not exist.
        model: whose state is written.
        step: updates done.
        keep: how many checkpoints to keep. Defaults to all.
        every: those between multiples of it serve until the next one only.
        about: what else to know of the checkpoint, for JSON.

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
    write(path, arrays, {"step": step, **about})
    if keep:
        found = steps(folder)
        series = [(n, p) for n, p in found if n % every == 0 or n == step]
        for _, old in set(found) - set(series[-keep:]):
            old.unlink()
    return path


def write(path, arrays: dict[str, np.ndarray], about: dict):
    """Writes arrays and what is to be known of them, whole or not at all."""
    about = {
        **about,
        "format": FORMAT,
        "keras": keras.__version__,
        "keras_transformer": keras_transformer.__version__,
        "arrays": sorted(arrays),
    }
    with write_aside(path) as file:
        np.savez(file, about=np.array(json.dumps(about)), **arrays)


def read(path) -> tuple[dict, dict[str, np.ndarray]]:
    """What is to be known of a checkpoint, and its arrays.

    Raises:
        DamagedCheckpointError: if the file is damaged.
        ValueError: if it has a format that this version does not know.
    """
    try:
        with (
            open(path, "rb") as file,  # which NumPy leaves open on an error
            np.load(file, allow_pickle=False) as archive,
        ):
            wrong = archive.zip.testzip()  # NumPy itself skips the checksums
            if wrong is not None:
                raise zipfile.BadZipFile(f"wrong checksum of {wrong}")
            arrays = {name: archive[name] for name in archive.files}
        about = json.loads(str(arrays.pop("about")))
        if sorted(arrays) != about["arrays"]:
            raise zipfile.BadZipFile("its list of contents is wrong")
    except DAMAGE as e:
        # Wrong bytes make NumPy seek to impossible places; any other error of
        # the system says nothing of the file, and may be gone the next time.
        if getattr(e, "errno", None) not in (None, errno.EINVAL):
            raise
        raise DamagedCheckpointError(
            f"The checkpoint {str(path)!r} is damaged: {e}. Remove it to use "
            "the one before."
        ) from e
    if about.get("format") not in (BY_POSITION, FORMAT):
        raise ValueError(
            f"{str(path)!r} has format {about.get('format')!r}, this version "
            f"reads formats {BY_POSITION} and {FORMAT}. Install the version "
            f"that wrote it: {about.get('keras_transformer')}."
        )
    return about, arrays


def restore(path, model, with_optimizer: bool = True) -> dict:
    """Puts a checkpoint's state into a model and gives what is to be known of
    it, its `step` among others.

    Raises:
        DamagedCheckpointError: if the file is damaged.
        ValueError: if it belongs to another model.
    """
    about, arrays = read(path)
    try:
        assign(model, arrays, with_optimizer)
    except ValueError as error:
        raise ValueError(f"Cannot use {str(path)!r}: {error}") from error
    return about


def assign(model, arrays: dict[str, np.ndarray], with_optimizer: bool = True):
    """Puts arrays as `read` gives them into a model, all or none.

    Raises:
        ValueError: if they belong to another model.
    """
    state = state_of(model)
    if not with_optimizer:
        del state["optimizer"], state["seeds"]
    pairs = []
    for kind, variables in state.items():
        pairs += _matched(kind, variables, arrays)
    for variable, value in pairs:
        variable.assign(value)


def restore_newest(folder, model, with_optimizer: bool = True) -> dict:
    """Restores the newest checkpoint that is whole; a damaged one is named in
    a warning and passed over.

    Raises:
        ValueError: if there is no whole checkpoint.
    """
    found = steps(folder)
    for _, path in reversed(found):
        try:
            return restore(path, model, with_optimizer)
        except DamagedCheckpointError as error:
            warnings.warn(str(error), stacklevel=2)
    raise ValueError(
        f"No checkpoint to load in {str(folder)!r}: found {len(found)}, none "
        "whole. Train first, or name another run."
    )


def average(paths, model) -> dict[str, np.ndarray]:
    """The mean of the weights of several checkpoints, section 6.1.

    Args:
        paths: of the checkpoints.
        model: whose names the weights get.

    Raises:
        ValueError: if a checkpoint belongs to another model.
    """
    variables = state_of(model)["weights"]
    sums = dict.fromkeys(variables, 0)
    for path in paths:
        _, arrays = read(path)
        matched = _matched("weights", variables, arrays)
        for name, (_, value) in zip(variables, matched, strict=True):
            sums[name] = sums[name] + value.astype("float64")
    return {
        f"weights/{name}": (total / len(paths)).astype("float32")
        for name, total in sums.items()
    }


def link(path, other):
    """Gives the file of a checkpoint another name, too."""
    aside = pathlib.Path(other).with_name(f".{other.name}.{os.getpid()}")
    aside.unlink(missing_ok=True)  # of a process that was killed
    try:
        try:
            os.link(path, aside)
        except OSError:  # a file system without links
            shutil.copyfile(path, aside)
        os.replace(aside, other)
        sync_folder(other.parent)
    finally:
        aside.unlink(missing_ok=True)


def steps(folder) -> list[tuple[int, pathlib.Path]]:
    """The checkpoints of a folder, oldest first."""
    folder = pathlib.Path(folder)
    names = os.listdir(folder) if folder.is_dir() else []
    matches = [(NAME.fullmatch(name), folder / name) for name in names]
    return sorted((int(m[1]), path) for m, path in matches if m)


def remove_partial(folder):
    """Removes what processes that were killed while saving have left."""
    for path in pathlib.Path(folder).glob(".*.npz.*"):
        path.unlink(missing_ok=True)


def _matched(kind, variables, arrays):
    """Pairs of a variable and its array, for one kind of state."""
    stored = {
        name.removeprefix(f"{kind}/"): array
        for name, array in arrays.items()
        if name.startswith(f"{kind}/")
    }
    by_position = [
        arrays[name] for name in sorted(arrays) if name.startswith(f"{kind}.")
    ]
    if by_position:  # format 1
        _check_number(kind, len(by_position), len(variables))
        stored = dict(zip(variables, by_position, strict=True))
    elif stored.keys() != variables.keys():
        _check_names(kind, stored, variables)
    for name, variable in variables.items():
        shape, found = tuple(variable.shape), stored[name].shape
        if shape != found:
            raise ValueError(
                "The checkpoint belongs to another model: "
                f"{variable.path} has shape {shape}, the checkpoint has "
                f"{found}. Was the vocabulary exchanged?"
            )
    return [(variables[name], stored[name]) for name in variables]


def _check_number(kind, found, expected):
    if found != expected:
        raise ValueError(
            f"The checkpoint belongs to another model: it has {found} {kind}, "
            f"expected {expected}. Load it into the model that wrote it."
        )


def _check_names(kind, stored, variables):
    missing = sorted(variables.keys() - stored.keys())
    unknown = sorted(stored.keys() - variables.keys())
    raise ValueError(
        f"The checkpoint belongs to another model. Its {kind} must have the "
        f"names of the model's variables. Received: {len(missing)} missing"
        f"{_first(missing)}, {len(unknown)} unknown{_first(unknown)}. Load it "
        "into the model that wrote it."
    )


def _first(names):
    return f" ({names[0]}, …)" if names else ""
