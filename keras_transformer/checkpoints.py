"""Checkpoints: all state of a training run in one file, whole or not at all.

A checkpoint is a NumPy archive `step-00001000.npz` with the model's weights,
the optimizer's variables and the state of every random generator; each member
has a checksum. It is written aside, flushed and renamed.
"""

import json
import os
import pathlib
import re
import struct
import warnings
import zipfile

import keras
import numpy as np

FORMAT = 1
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


def state_of(model) -> dict[str, list]:
    """The variables that decide how training goes on, by kind.

    `model.weights` does not hold the states of random generators;
    `model.variables` does.
    """
    known = {id(v) for v in model.weights}
    seeds = [
        v
        for v in model.variables
        if id(v) not in known and v.path.endswith("seed_generator_state")
    ]
    optimizer = getattr(model, "optimizer", None)
    return {
        "weights": list(model.weights),
        "optimizer": list(optimizer.variables) if optimizer else [],
        "seeds": seeds,
    }


def save(folder, model, step: int, keep: int | None = None) -> pathlib.Path:
    """Writes the checkpoint of a step and removes all but the last `keep`."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {
        f"{kind}.{i:05}": keras.ops.convert_to_numpy(variable)
        for kind, variables in state_of(model).items()
        for i, variable in enumerate(variables)
    }
    about = {
        "format": FORMAT,
        "step": step,
        "keras": keras.__version__,
        "arrays": sorted(arrays),
    }
    path = folder / f"step-{step:08}.npz"
    with write_aside(path) as file:
        np.savez(file, about=np.array(json.dumps(about)), **arrays)
    for _, old in steps(folder)[:-keep] if keep else []:
        old.unlink()
    return path


def restore(path, model, with_optimizer: bool = True) -> int:
    """Puts a checkpoint's state into a model and gives its step.

    Raises:
        DamagedCheckpointError: if the file is damaged.
        ValueError: if it belongs to another model.
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
    except (FileNotFoundError, PermissionError):
        raise
    except DAMAGE as e:
        raise DamagedCheckpointError(
            f"The checkpoint {str(path)!r} is damaged: {e}. Remove it to use "
            "the one before."
        ) from e
    state = state_of(model)
    if not with_optimizer:
        del state["optimizer"], state["seeds"]
    for kind, variables in state.items():
        stored = [arrays[n] for n in sorted(arrays) if n.startswith(kind)]
        _check_fits(path, kind, stored, variables)
        for variable, value in zip(variables, stored, strict=True):
            variable.assign(value)
    return about["step"]


def restore_newest(folder, model, with_optimizer: bool = True) -> int:
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


def steps(folder) -> list[tuple[int, pathlib.Path]]:
    """The checkpoints of a folder, oldest first."""
    folder = pathlib.Path(folder)
    names = os.listdir(folder) if folder.is_dir() else []
    matches = [(NAME.fullmatch(name), folder / name) for name in names]
    return sorted((int(m[1]), path) for m, path in matches if m)


class write_aside:  # noqa: N801, used like a function
    """`with write_aside(path) as file:` fills a temporary file that takes its
    name when it is complete; on an error nothing is left."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.aside = self.path.with_name(f".{self.path.name}.{os.getpid()}")

    def __enter__(self):
        self.file = open(self.aside, "wb")
        return self.file

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                self.file.flush()
                os.fsync(self.file.fileno())
        finally:
            self.file.close()
            if kind is not None:
                self.aside.unlink(missing_ok=True)
        if kind is None:
            os.replace(self.aside, self.path)


def _check_fits(path, kind, stored, variables):
    shapes = [tuple(v.shape) for v in variables]
    found = [a.shape for a in stored]
    if shapes == found:
        return
    for variable, shape in zip(variables, found, strict=False):
        if tuple(variable.shape) != shape:
            raise ValueError(
                f"The checkpoint {str(path)!r} belongs to another model: "
                f"{variable.path} has shape {tuple(variable.shape)}, the "
                f"checkpoint has {shape}. Was the vocabulary exchanged?"
            )
    raise ValueError(
        f"The checkpoint {str(path)!r} belongs to another model: it has "
        f"{len(found)} {kind}, expected {len(shapes)}."
    )
