"""The sentence pairs of a run: section 5.1.

Training pairs are read from a prepared corpus, which a run has from its start.
The pairs of other splits, which are few, are loaded as text.
"""

import dataclasses
import os
import weakref

import numpy as np

from keras_transformer.data.batches import (
    EncodedPairs,
    TrainingPairs,
    encode_pairs,
)
from keras_transformer.data.bpe_dropout import SampledPairs
from keras_transformer.data.corpus import (
    SentencePairs,
    is_path,
    load_pairs,
    remove_unusable,
)
from keras_transformer.data.prepared_corpus import (
    PreparedCorpus,
    is_prepared,
    read_manifest,
)
from keras_transformer.training.recipe import Recipe
from keras_transformer.training.run import Run


def load_training_pairs(run: Run) -> TrainingPairs:
    """Opens the pairs that a run is trained on.

    Raises:
        ValueError: if the data is not there, or not what the run began with.
    """
    if not run.recipe.corpus:
        raise ValueError(
            "A run that was imported, or made of a model, has no training "
            "pairs, so it cannot be trained itself, nor learn a shortlist or "
            "a draft head. Received: "
            f"{str(run.folder)!r}. Train a new run by `train --initial-run "
            f"{run.folder}`."
        )
    if not run.data.exists():
        check_corpus(run.recipe)
    pairs = PreparedCorpus(run.data)
    if pairs.digest != run.data_fingerprint:
        raise ValueError(
            f"The training data of {str(run.folder)!r} has changed since the "
            "run began. Restore the corpus, or start a new run."
        )
    if not run.recipe.bpe_dropout:
        return pairs
    return SampledPairs(
        pairs,
        run.source_tokenizer,
        run.target_tokenizer,
        run.recipe.bpe_dropout,
        run.recipe.seed,
        run.recipe.max_length,
    )


def without_bpe_dropout(run: Run) -> Run:
    """Returns the run with sentences split into pieces as they are translated,
    whatever training sees."""
    recipe = dataclasses.replace(run.recipe, bpe_dropout=0.0)
    return dataclasses.replace(run, recipe=recipe)


@dataclasses.dataclass(frozen=True)
class Split:
    """Holds the pairs of a split.

    Args:
        pairs: the text, without blank pairs.
        encoded: its word pieces, without pairs that are too long.
    """

    pairs: SentencePairs
    encoded: EncodedPairs


# The splits that are loaded, by name, for as long as their run is.
_loaded: weakref.WeakKeyDictionary[Run, dict[str, Split]]
_loaded = weakref.WeakKeyDictionary()


def load_split(run: Run, name: str) -> Split:
    """Loads a split of a run's corpus, once, and prints what was left out.

    Raises:
        ValueError: if the run has no corpus, or if no pair is left; see also
            `load_pairs`.
    """
    if not run.recipe.corpus:
        raise ValueError(
            "A run that was imported, or made of a model, has no splits. "
            f"Received: {str(run.folder)!r}. Export it, and score the export "
            "on files of text by `keras-transformer evaluate`."
        )
    splits = _loaded.setdefault(run, {})
    if name not in splits:
        split, blank, long = _encode_split(run, name)
        of_loss = ", from the loss alone," if long else ""
        print(
            f"{name}: {len(split.pairs):,} pairs; left out {blank:,} blank "
            f"and{of_loss} {long:,} longer than {run.recipe.max_length} word "
            "pieces."
        )
        splits[name] = split
    return splits[name]


def check_split(run: Run, name: str) -> None:
    """Checks that a split has a pair left.

    Raises:
        ValueError: if it has none; see also `load_pairs`.
    """
    _encode_split(run, name)


def read_pairs(recipe: Recipe, split: str) -> SentencePairs:
    """Reads the text of a split; see `load_pairs` for the errors."""
    if is_prepared(recipe.corpus):  # whose files have names of their own
        kept = read_manifest(recipe.corpus)["settings"]
        names = {kept[f"{name}_split"]: name for name in ("test", "validation")}
        split = names.get(split, split)
    return load_pairs(
        recipe.corpus, split, recipe.source, recipe.target, recipe.data_dir
    )


def _text_of(run, name):
    recipe = run.recipe
    if recipe.validation_pairs is not None and name == recipe.validation_split:
        # They were held out, and lie beside those that are trained on.
        languages = recipe.source, recipe.target
        return load_pairs(str(run.data), "validation", *languages)
    return read_pairs(recipe, name)


def _encode_split(run, name):
    """Returns a split, and the numbers of blank and of long pairs."""
    pairs, blank = remove_unusable(_text_of(run, name))
    encoded = encode_pairs(
        pairs.source, pairs.target, run.source_tokenizer, run.target_tokenizer
    )
    most = run.recipe.max_length
    fits = (encoded.lengths <= most).all(axis=1)
    encoded = encoded.take(np.flatnonzero(fits))
    long = int((~fits).sum())
    if not len(encoded):
        raise ValueError(
            f"Split {name!r} has no pair left. Received: "
            f"{blank} blank, {long} longer than max_length={most}. Raise "
            "--max-length, or look at the files of the split."
        )
    return Split(pairs, encoded), blank, long


def check_corpus(recipe: Recipe) -> None:
    """Checks that a run's corpus is where the recipe says.

    Raises:
        ValueError: if it is not.
    """
    if is_missing(recipe.corpus):
        raise ValueError(
            "The corpus of the run is not where it was. Received: "
            f"{recipe.corpus!r}, which is no folder. Put it back, or name its "
            "new place by --corpus."
        )


def is_missing(corpus: str) -> bool:
    """Returns whether a corpus is a path that is not there."""
    is_folder = bool(corpus) and is_path(corpus)
    return is_folder and not os.path.isdir(corpus)
