"""Training: sections 5.2 to 5.4 of the paper."""

import dataclasses
import sys

import keras
import tensorflow as tf

from keras_transformer import checkpoints, evaluation
from keras_transformer.callbacks import (
    Checkpoint,
    StopAt,
    TokensPerSecond,
    TranslationQuality,
)
from keras_transformer.data.batches import (
    evaluation_batches,
    training_batches,
)
from keras_transformer.losses import (
    LabelSmoothedCrossEntropy,
    TokenAccuracy,
    TokenLoss,
)
from keras_transformer.model import Transformer
from keras_transformer.run import Recipe, Run, fingerprint
from keras_transformer.schedule import TransformerSchedule
from keras_transformer.translator import (
    SearchSettings,
    Translator,
    compiled,
    translate_lines,
)


def train(run: Run, steps: int, strategy=None, verbose=None):
    """Trains a run up to `steps` updates, from its newest checkpoint if any.

    One update sees the same loss and gradient on one device and on many: a
    sum over all real target tokens of the global batch, divided by their
    number.

    Args:
        run: from `start_run` or `open_run`.
        steps: updates in all, those before a restart included.
        strategy: a `tf.distribute` strategy. Defaults to `MirroredStrategy`
            on all GPUs, or one device if there are not two.
        verbose: as in `fit`. Defaults to a bar on a terminal, lines elsewhere.

    Returns:
        The trained `Transformer`.

    Raises:
        ValueError: if the training data is not what the run began with.
    """
    if steps < 1:
        raise ValueError(f"`steps` must be at least 1. Received: steps={steps}")
    recipe = run.recipe
    strategy = strategy or default_strategy()
    replicas = strategy.num_replicas_in_sync
    _, training = run.data(recipe.train_split)
    if fingerprint(training) != run.fingerprint:
        raise ValueError(
            f"The training data of {str(run.folder)!r} has changed since the "
            "run began. Restore the corpus, or start a new run."
        )
    pairs, validation = run.data(recipe.validation_split)
    keras.utils.set_random_seed(recipe.seed)
    with strategy.scope():
        model = Transformer(run.config, seed=recipe.seed)
        compile_model(model, recipe)
        done = 0
        if checkpoints.steps(run.checkpoints):
            done = checkpoints.restore_newest(run.checkpoints, model)
            print(f"Going on from step {done:,}.")
    if done >= steps:
        print(f"Nothing to do: the run has {done:,} of {steps:,} steps.")
        return model
    print(
        f"Training {model.count_params():,} parameters on {len(training):,} "
        f"pairs, {replicas} device{'s' if replicas > 1 else ''}, "
        f"steps {done + 1:,} to {steps:,}."
    )
    every = recipe.validate_every
    if verbose is None:
        verbose = 1 if sys.stdout.isatty() else 2
    model.fit(
        training_batches(
            training, recipe.tokens_per_batch, recipe.seed, replicas, done
        ),
        validation_data=evaluation_batches(
            validation, recipe.tokens_per_batch, replicas
        ),
        initial_epoch=done // every,
        epochs=-(-steps // every),
        steps_per_epoch=every,
        shuffle=False,  # the batches are
        verbose=verbose,
        callbacks=[
            StopAt(steps, done),
            TokensPerSecond(),
            TranslationQuality(run, pairs),
            Checkpoint(run.checkpoints, recipe.keep_checkpoints),
            keras.callbacks.TensorBoard(
                str(run.folder / "logs"), write_graph=False
            ),
        ],
    )
    return model


def compile_model(model: Transformer, recipe: Recipe):
    """Compiles as section 5 has it, and builds everything that `fit` would
    build from a batch averaged over the replicas, which is no batch of ids.
    """
    model.compile(
        optimizer=keras.optimizers.Adam(
            TransformerSchedule(
                model.config.d_model,
                recipe.warmup_steps,
                recipe.learning_rate_scale,
            ),
            beta_1=0.9,
            beta_2=0.98,
            epsilon=1e-9,
        ),
        loss=LabelSmoothedCrossEntropy(recipe.label_smoothing, reduction="sum"),
        metrics=[TokenLoss(), TokenAccuracy()],
    )
    ids = tf.ones((1, 1), tf.int32)
    logits = tf.zeros((1, 1, model.config.vocab_size))
    weights = tf.ones((1, 1))
    model.compute_loss(None, ids, logits, weights)
    model.compute_metrics(None, ids, logits, weights)
    model.reset_metrics()
    model.optimizer.build(model.trainable_variables)


def default_strategy() -> tf.distribute.Strategy:
    """`MirroredStrategy` over all GPUs, or the one device there is."""
    gpus = tf.config.list_logical_devices("GPU")
    if len(gpus) > 1:
        return tf.distribute.MirroredStrategy([gpu.name for gpu in gpus])
    return tf.distribute.get_strategy()


def evaluate(run: Run, model: Transformer, split: str) -> dict:
    """Scores a model on a split by the paper's search, and stores the result
    in the run's folder."""
    settings = SearchSettings()
    translate = compiled(
        Translator(model, run.source_tokenizer, run.target_tokenizer, settings)
    )
    pairs, _ = run.data(split)
    result = {
        **evaluation.score(
            translate_lines(translate, pairs.source), pairs.target
        ),
        "split": split,
        "step": int(keras.ops.convert_to_numpy(model.optimizer.iterations)),
        "search": dataclasses.asdict(settings),
    }
    evaluation.remember(run.folder, result)
    return result
