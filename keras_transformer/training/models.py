"""The models of a run: the new one that is trained, and the trained one."""

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import random
from collections.abc import Iterable, Iterator

import keras
import numpy as np

from keras_transformer.atomic_files import check_is_new, folder_aside
from keras_transformer.config import TransformerConfig
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.hardware import resolve_dtype_policy
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.model import Transformer
from keras_transformer.schedule import TransformerSchedule
from keras_transformer.training import checkpoints, lora
from keras_transformer.training.adam import Adam
from keras_transformer.training.recipe import Recipe
from keras_transformer.training.run import Run, write_run

TEACHERS = "teachers"  # folder in that of a run


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
    model.compile(
        Adam(
            make_schedule(config, recipe),
            beta_1=0.9,
            beta_2=0.98,
            epsilon=1e-9,
            global_clipnorm=recipe.global_clipnorm,
        )
    )
    model.optimizer.build(model.trainable_variables)
    return model


def make_schedule(
    config: TransformerConfig, recipe: Recipe
) -> TransformerSchedule:
    """Returns the learning rate of a recipe, section 5.3."""
    return TransformerSchedule(
        config.d_model, recipe.warmup_steps, recipe.learning_rate_scale
    )


@contextlib.contextmanager
def seeded_layers(seed: int) -> Iterator[None]:
    """Seeds the layers that are made in this context.

    Keras draws the seed of a layer from Python's `random`. Its state is
    restored, since it is the caller's.
    """
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)


def exact_policy() -> keras.DTypePolicy | str:
    """Returns Keras' policy, or "float32" where that would round weights."""
    policy = keras.config.dtype_policy()
    is_exact = policy.variable_dtype in ("float32", "float64")
    return policy if is_exact else "float32"


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
    model = Transformer(run.config, dtype=exact_policy())
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


def run_of_model(
    model: Transformer,
    folder: str | os.PathLike,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer | None = None,
    source: str = "en",
    target: str = "de",
    search: SearchSettings | None = None,
) -> Run:
    """Makes a run of a model that was trained in another way, such as by `fit`
    or on another backend.

    It is exported, scored on files of text, and fine-tuned as `initial_run` of
    another one. It has no training pairs, so it cannot be trained itself.

    Example:

    >>> from keras_transformer.training import load_model, open_run
    >>> demo = open_run("runs/demo")
    >>> model = load_model(demo)  # stands for yours
    >>> run = run_of_model(model, "runs/mine", demo.source_tokenizer)
    >>> load_model(run).count_params() == model.count_params()
    True

    Args:
        model: a trained `Transformer` from ids to ids.
        folder: folder of the new run, which must not exist.
        source_tokenizer: the vocabulary of the sources, a `Tokenizer`.
        target_tokenizer: that of the translations. Defaults to `None`, a
            shared vocabulary; then the same one may be given again.
        source, target: the languages. Default to "en" and "de".
        search: how translations are searched. Defaults to the paper's search.

    Returns:
        The `Run`.

    Raises:
        ValueError: if the folder exists, if the model is no `Transformer`,
            reads vectors, is quantized or has LoRA enabled, if a weight is not
            finite, or if a vocabulary is no `Tokenizer` or not as large as the
            model's.
    """
    if not isinstance(model, Transformer):
        raise ValueError(
            "A run's model is a `Transformer`. Received: "
            f"model={model!r}. Search another one by `beam_search`."
        )
    for tokenizer in (source_tokenizer, target_tokenizer):
        if tokenizer is not None and not isinstance(tokenizer, Tokenizer):
            raise ValueError(
                f"A vocabulary must be a `Tokenizer`. Received: {tokenizer!r}. "
                "Make one by `Tokenizer(bytes)` of a SentencePiece model."
            )
    folder, config = pathlib.Path(folder), model.config
    check_is_new(folder, "folder of a new run")
    if config.source_features is not None:
        raise ValueError(
            "A run translates text. Received: a model with "
            f"source_features={config.source_features}, which reads vectors. "
            "Search it by `beam_search` instead."
        )
    is_shared = config.shared_vocabulary
    if is_shared and target_tokenizer is not None:
        holds = target_tokenizer.has_pieces_of(source_tokenizer)
    else:
        holds = is_shared or target_tokenizer is not None
    if not holds:
        raise ValueError(
            "A model with two vocabularies needs a `target_tokenizer`, and one "
            "with a shared vocabulary has no other. Received: "
            f"shared_vocabulary={is_shared}, "
            f"target_tokenizer={target_tokenizer}"
        )
    target_tokenizer = target_tokenizer or source_tokenizer
    for side, tokenizer, size in (
        ("source", source_tokenizer, config.source_vocab_size),
        ("target", target_tokenizer, config.vocab_size),
    ):
        if size not in (None, tokenizer.vocab_size):
            raise ValueError(
                f"The {side} vocabulary must be the one that the model was "
                f"trained with. Received: {tokenizer.vocab_size:,} pieces, "
                f"and a model of {size:,}."
            )
    weights = checkpoints.weights_of(model)
    plain = checkpoints.weights_of(Transformer(config))
    if others := sorted(weights.keys() ^ plain.keys()):
        raise ValueError(
            "A run's model has plain matrices, without LoRA or quantization. "
            f"Received: {others[0]}. Take the model as it was before."
        )
    arrays = {
        f"weights/{name}": keras.ops.convert_to_numpy(weight).astype("float32")
        for name, weight in weights.items()
    }
    for name, value in arrays.items():
        if not np.isfinite(value).all():
            raise ValueError(
                f"The weights of a run must be finite. Received: {name} with "
                "NaN or infinity."
            )
    recipe = Recipe(
        corpus="",  # it is not trained on any
        source=source,
        target=target,
        vocab_size=target_tokenizer.vocab_size,
        shared_vocabulary=is_shared,
    )
    run = Run(
        folder,
        config,
        recipe,
        source_tokenizer,
        target_tokenizer,
        "",
        search or SearchSettings(),
    )
    with folder_aside(folder) as aside:
        write_trained(run, aside, arrays, "as it was given")
    return run


