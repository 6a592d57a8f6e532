"""A training run: a folder with everything that decides its outcome.

`run.json` holds the model's shape, the recipe, and fingerprints of the
training data and the vocabularies; beside it are the vocabularies
`source.model` and `target.model`, `initial/` with the weights of another run if
it began with these, `checkpoints/`, `log.jsonl`, the same as `logs/` for
TensorBoard and as `training.png`, `starts.jsonl` with a line of versions and
devices for each start of training, and in the end `weights.npz`, the weights
that were chosen.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import time

import numpy as np

import keras_transformer
from keras_transformer import checkpoints
from keras_transformer.atomic_files import sync_folder, write_aside
from keras_transformer.config import TransformerConfig
from keras_transformer.data.batches import EncodedPairs, encode_pairs
from keras_transformer.data.bpe_dropout import SampledPairs
from keras_transformer.data.corpus import (
    SentencePairs,
    load_pairs,
    remove_unusable,
)
from keras_transformer.data.tokenizer import Tokenizer, train_tokenizer
from keras_transformer.model import Transformer
from keras_transformer.processor import resolve_dtype_policy
from keras_transformer.recipe import Recipe

FORMAT = 1
# What may differ from the run whose weights are taken.
ONLY_IN_TRAINING = {
    "dropout_rate",
    "attention_dropout_rate",
    "activation_dropout_rate",
    "initializer_scale",
}


@dataclasses.dataclass
class Run:
    """A run's folder, opened: see `start_run` and `open_run`."""

    folder: pathlib.Path
    config: TransformerConfig
    recipe: Recipe
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    fingerprint: str | None = None  # of the training data
    loaded: dict = dataclasses.field(default_factory=dict, repr=False)

    @property
    def initial(self) -> pathlib.Path:
        return self.folder / "initial"

    @property
    def checkpoints(self) -> pathlib.Path:
        return self.folder / "checkpoints"

    @property
    def best_checkpoint(self) -> pathlib.Path:
        return self.checkpoints / "best.npz"

    @property
    def weights(self) -> pathlib.Path:
        return self.folder / "weights.npz"

    @property
    def digest(self) -> str:
        """What a checkpoint is marked with: another run, another digest."""
        return sha256((self.folder / "run.json").read_bytes())

    def data(self, split: str) -> tuple[SentencePairs, EncodedPairs]:
        """The pairs of a split without blank ones, and their word pieces
        without over-long ones; prints what was left out."""
        if split not in self.loaded:
            pairs, blank = remove_unusable(_load(self.recipe, split))
            longest = self.recipe.max_length
            encoded, long = encode_pairs(
                pairs, self.source_tokenizer, self.target_tokenizer, longest
            )
            print(
                f"{split}: {len(encoded):,} pairs; left out {blank:,} blank "
                f"and {long:,} longer than {longest} word pieces."
            )
            if not len(encoded):
                raise ValueError(
                    f"Split {split!r} has no pair left. Received: "
                    f"{blank} blank, {long} longer than max_length={longest}."
                )
            self.loaded[split] = pairs, encoded
        return self.loaded[split]

    def training_pairs(self) -> EncodedPairs | SampledPairs:
        """What is trained on, epoch by epoch."""
        pairs, encoded = self.data(self.recipe.train_split)
        if not self.recipe.bpe_dropout:
            return encoded
        return SampledPairs(
            pairs,
            self.source_tokenizer,
            self.target_tokenizer,
            self.recipe.bpe_dropout,
            self.recipe.seed,
            self.recipe.max_length,
        )

    def load_model(self) -> Transformer:
        """The model with the weights that were chosen at the end of training,
        or before that with those of the newest whole checkpoint."""
        model = Transformer(self.config)
        if self.weights.exists():
            checkpoints.restore(self.weights, model, with_optimizer=False)
        else:
            checkpoints.restore_newest(
                self.checkpoints, model, with_optimizer=False
            )
        return model


