"""Reads a folder of the original Marian: weights in `.npz`, `decoder.yml`."""

import pathlib

from keras_transformer.pretrained.marian_files import Checkpoint


def is_original(folder: pathlib.Path) -> bool:
    """Returns whether a folder has the files of the original Marian."""
    return not (folder / "config.json").exists() and any(folder.glob("*.npz"))


def read(folder: pathlib.Path) -> Checkpoint:
    """Reads the folder."""
    raise NotImplementedError
