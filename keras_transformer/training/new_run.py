"""Starts a run: checks settings, learns the vocabulary, writes the folder."""

import dataclasses
import os
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

import keras

from keras_transformer.atomic_files import check_is_new, folder_aside
from keras_transformer.config import TransformerConfig
from keras_transformer.data.corpus import (
    absolute,
    absolute_path,
    lacks_validation,
    remove_unusable,
)
from keras_transformer.data.options import CorpusSettings, Preparation
from keras_transformer.data.preparation import prepare, total_left_out
from keras_transformer.data.prepared_corpus import (
    PreparedCorpus,
    is_prepared,
    read_manifest,
)
from keras_transformer.hardware import resolve_dtype_policy
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.training import checkpoints
from keras_transformer.training.model_card import MODEL_CARD
from keras_transformer.training.models import (
    load_model,
    with_other_depth,
    write_teachers,
)
from keras_transformer.training.recipe import Recipe
from keras_transformer.training.run import (
    Run,
    open_run,
    write_run,
)
from keras_transformer.training.run_data import check_split, read_pairs
from keras_transformer.validation import check_argument

# Fields of a config that may differ from the run whose weights are taken.
ONLY_IN_TRAINING = {
    "dropout_rate",
    "attention_dropout_rate",
    "activation_dropout_rate",
    "initializer_scale",
}
DEPTH = {"num_layers", "num_encoder_layers", "num_decoder_layers"}

# Fields of a recipe that are settled when its corpus is prepared.
SETTLED = {
    "source",
    "target",
    "train_split",
    "validation_pairs",
    "vocab_size",
    "shared_vocabulary",
    "max_length",
}


def start_run(
    folder: str | os.PathLike,
    preset: str | None,
    recipe: Recipe,
    search: SearchSettings | None = None,
    **overrides: object,
) -> Run:
    """Writes the folder of a new run, whole or not at all.

    Example:

    >>> from keras_transformer.training import Recipe
    >>> recipe = Recipe(corpus="corpus", vocab_size=300)
    >>> run = start_run("runs/first", "tiny", recipe, num_layers=2)
    train: 3 pairs; left out: none.
    >>> run.config.num_layers, run.config.d_model
    (2, 128)

    The vocabulary is learned now; with `recipe.initial_run` it is that run's,
    whose weights are copied. The new run may have more or fewer layers: it
    begins with the first ones of the other. With `recipe.lora_rank`, too, these
    weights stay what they are, and the run trains and saves the factors of LoRA
    alone. With `recipe.teacher_weight`, the models of the teachers are copied.
    The dtype policy "auto" is resolved now and kept as what it is
    on this machine, so that a run that is resumed elsewhere computes in the
    same dtype. Paths of the recipe become absolute, so that a run can be
    resumed from any folder.

    Args:
        folder: folder of the new run, which must not exist.
        preset: name of a preset, see `TransformerConfig.preset`; or `None` for
            the shape and the vocabularies of `recipe.initial_run`.
        recipe: how the run is trained, a `Recipe`.
        search: how translations are searched when weights are chosen, and by
            default in exports. Defaults to that of the initial run, or else to
            the paper's, for sources of at least `recipe.max_length`.
        overrides: fields of the `TransformerConfig` to set to other values.
            With `positions="learned"`, as many positions are learned as
            `recipe.max_length` allows.

    Returns:
        The new `Run`.

    Raises:
        ValueError: if the folder exists, a preset, field or value is not
            known or belongs to the recipe, the corpus cannot be read or has
            too little text for the vocabulary, or the initial run's model is
            another one.
        ConnectionError: if the corpus cannot be downloaded.
        OSError: if the disk has no space for the corpus.
    """
    check_argument("recipe", recipe, Recipe, "Make one by `Recipe(...)`.")
    if search is not None:
        remedy = "Make them by `SearchSettings(...)`."
        check_argument("search", search, SearchSettings, remedy)
    folder = pathlib.Path(folder)
    check_is_new(
        folder,
        "folder of a new run",
        "Go on with it by --resume, in Python by `train(open_run(folder))`, or "
        "name another.",
    )
    recipe = dataclasses.replace(recipe, **absolute_paths(vars(recipe)))
    if is_prepared(recipe.corpus):
        recipe = _with_settings_of(recipe.corpus, recipe)
    initial = open_run(recipe.initial_run) if recipe.initial_run else None
    if preset is None:
        if initial is None:
            raise ValueError(
                "Without an initial run, a new run needs the name of a preset. "
                "Received: preset=None. Name a preset, such as 'tiny', or "
                "`recipe.initial_run`."
            )
        recipe = dataclasses.replace(
            recipe,
            vocab_size=initial.recipe.vocab_size,
            shared_vocabulary=initial.recipe.shared_vocabulary,
        )
    overrides = _without_vocabulary(overrides, None if preset else initial)
    if overrides.get("positions") == "learned":
        overrides = {"max_length": recipe.max_length, **overrides}
    # Validate before reading the corpus.
    config = _config(preset, initial, recipe, None, overrides)
    keras.activations.get(config.activation)
    _check_positions(config, recipe)
    recipe = dataclasses.replace(
        recipe, dtype_policy=resolve_dtype_policy(recipe.dtype_policy)
    )
    if initial:
        _check_fits(initial, config, recipe)
        tokenizers = initial.source_tokenizer, initial.target_tokenizer
        _check_bpe_dropout(recipe, *tokenizers)
    held_out = _holds_out(recipe)
    splits = [] if held_out else [recipe.validation_split]
    if recipe.test_split:
        splits.append(recipe.test_split)
    for split in splits:
        _check_split(recipe, split)
    with folder_aside(folder) as aside:
        pairs = _training_pairs(recipe, aside / "data", initial, held_out)
        source, target = pairs.source_tokenizer, pairs.target_tokenizer
        if not is_prepared(recipe.corpus):
            made = pairs.manifest["settings"]
            names = "vocab_size", "validation_pairs"
            recipe = dataclasses.replace(recipe, **{n: made[n] for n in names})
        _check_bpe_dropout(recipe, source, target)
        config = _config(preset, initial, recipe, pairs, overrides)
        if search is None:
            search = initial.search if initial else SearchSettings()
            longest = max(search.max_source_length, recipe.max_length)
            search = dataclasses.replace(search, max_source_length=longest)
        run = Run(folder, config, recipe, source, target, pairs.digest, search)
        for split in splits:
            check_split(run, split)
        write_run(run, aside)
        if recipe.teacher_weight:
            write_teachers(aside, _teachers(recipe, run))
        if initial:
            model = load_model(initial)
            if _depths(config) != _depths(initial.config):
                model = with_other_depth(model, config, recipe.seed)
            checkpoints.save(aside / "initial", model, step=0)
            if (initial.folder / MODEL_CARD).exists():
                shutil.copyfile(initial.folder / MODEL_CARD, aside / MODEL_CARD)
    return run


