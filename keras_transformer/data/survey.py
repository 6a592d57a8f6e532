"""Keeps what is learned about a corpus before it is encoded."""

import dataclasses
import os
import pathlib
from typing import Any

import numpy as np

from keras_transformer.atomic_files import write_aside
from keras_transformer.data.prepared import SIDES
from keras_transformer.data.tokenizer import Tokenizer

SURVEY = "survey.npz"


@dataclasses.dataclass(frozen=True, eq=False)
class Survey:
    """Holds what is known before a corpus is encoded.

    Args:
        tokenizers: of source and target.
        repeated: of `find_duplicates`; empty to keep duplicates.
        pairs: number of pairs in the corpus, or 0 if it is not known.
    """

    tokenizers: tuple[Tokenizer, Tokenizer]
    repeated: dict[tuple[int, int], np.ndarray]
    pairs: int

    def write(self, folder: str | os.PathLike):
        """Writes the survey to a folder."""
        arrays: dict[str, Any] = {
            f"{corpus} {number}": found
            for (corpus, number), found in self.repeated.items()
        }
        for side, tokenizer in zip(SIDES, self.tokenizers, strict=True):
            arrays[side] = np.frombuffer(tokenizer.model, np.uint8)
        with write_aside(pathlib.Path(folder, SURVEY)) as file:
            np.savez(file, pairs=self.pairs, **arrays)


def read_survey(folder: str | os.PathLike) -> Survey | None:
    """Returns the survey in a folder, or `None` if there is none."""
    path = pathlib.Path(folder, SURVEY)
    if not path.exists():
        return None
    with np.load(path) as file:
        arrays = dict(file)
    pairs = int(arrays.pop("pairs"))
    source, target = (arrays.pop(side).tobytes() for side in SIDES)
    tokenizer = Tokenizer(source)
    other = tokenizer if source == target else Tokenizer(target)
    repeated = {
        (int(corpus), int(number)): found
        for key, found in arrays.items()
        for corpus, number in [key.split()]
    }
    return Survey((tokenizer, other), repeated, pairs)
