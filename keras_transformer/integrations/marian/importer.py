"""Imports Marian models, such as those of OPUS-MT, as runs.

A run that was imported is exported, scored and fine-tuned like one that was
trained here.
"""

import dataclasses
import os
import pathlib
import re
import shutil

import numpy as np

from keras_transformer.atomic_files import check_is_new, folder_aside
from keras_transformer.config import TransformerConfig
from keras_transformer.data import sentencepiece_file
from keras_transformer.data.sentencepiece_file import rule_of
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.integrations.marian import model_files, npz_file
from keras_transformer.integrations.marian.model_files import Checkpoint
from keras_transformer.integrations.marian.vocabulary import (
    rows_in_our_order,
    sentencepiece_model,
)
from keras_transformer.integrations.marian.weights import (
    LOGITS_BIAS,
    our_weights,
    tables,
)
from keras_transformer.training.model_card import MODEL_CARD
from keras_transformer.training.models import write_trained
from keras_transformer.training.recipe import Recipe
from keras_transformer.training.run import Run
from keras_transformer.validation import shown

NEWER_MODEL = "(?i)opus-?mt-tc|opustc"
ACTIVATIONS = {
    "swish": "silu",
    "silu": "silu",
    "relu": "relu",
    "gelu": "gelu",
}


def import_marian(
    source: str | os.PathLike,
    folder: str | os.PathLike,
    clean_sources: bool = True,
) -> Run:
    """Imports a Marian model as a run, whole or not at all.

    OPUS-MT prepared the text of its models by scripts of Moses. The run keeps
    which of them, and its exports clean sources in the same way: a model of the
    older generation by `replace_punctuation` and `normalize_punctuation`, one
    of the newer, whose name begins with "opus-mt-tc", by the former alone. The
    file `preprocess.sh`, where there is one, decides instead.

    Example:

    >>> run = import_marian("opus-mt-en-de", "runs/opus-mt-en-de")
    Sources are cleaned as in the model's training; --uncleaned, or \
`clean_sources=False`, gives the ids of MarianTokenizer.
    Licence: mit; the model card is in runs/opus-mt-en-de/MODEL_CARD.md.
    >>> run.search.length_penalty, run.search.beam_size
    ('power', 4)

    Args:
        source: a folder as the Hugging Face hub has it (`config.json`,
            `model.safetensors` or `pytorch_model.bin`, `source.spm`,
            `target.spm`, `vocab.json` and more), a folder of the original
            Marian (`decoder.yml`, weights in `.npz`, vocabularies), or the
            name of a model on the hub, such as "Helsinki-NLP/opus-mt-en-fr".
        folder: folder of the new run, which must not exist.
        clean_sources: whether to clean sources as in the model's training.
            Otherwise their ids are those of transformers' `MarianTokenizer`,
            which leaves it out. Defaults to True.

    Returns:
        The `Run`.

    Raises:
        ValueError: if the folder exists, or if `source` is no Marian model, is
            damaged, or has parts that this package does not know.
        ConnectionError: if the model has to be downloaded and cannot.
    """
    folder = pathlib.Path(folder)
    check_is_new(folder, "folder of a new run")
    files = model_files.find(source)
    reader = npz_file if npz_file.is_original(files) else model_files
    try:
        checkpoint = reader.read(files)
        search = dataclasses.replace(
            checkpoint.search, recase_capitals=clean_sources
        )
        checkpoint = dataclasses.replace(checkpoint, search=search)
        if clean_sources:
            checkpoint = _with_cleaning(checkpoint, source, files)
        with folder_aside(folder) as aside:
            run = _write(checkpoint, folder, aside)
            _keep_model_card(files, folder, aside)
    except ValueError as error:
        raise ValueError(f"Cannot import {str(source)!r}: {error}") from error
    return run


