"""The start of a run: its settings are checked, its vocabulary is learned."""

import dataclasses
import os
import pathlib

from keras_transformer.config import TransformerConfig
from keras_transformer.data.corpus import remove_unusable
from keras_transformer.data.tokenizer import train_tokenizer
from keras_transformer.processor import resolve_dtype_policy
from keras_transformer.training.models import load_model
from keras_transformer.training.recipe import Recipe
from keras_transformer.training.run import Run, open_run, write_run
from keras_transformer.training.split import (
    encode_split,
    fingerprint,
    keep_splits,
    read_pairs,
)

# Fields of a config that may differ from the run whose weights are taken.
ONLY_IN_TRAINING = {
    "dropout_rate",
    "attention_dropout_rate",
    "activation_dropout_rate",
    "initializer_scale",
}


def start_run(
    folder: str | os.PathLike, preset: str, recipe: Recipe, **overrides: object
) -> Run:
    """Writes the folder of a new run, whole or not at all.

    Example:

    >>> from keras_transformer.training import Recipe
    >>> recipe = Recipe(corpus="corpus", vocab_size=300)
    >>> run = start_run("runs/first", "tiny", recipe, num_layers=2)
    train: 3 pairs; left out 0 blank and 0 longer than 256 word pieces.
    validation: 3 pairs; left out 0 blank and 0 longer than 256 word pieces.
    >>> run.config.num_layers, run.config.d_model
    (2, 128)

    The vocabulary is learned now; with `recipe.initial_run` it is that run's,
    whose weights are copied. The dtype policy "auto" is resolved now and kept
    as what it is on this machine, so that a run that is resumed elsewhere
    computes in the same dtype.

    Args:
        folder: folder of the new run, which must not exist.
        preset: name of a preset, see `TransformerConfig.preset`.
        recipe: how the run is trained, a `Recipe`.
        overrides: fields of the `TransformerConfig` to set to other values.

    Returns:
        The new `Run`.

    Raises:
        ValueError: if the folder exists, a preset, field or value is not
            known, the corpus cannot be read or has too little text for the
            vocabulary, or the initial run's model is another one.
        ConnectionError: if the corpus cannot be downloaded.
        OSError: if the disk has no space for the corpus.
    """
    folder = pathlib.Path(folder)
    if folder.exists():
        raise ValueError(
            "The folder of a new run must not exist. Received: "
            f"{str(folder)!r}. Go on with it by --resume, or name another."
        )
    # Wrong settings are to show before the corpus is read.
    config = TransformerConfig.preset(
        preset, vocab_size=recipe.vocab_size, **overrides
    )
    _check_positions(config, recipe)
    recipe = dataclasses.replace(
        recipe, dtype_policy=resolve_dtype_policy(recipe.dtype_policy)
    )
    initial = open_run(recipe.initial_run) if recipe.initial_run else None
    if initial:
        _check_fits(initial, config, recipe)
    if recipe.test_split:
        read_pairs(recipe, recipe.test_split)  # shows now whether it exists
    validation = read_pairs(recipe, recipe.validation_split)
    training = read_pairs(recipe, recipe.train_split)
    if initial:
        tokenizers = initial.source_tokenizer, initial.target_tokenizer
    else:
        tokenizers = _vocabularies(training, recipe)
    splits = {
        name: encode_split(pairs, name, *tokenizers, recipe.max_length)
        for name, pairs in (
            (recipe.train_split, training),
            (recipe.validation_split, validation),
        )
    }
    source, target = tokenizers
    config = TransformerConfig.preset(
        preset,
        vocab_size=target.vocab_size,
        source_vocab_size=(
            None if recipe.shared_vocabulary else source.vocab_size
        ),
        **overrides,
    )
    data_fingerprint = fingerprint(splits[recipe.train_split].encoded)
    run = Run(folder, config, recipe, source, target, data_fingerprint)
    write_run(run, initial and load_model(initial))
    keep_splits(run, splits)
    return run


def _check_positions(config, recipe):
    if config.positions == "learned" and config.max_length < recipe.max_length:
        raise ValueError(
            "A model has to learn a position for every piece of a sentence. "
            f"Received: max_length={config.max_length} of the model, "
            f"max_length={recipe.max_length} of the recipe. Make them equal."
        )


def _check_fits(initial, config, recipe):
    """Checks that the model of the initial run has the same weights."""

    def shape_of(config, recipe):
        shape = config.to_dict()
        del shape["source_vocab_size"]  # known when the vocabulary is
        return {**shape, "shared_vocabulary": recipe.shared_vocabulary}

    found = shape_of(config, recipe)
    for name, value in shape_of(initial.config, initial.recipe).items():
        if name not in ONLY_IN_TRAINING and found[name] != value:
            raise ValueError(
                "A run begins with the weights of one that has the same model. "
                f"Received: {name}={found[name]}, {str(initial.folder)!r} has "
                f"{value}. Make them equal."
            )


def _vocabularies(pairs, recipe):
    """Learns the vocabularies of source and target."""
    pairs, _ = remove_unusable(pairs)
    if recipe.shared_vocabulary:
        texts = [*pairs.source, *pairs.target]
        return (train_tokenizer(texts, recipe.vocab_size),) * 2
    return tuple(
        train_tokenizer(side, recipe.vocab_size)
        for side in (pairs.source, pairs.target)
    )
