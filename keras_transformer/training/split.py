"""The sentence pairs of a run, loaded from its corpus: section 5.1."""

import dataclasses
import hashlib
import weakref

from keras_transformer.data.batches import EncodedPairs, encode_pairs
from keras_transformer.data.bpe_dropout import SampledPairs
from keras_transformer.data.corpus import (
    SentencePairs,
    load_pairs,
    remove_unusable,
)
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.training.recipe import Recipe
from keras_transformer.training.run import Run


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
        ValueError: if no pair is left; see also `load_pairs`.
    """
    splits = _loaded.setdefault(run, {})
    if name not in splits:
        splits[name] = encode_split(
            read_pairs(run.recipe, name),
            name,
            run.source_tokenizer,
            run.target_tokenizer,
            run.recipe.max_length,
        )
    return splits[name]


def keep_splits(run: Run, splits: dict[str, Split]):
    """Keeps splits that are loaded already, for `load_split`."""
    _loaded[run] = splits


def read_pairs(recipe: Recipe, split: str) -> SentencePairs:
    """Reads the text of a split; see `load_pairs` for the errors."""
    return load_pairs(
        recipe.corpus, split, recipe.source, recipe.target, recipe.data_dir
    )


def encode_split(
    pairs: SentencePairs,
    name: str,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    max_length: int,
) -> Split:
    """Encodes the pairs of a split and prints what was left out.

    Raises:
        ValueError: if no pair is left.
    """
    pairs, blank = remove_unusable(pairs)
    encoded, long = encode_pairs(
        pairs, source_tokenizer, target_tokenizer, max_length
    )
    print(
        f"{name}: {len(encoded):,} pairs; left out {blank:,} blank "
        f"and {long:,} longer than {max_length} word pieces."
    )
    if not len(encoded):
        raise ValueError(
            f"Split {name!r} has no pair left. Received: "
            f"{blank} blank, {long} longer than max_length={max_length}."
        )
    return Split(pairs, encoded)


def load_training_pairs(run: Run) -> EncodedPairs | SampledPairs:
    """Loads what a run is trained on, epoch by epoch.

    Raises:
        ValueError: if the data is not what the run began with.
    """
    split = load_split(run, run.recipe.train_split)
    if fingerprint(split.encoded) != run.data_fingerprint:
        raise ValueError(
            f"The training data of {str(run.folder)!r} has changed since the "
            "run began. Restore the corpus, or start a new run."
        )
    if not run.recipe.bpe_dropout:
        return split.encoded
    return SampledPairs(
        split.pairs,
        run.source_tokenizer,
        run.target_tokenizer,
        run.recipe.bpe_dropout,
        run.recipe.seed,
        run.recipe.max_length,
    )


def fingerprint(encoded: EncodedPairs) -> str:
    """Returns the SHA-256 of the ids: other data, another fingerprint."""
    digest = hashlib.sha256()
    for side in (encoded.source, encoded.target):
        digest.update(side.row_lengths().numpy().tobytes())
        digest.update(side.values.numpy().tobytes())
    return digest.hexdigest()
