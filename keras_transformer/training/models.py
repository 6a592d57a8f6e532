"""The models of a run: the new one that is trained, and the trained one."""

import hashlib
import pathlib

import keras

from keras_transformer.config import TransformerConfig
from keras_transformer.model import Transformer
from keras_transformer.processor import resolve_dtype_policy
from keras_transformer.schedule import TransformerSchedule
from keras_transformer.training import checkpoints, lora
from keras_transformer.training.adam import Adam
from keras_transformer.training.recipe import Recipe
from keras_transformer.training.run import Run

TEACHER = "teacher"  # folder in that of a run


def make_model(config: TransformerConfig, recipe: Recipe) -> Transformer:
    """Returns a new model, compiled with the optimizer of section 5.3.

    Example:

    >>> from keras_transformer import TransformerConfig
    >>> from keras_transformer.training import Recipe
    >>> config = TransformerConfig.preset("tiny", vocab_size=99, num_layers=1)
    >>> model = make_model(config, Recipe(warmup_steps=2000))
    >>> model.optimizer.beta_1, model.optimizer.beta_2
    (0.9, 0.98)

    Args:
        config: the shape of the model, a `TransformerConfig`.
        recipe: a `Recipe`, of which the seed, the dtype policy, the rank of
            LoRA and the optimizer's settings are used.

    Returns:
        A `Transformer`, whose optimizer is built.

    Raises:
        ValueError: if this machine cannot compute in the dtype policy.
    """
    dtype = resolve_dtype_policy(recipe.dtype_policy)
    model = Transformer(config, seed=recipe.seed, dtype=dtype)
    if recipe.lora_rank:
        lora.enable(model, recipe.lora_rank, recipe.seed)
    schedule = TransformerSchedule(
        config.d_model, recipe.warmup_steps, recipe.learning_rate_scale
    )
    model.compile(
        Adam(
            schedule,
            beta_1=0.9,
            beta_2=0.98,
            epsilon=1e-9,
            global_clipnorm=recipe.global_clipnorm,
        )
    )
    model.optimizer.build(model.trainable_variables)
    return model


def load_model(run: Run) -> Transformer:
    """Returns the model of a run with the weights that were chosen at the end
    of training, or before that with those of the newest intact checkpoint.

    Example:

    >>> import numpy as np
    >>> from keras_transformer.training import open_run
    >>> model = load_model(open_run("runs/demo"))
    >>> tuple(model.encode(np.array([[5, 7, 3]])).shape)
    (1, 3, 32)

    Args:
        run: an open `Run` with at least one checkpoint.

    Returns:
        The `Transformer`, not compiled.

    Raises:
        ValueError: if there is no intact checkpoint, or the chosen weights
            are damaged.
    """
    model = Transformer(run.config)
    if run.weights.exists():
        checkpoints.restore(run.weights, model, with_optimizer=False)
    elif run.recipe.lora_rank:
        weights = checkpoints.newest_intact(
            run.checkpoints, lora.weights_reader(run, model)
        )
        checkpoints.assign(model, weights, with_optimizer=False)
    else:
        checkpoints.restore_newest(run.checkpoints, model, with_optimizer=False)
    return model


def write_teacher(folder: pathlib.Path, model: Transformer):
    """Writes the teacher of a run into the run's folder, so that training can
    be resumed without the run that it comes from."""
    config = model.config.to_dict()
    checkpoints.save(folder / TEACHER, model, step=0, config=config)


def load_teacher(run: Run) -> Transformer | None:
    """Returns the teacher of a run in the dtype policy of the run, or `None`
    if it has none.

    Raises:
        ValueError: if the teacher's file is damaged or missing.
    """
    if not run.recipe.teacher_weight:
        return None
    metadata, arrays = checkpoints.newest_intact(
        run.folder / TEACHER, checkpoints.read
    )
    config = TransformerConfig.from_dict(metadata["config"])
    dtype = resolve_dtype_policy(run.recipe.dtype_policy)
    model = Transformer(config, dtype=dtype)
    checkpoints.assign(model, arrays, with_optimizer=False)
    return model


def with_other_depth(
    model: Transformer, config: TransformerConfig, seed: int
) -> Transformer:
    """Returns a model with the weights of a trained one, but other numbers of
    layers.

    Encoder and decoder keep their first layers (Shleifer and Rush, 2020). The
    layers that a deeper one has besides are new.

    Example:

    >>> import dataclasses
    >>> from keras_transformer.training import load_model, open_run
    >>> model = load_model(open_run("runs/demo"))
    >>> config = dataclasses.replace(model.config, num_decoder_layers=1)
    >>> len(with_other_depth(model, config, seed=1).decoder_layers)
    1

    Args:
        model: the trained model.
        config: its config, but for `num_layers`, `num_encoder_layers`,
            `num_decoder_layers` and rates of dropout.
        seed: seed of the new layers, to which all random numbers are reset.
    """
    keras.utils.set_random_seed(seed)
    other = Transformer(config, seed=seed)
    for stack in ("encoder_layers", "decoder_layers"):
        pairs = zip(getattr(other, stack), getattr(model, stack), strict=False)
        for layer, trained in pairs:
            layer.set_weights(trained.get_weights())
    for name in (
        "source_embedding",
        "target_embedding",
        "encoder_norm",
        "decoder_norm",
    ):
        if trained := getattr(model, name):
            getattr(other, name).set_weights(trained.get_weights())
    return other


def digest(model: keras.Model) -> str:
    """Returns the SHA-256 of a model's weights, which names its training."""
    sha = hashlib.sha256()
    for weight in model.get_weights():
        sha.update(weight.tobytes())
    return sha.hexdigest()