def _teachers(recipe, run):
    """Yields the models whose predictions a new run learns."""
    for folder in recipe.teachers or [recipe.initial_run]:
        teacher = open_run(folder)
        for side in ("source_tokenizer", "target_tokenizer"):
            if getattr(teacher, side).model != getattr(run, side).model:
                raise ValueError(
                    "A teacher must have the vocabularies of the run. "
                    f"Received: {folder!r}, whose {side} is another one. "
                    "Prepare the corpus by `keras-transformer prepare "
                    "--vocabulary-of TEACHER`."
                )
        yield load_model(teacher)


def _holds_out(recipe):
    """Returns whether pairs are held out of training for validation."""
    return not is_prepared(recipe.corpus) and (
        recipe.validation_pairs is not None
        or lacks_validation(recipe.corpus, recipe)
    )


def absolute_paths(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those settings of a recipe that are paths, made absolute."""
    paths = {
        "corpus": absolute,
        "initial_run": absolute_path,
        "data_dir": absolute_path,
    }
    found = {
        name: made_absolute(settings[name])
        for name, made_absolute in paths.items()
        if settings.get(name)
    }
    if teachers := settings.get("teachers"):
        found["teachers"] = tuple(map(absolute_path, teachers))
    return found


def _depths(config):
    return config.encoder_depth, config.decoder_depth


def _config(preset, initial, recipe, pairs, overrides):
    """Returns the config of a run, as far as it is known before there are
    `pairs` with their vocabularies."""
    if preset is None:
        values = initial.config.to_dict()
        if "num_layers" in overrides:  # in the encoder and in the decoder
            values.update(num_encoder_layers=None, num_decoder_layers=None)
        return TransformerConfig.from_dict({**values, **overrides})
    sizes = {"vocab_size": recipe.vocab_size}
    if pairs:
        source, target = pairs.source_tokenizer, pairs.target_tokenizer
        sizes["vocab_size"] = target.vocab_size
        if not recipe.shared_vocabulary:
            sizes["source_vocab_size"] = source.vocab_size
    return TransformerConfig.preset(preset, **sizes, **overrides)


def _without_vocabulary(overrides, initial):
    """Returns the overrides without the fields that the vocabularies of recipe
    or initial run determine, after a check."""
    fields = ("vocab_size", "source_vocab_size", "source_features")
    for name in overrides.keys() & fields:
        kept = getattr(initial.config, name) if initial else None
        if overrides[name] != kept:
            raise ValueError(
                "A run has the vocabularies of its recipe or of its initial "
                f"run. Received: {name}={overrides[name]!r}. Leave it out; a "
                "recipe has `vocab_size` and `shared_vocabulary`."
            )
    return {n: value for n, value in overrides.items() if n not in fields}


def _with_settings_of(corpus, recipe):
    """Returns the recipe with what was settled when a corpus was prepared."""
    kept = read_manifest(corpus)["settings"]
    fields = [
        f for f in dataclasses.fields(CorpusSettings) if f.name in SETTLED
    ]
    values = {field.name: getattr(recipe, field.name) for field in fields}
    check_settled(
        corpus,
        {f.name: values[f.name] for f in fields if values[f.name] != f.default},
    )
    return dataclasses.replace(recipe, **{n: kept.get(n) for n in values})


def check_settled(corpus: str, settings: dict[str, object]):
    """Checks that settings are those that a prepared corpus has.

    Raises:
        ValueError: if one that was settled when it was prepared differs.
    """
    kept = read_manifest(corpus)["settings"]
    for name in settings.keys() & SETTLED:
        if settings[name] != (found := kept.get(name)):
            raise ValueError(
                "A prepared corpus keeps its settings. Received: "
                f"{name}={settings[name]!r}, {corpus!r} has {found!r}. "
                "Leave it out, or prepare the corpus again."
            )


def check_vocabulary(initial: Run, settings: dict[str, object]):
    """Checks that settings are those of the vocabularies of an initial run.

    Raises:
        ValueError: if one of them differs.
    """
    for name in ("vocab_size", "shared_vocabulary"):
        kept = getattr(initial.recipe, name)
        if settings.get(name, kept) != kept:
            raise ValueError(
                "A run keeps the vocabulary of its initial run. Received: "
                f"{name}={settings[name]!r}, {str(initial.folder)!r} has "
                f"{kept!r}. Leave it out."
            )


def _training_pairs(recipe, folder, initial, held_out):
    """Opens the prepared pairs of a recipe, or prepares them in a folder."""
    tokenizers = initial and (
        initial.source_tokenizer,
        initial.target_tokenizer,
    )
    if not is_prepared(recipe.corpus):
        fields = dataclasses.fields(CorpusSettings)
        settings = {field.name: getattr(recipe, field.name) for field in fields}
        pairs = prepare(
            recipe.corpus,
            folder,
            Preparation(**settings),
            tokenizers=tokenizers,
            # A split that the corpus has is loaded as text.
            evaluation={"validation": recipe.corpus} if held_out else {},
        )
        print(
            f"{recipe.train_split}: {len(pairs):,} pairs; left out: "
            f"{total_left_out(pairs.manifest)}."
        )
        return pairs
    pairs = PreparedCorpus(recipe.corpus)
    found = pairs.source_tokenizer, pairs.target_tokenizer
    if initial and [t.model for t in tokenizers] != [t.model for t in found]:
        raise ValueError(
            "A run keeps the vocabulary of its initial run. Received: corpus="
            f"{recipe.corpus!r}, which was prepared with another vocabulary "
            f"than that of {str(initial.folder)!r}. Prepare it by "
            "`keras-transformer prepare --vocabulary-of RUN`."
        )
    return pairs


def _check_positions(config, recipe):
    if config.positions == "learned" and config.max_length < recipe.max_length:
        raise ValueError(
            "A model has to learn a position for every piece of a sentence. "
            f"Received: max_length={config.max_length} of the model, "
            f"max_length={recipe.max_length} of the recipe. Make them equal."
        )


def _check_split(recipe, split):
    """Checks now what would be noticed after the vocabulary is learned."""
    pairs, blank = remove_unusable(read_pairs(recipe, split))
    if not len(pairs):
        raise ValueError(
            f"Split {split!r} has no pair to translate. Received: {blank} "
            "blank ones. Look at its files, or name another split."
        )


def _check_bpe_dropout(recipe, *tokenizers):
    if recipe.bpe_dropout and not all(t.allows_bpe_dropout for t in tokenizers):
        raise ValueError(
            "BPE-dropout needs a vocabulary that `train` or `prepare` learned, "
            "or another of byte pairs with pieces for bytes and none that a "
            f"user has defined. Received: bpe_dropout={recipe.bpe_dropout} and "
            "a vocabulary of another kind. Leave out BPE-dropout."
        )


def _check_fits(initial, config, recipe):
    """Checks that the model of the initial run has the same weights."""

    def shape_of(config, recipe):
        shape = config.to_dict()
        del shape["source_vocab_size"]  # known when the vocabulary is
        return {**shape, "shared_vocabulary": recipe.shared_vocabulary}

    may_differ = ONLY_IN_TRAINING | (set() if recipe.lora_rank else DEPTH)
    found = shape_of(config, recipe)
    for name, value in shape_of(initial.config, initial.recipe).items():
        if name not in may_differ and found[name] != value:
            raise ValueError(
                "A run begins with the weights of one that has the same model. "
                f"Received: {name}={found[name]}, {str(initial.folder)!r} has "
                f"{value}. Make them equal."
            )