def start_run(folder, preset: str, recipe: Recipe, **overrides) -> Run:
    """Writes a new run's folder, whole or not at all. Its vocabulary is learned
    now, or with `recipe.initial_run` that run's, whose weights are copied. The
    dtype policy "auto" is resolved now and kept as what it is on this machine,
    so that a run that is resumed elsewhere computes in the same dtype.

    Args:
        folder: of the new run; must not exist.
        preset: of `TransformerConfig`; `overrides` are fields of it.
        recipe: a `Recipe`.

    Raises:
        ValueError: if the folder exists, an argument does not fit, or the
            initial run's model is another one.
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
    if config.positions == "learned" and config.max_length < recipe.max_length:
        raise ValueError(
            "A model has to learn a position for every piece of a sentence. "
            f"Received: max_length={config.max_length} of the model, "
            f"max_length={recipe.max_length} of the recipe. Make them equal."
        )
    recipe = dataclasses.replace(
        recipe, dtype_policy=resolve_dtype_policy(recipe.dtype_policy)
    )
    initial = open_run(recipe.initial_run) if recipe.initial_run else None
    if initial:
        _check_fits(initial, config, recipe)
    for split in filter(None, (recipe.validation_split, recipe.test_split)):
        _load(recipe, split)
    pairs, _ = remove_unusable(_load(recipe, recipe.train_split))
    if initial:
        source, target = initial.source_tokenizer, initial.target_tokenizer
    else:
        source, target = _vocabularies(pairs, recipe)
    config = TransformerConfig.preset(
        preset,
        vocab_size=target.vocab_size,
        source_vocab_size=(
            None if recipe.shared_vocabulary else source.vocab_size
        ),
        **overrides,
    )
    run = Run(folder, config, recipe, source, target)
    run.fingerprint = fingerprint(run.data(recipe.train_split)[1])
    run.data(recipe.validation_split)  # shows now whether there is any
    _write(run, initial)
    return run


def _vocabularies(pairs, recipe):
    if recipe.shared_vocabulary:
        texts = [*pairs.source, *pairs.target]
        return (train_tokenizer(texts, recipe.vocab_size),) * 2
    return tuple(
        train_tokenizer(side, recipe.vocab_size)
        for side in (pairs.source, pairs.target)
    )


def _check_fits(initial, config, recipe):
    def model(config, recipe):
        shape = config.to_dict()
        del shape["source_vocab_size"]  # known when the vocabulary is
        return {**shape, "shared_vocabulary": recipe.shared_vocabulary}

    found = model(config, recipe)
    for name, value in model(initial.config, initial.recipe).items():
        if name not in ONLY_IN_TRAINING and found[name] != value:
            raise ValueError(
                "A run begins with the weights of one that has the same model. "
                f"Received: {name}={found[name]}, {str(initial.folder)!r} has "
                f"{value}. Make them equal."
            )


def _load(recipe, split):
    return load_pairs(
        recipe.corpus, split, recipe.source, recipe.target, recipe.data_dir
    )


def _write(run, initial):
    aside = run.folder.with_name(f".{run.folder.name}.{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)  # of a process that was killed
    aside.mkdir(parents=True)
    try:
        about = {
            "format": FORMAT,
            "keras_transformer": keras_transformer.__version__,
            "transformer": run.config.to_dict(),
            "recipe": dataclasses.asdict(run.recipe),
            "source_vocabulary": sha256(run.source_tokenizer.model),
            "target_vocabulary": sha256(run.target_tokenizer.model),
            "training_data": run.fingerprint,
        }
        for name, data in (
            ("run.json", (json.dumps(about, indent=2) + "\n").encode()),
            ("source.model", run.source_tokenizer.model),
            ("target.model", run.target_tokenizer.model),
        ):
            with write_aside(aside / name) as file:
                file.write(data)
        if initial:
            checkpoints.save(aside / "initial", initial.load_model(), 0)
        os.rename(aside, run.folder)
        sync_folder(run.folder.parent)
    except BaseException:
        shutil.rmtree(aside)
        raise


def wait_for(folder, seconds: int = 24 * 3600):
    """Waits until a run's folder is there, which another worker starts.

    Raises:
        TimeoutError: if it does not come.
    """
    for _ in range(seconds):
        if pathlib.Path(folder, "run.json").exists():
            return
        time.sleep(1)
    raise TimeoutError(
        f"The first worker has not started {str(folder)!r} in {seconds} s. Is "
        "the folder on a file system that all workers share?"
    )


def open_run(folder) -> Run:
    """Opens the folder of a run that `start_run` wrote.

    Raises:
        ValueError: if it is no run, or its vocabulary was exchanged.
    """
    folder = pathlib.Path(folder)
    try:
        about = json.loads((folder / "run.json").read_text())
        models = [
            (folder / f"{side}.model").read_bytes()
            for side in ("source", "target")
        ]
    except FileNotFoundError as error:
        raise ValueError(
            f"Not the folder of a run: {str(folder)!r} has no "
            f"{os.path.basename(error.filename)}. Start one by "
            "`keras-transformer train`."
        ) from error
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{str(folder / 'run.json')!r} is damaged: {error}."
        ) from error
    if about.get("format") != FORMAT:
        raise ValueError(
            f"{str(folder)!r} has format {about.get('format')!r}, this version "
            f"reads format {FORMAT}. Install the version that wrote it: "
            f"{about.get('keras_transformer')}."
        )
    for side, model in zip(("source", "target"), models, strict=True):
        expected, found = about[f"{side}_vocabulary"], sha256(model)
        if found != expected:
            raise ValueError(
                f"{str(folder / f'{side}.model')!r} is not the vocabulary that "
                f"the run was trained with: expected SHA-256 {expected[:12]}…, "
                f"received {found[:12]}…. Put the original back."
            )
    return Run(
        folder,
        TransformerConfig.from_dict(about["transformer"]),
        Recipe(**about["recipe"]),
        *(Tokenizer(model) for model in models),
        about["training_data"],
    )


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def fingerprint(encoded: EncodedPairs) -> str:
    """SHA-256 of the ids: other data, another fingerprint."""
    digest = hashlib.sha256()
    for side in (encoded.source, encoded.target):
        digest.update(np.ascontiguousarray(side.row_lengths().numpy()))
        digest.update(np.ascontiguousarray(side.values.numpy()))
    return digest.hexdigest()