def write_trained(
    run: Run,
    folder: pathlib.Path,
    arrays: dict[str, np.ndarray],
    chosen: str,
):
    """Writes a run and its chosen weights to a folder, without a training.

    Args:
        run: the run.
        folder: the folder to write to, which is renamed to the run's later.
        arrays: of each weight, by the names of `checkpoints`.
        chosen: what `weights.npz` says of where they come from.
    """
    write_run(run, folder)
    written = dataclasses.replace(run, folder=folder)
    metadata = {"chosen": chosen, "val_bleu": None, "run": written.digest}
    checkpoints.write(written.weights, arrays, metadata)


def write_teachers(folder: pathlib.Path, models: Iterable[Transformer]):
    """Writes the teachers of a run into the run's folder, so that training can
    be resumed without the runs that they come from."""
    for i, model in enumerate(models):
        config = model.config.to_dict()
        path = folder / TEACHERS / str(i)
        checkpoints.save(path, model, step=0, config=config)


def load_teachers(run: Run) -> list[Transformer]:
    """Returns the teachers of a run in the dtype policy of the run.

    Raises:
        ValueError: if a teacher's file is damaged or missing.
    """
    if not run.recipe.teacher_weight:
        return []
    dtype = resolve_dtype_policy(run.recipe.dtype_policy)
    teachers = []
    for i in range(len(run.recipe.teachers or [run.recipe.initial_run])):
        path = run.folder / TEACHERS / str(i)
        metadata, arrays = checkpoints.newest_intact(path, checkpoints.read)
        config = TransformerConfig.from_dict(metadata["config"])
        model = Transformer(config, dtype=dtype)
        checkpoints.assign(model, arrays, with_optimizer=False)
        teachers.append(model)
    return teachers


def with_other_depth(
    model: Transformer, config: TransformerConfig, seed: int
) -> Transformer:
    """Returns a model with the weights of a trained one, but other numbers of
    layers.

    Encoder and decoder keep their first layers (Shleifer and Rush, 2020). The
    layers that a deeper one has besides are new.

    Args:
        model: the trained model.
        config: its config, except for `num_layers`, `num_encoder_layers`,
            `num_decoder_layers` and rates of dropout.
        seed: seed of the new layers.
    """
    with seeded_layers(seed):
        other = Transformer(config, seed=seed, dtype=exact_policy())
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