def _with_cleaning(checkpoint: Checkpoint, source, files) -> Checkpoint:
    """Returns the checkpoint with sources cleaned as they were in training."""
    if rule_of(sentencepiece_file.parse(checkpoint.sides[0].model)):
        return checkpoint  # an export of this package, with a rule of ours
    script = files / "preprocess.sh"
    if script.is_file():
        lines = script.read_text("utf-8", "replace").splitlines()
        steps = "\n".join(x for x in lines if not x.lstrip().startswith("#"))
        # Later scripts have the replacements themselves.
        replaces = "replace-unicode-punctuation" in steps or "s/，/" in steps
        normalizes = "normalize-punctuation" in steps
    elif npz_file.is_original(files):
        return checkpoint  # Marian itself has no such steps
    else:
        names = ("config.json", "tokenizer_config.json", "README.md")
        texts = [
            (files / name).read_text("utf-8", "replace")
            for name in names
            if (files / name).is_file()
        ]
        is_newer = re.search(NEWER_MODEL, " ".join([str(source), *texts]))
        replaces, normalizes = True, not is_newer
    language = checkpoint.languages[0] if normalizes else None
    if replaces or normalizes:
        print(
            "Sources are cleaned as in the model's training; --uncleaned, or "
            "`clean_sources=False`, gives the ids of MarianTokenizer."
        )
    search = dataclasses.replace(
        checkpoint.search,
        replace_punctuation=replaces,
        normalize_punctuation=language,
    )
    return dataclasses.replace(checkpoint, search=search)


def _write(checkpoint: Checkpoint, folder, aside) -> Run:
    """Writes a run to the folder `aside`, which will be called `folder`."""
    sizes = [len(side.pieces) for side in checkpoint.sides]
    rows = [
        rows_in_our_order(size, side.special)
        for size, side in zip(sizes, checkpoint.sides, strict=True)
    ]
    for size, side, table in zip(
        sizes, ("source", "target"), tables(checkpoint.weights), strict=False
    ):
        if table.ndim == 2 and len(table) != size:
            raise ValueError(
                f"The {side} vocabulary must have one piece for each row of "
                f"the embeddings. Received: {size:,} pieces, {len(table):,} "
                "rows."
            )
    source, target = (
        Tokenizer(sentencepiece_model(side.model, side.pieces, side.special))
        for side in checkpoint.sides
    )
    config = _config(checkpoint, *rows)
    recipe = Recipe(
        corpus="",  # it is not trained on any
        source=checkpoint.languages[0],
        target=checkpoint.languages[1],
        vocab_size=target.vocab_size,
        shared_vocabulary=config.shared_vocabulary,
    )
    run = Run(folder, config, recipe, source, target, "", checkpoint.search)
    weights = our_weights(checkpoint.weights, config, *rows)
    write_trained(run, aside, weights, "imported")
    return run


def _config(checkpoint, source_rows, target_rows):
    """Returns the config of a checkpoint's model, by what its weights are."""
    source, target, projection = tables(checkpoint.weights)
    # Two vocabularies may have the same table in another order.
    is_shared = source_rows == target_rows and _is_same(source, target)
    return TransformerConfig.from_dict(
        {
            "vocab_size": len(target_rows),
            "source_vocab_size": None if is_shared else len(source_rows),
            "positions": "sinusoidal_halves",
            "tie_projection": _is_same(target, projection),
            "use_logits_bias": LOGITS_BIAS in checkpoint.weights,
            "layer_norm_epsilon": checkpoint.epsilon,
            **checkpoint.shape,
            "activation": _activation(checkpoint.shape["activation"]),
        }
    )


def _activation(name):
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise ValueError(
            f"The activation must be one of {', '.join(ACTIVATIONS)}. "
            f"Received: {shown(name)}"
        )
    return ACTIVATIONS[name]


def _is_same(one, other):
    return one is other or np.array_equal(one, other)


def _keep_model_card(files, folder, aside):
    """Copies the model card, which has the licence, and prints the licence."""
    card = files / "README.md"
    if not card.is_file():
        print("Licence: unknown, for there is no model card (README.md).")
        return
    shutil.copyfile(card, aside / MODEL_CARD)
    found = re.search(
        r"(?m)^license: *([!-~]{1,100})$", card.read_text("utf-8", "replace")
    )
    print(
        f"Licence: {found[1] if found else 'not named'}; the model card is in "
        f"{folder / MODEL_CARD}."
    )
