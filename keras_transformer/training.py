"""Training: sections 5.2 to 5.4 of the paper."""

import collections
import contextlib
import dataclasses
import signal
import sys
import threading
import time

import keras
import tensorflow as tf

from keras_transformer import checkpoints, evaluation
from keras_transformer.callbacks import (
    Checkpoint,
    TranslationQuality,
)
from keras_transformer.data.batches import (
    Cut,
    evaluation_batches,
    training_batches,
)
from keras_transformer.model import Transformer
from keras_transformer.optimizer import Adam
from keras_transformer.run import Recipe, Run, fingerprint
from keras_transformer.schedule import TransformerSchedule
from keras_transformer.training_step import (
    make_evaluation_step,
    make_training_step,
)
from keras_transformer.translator import (
    SearchSettings,
    Translator,
    compiled,
    translate_lines,
)


class Terminated(Exception):
    """Training was asked to stop by SIGTERM, and has saved its state."""


def train(run: Run, steps: int, strategy=None, verbose=None, callbacks=()):
    """Trains a run up to `steps` updates, from its newest checkpoint if any.

    One update sees the same loss and gradient however its batch is cut, over
    devices, machines, and parts that follow one another: a sum over all real
    target tokens of the batch, divided by their number.

    Args:
        run: from `start_run` or `open_run`.
        steps: updates in all, those before a restart included.
        strategy: a `tf.distribute` strategy. Defaults to `default_strategy()`.
        verbose: as in `fit`. Defaults to a bar on a terminal, lines elsewhere.
        callbacks: Keras callbacks. An epoch of theirs is `validate_every`
            steps.

    Returns:
        The trained `Transformer`.

    Raises:
        ValueError: if the training data is not what the run began with.
        Terminated: after SIGTERM, with all state saved.
    """
    if steps < 1:
        raise ValueError(f"`steps` must be at least 1. Received: steps={steps}")
    recipe = run.recipe
    strategy = strategy or default_strategy()
    cut = cut_for(strategy, recipe.gradient_accumulation_steps)
    _, training = run.data(recipe.train_split)
    if fingerprint(training) != run.fingerprint:
        raise ValueError(
            f"The training data of {str(run.folder)!r} has changed since the "
            "run began. Restore the corpus, or start a new run."
        )
    pairs, validation = run.data(recipe.validation_split)
    keras.utils.set_random_seed(recipe.seed)
    with strategy.scope():
        model = make_model(run.config, recipe)
        done = 0
        if checkpoints.steps(run.checkpoints):
            done = checkpoints.restore_newest(run.checkpoints, model)
            print(f"Going on from step {done:,}.")
    if done >= steps:
        print(f"Nothing to do: the run has {done:,} of {steps:,} steps.")
        return model
    replicas = strategy.num_replicas_in_sync
    print(
        f"Training {model.count_params():,} parameters on {len(training):,} "
        f"pairs, {replicas} device{'s' if replicas > 1 else ''}, "
        f"steps {done + 1:,} to {steps:,}."
    )
    if verbose is None:
        verbose = 1 if sys.stdout.isatty() else 2
    loop = Loop(model, recipe, strategy)
    loop.fit(
        training_batches(
            run.training_pairs,
            recipe.tokens_per_batch,
            recipe.seed,
            cut,
            first_batch=done,
        ),
        evaluation_batches(validation, recipe.tokens_per_batch, cut),
        done,
        steps,
        keras.callbacks.CallbackList(
            [
                TranslationQuality(run, pairs),
                Checkpoint(run.checkpoints, recipe.keep_checkpoints),
                *callbacks,
            ],
            add_history=True,
            add_progbar=verbose != 0,
            verbose=verbose,
            epochs=-(-steps // recipe.validate_every),
            steps=recipe.validate_every,
            model=model,
        ),
    )
    return model


class Loop:
    """Steps and validations in turn, with Keras callbacks around them.

    It stands in for `fit`, which on several machines does not run and which
    weighs batches by their rows, not by their tokens.

    Args:
        model: from `make_model`, under `strategy`.
        recipe: a `Recipe`.
        strategy: a `tf.distribute` strategy.
    """

    def __init__(self, model, recipe, strategy):
        self.model = model
        self.every = recipe.validate_every
        self.strategy = strategy
        settings = model, recipe.label_smoothing, strategy
        self.training_step = make_training_step(*settings)
        self.evaluation_step = make_evaluation_step(*settings)

    def fit(self, training, validation, done, steps, callbacks):
        """Runs the steps `done + 1` to `steps`, or up to where a callback
        sets `model.stop_training`.

        Args:
            training, validation: data sets of this worker's pieces.
            done: steps before.
            steps: steps in all.
            callbacks: a `keras.callbacks.CallbackList`.

        Raises:
            Terminated: after SIGTERM on any worker, on all of them.
        """
        batches = iter(self._distributed(training))
        self.model.stop_training = False
        callbacks.on_train_begin()
        logs = {}
        with _sigterm() as terminated:
            while done < steps and not self.model.stop_training:
                epoch = done // self.every
                callbacks.on_epoch_begin(epoch)
                means, began = _Means(), time.perf_counter()
                for step in range(done, min(steps, (epoch + 1) * self.every)):
                    batch = step % self.every
                    callbacks.on_train_batch_begin(batch)
                    stop = tf.constant(float(terminated.is_set()))
                    logs = means.add(self.training_step(batches, stop))
                    seconds = time.perf_counter() - began
                    logs["tokens/s"] = round(means.sums["tokens"] / seconds)
                    done += 1
                    callbacks.on_train_batch_end(batch, logs)
                    if means.sums["stop"]:
                        callbacks.on_train_end(logs)
                        raise Terminated(f"Stopped after step {done:,}.")
                    if self.model.stop_training:
                        break
                rate = self.model.optimizer.learning_rate
                logs["learning_rate"] = float(tf.convert_to_tensor(rate))
                for name, value in self.evaluate(validation).items():
                    logs[f"val_{name}"] = value
                callbacks.on_epoch_end(epoch, logs)
        callbacks.on_train_end(logs)

    def evaluate(self, batches) -> dict[str, float]:
        """`loss` and `nll`, its unsmoothed part, per real target token."""
        iterator = iter(self._distributed(batches))
        means, logs = _Means(), {}
        try:
            while True:
                logs = means.add(self.evaluation_step(iterator))
        except tf.errors.OutOfRangeError:
            return logs

    def _distributed(self, dataset):
        return self.strategy.distribute_datasets_from_function(
            lambda _: dataset
        )


class _Means:
    """Means over tokens of what the steps sum up."""

    def __init__(self):
        self.sums = collections.Counter()

    def add(self, sums) -> dict[str, float]:
        self.sums.update({name: float(x) for name, x in sums.items()})
        tokens = max(self.sums["tokens"], 1)
        return {name: self.sums[name] / tokens for name in ("loss", "nll")}


@contextlib.contextmanager
def _sigterm():
    """An event that is set by SIGTERM instead of the end of the process."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = signal.signal(signal.SIGTERM, lambda *_: event.set())
    try:
        yield event
    finally:
        signal.signal(signal.SIGTERM, before)


def make_model(config, recipe: Recipe) -> Transformer:
    """The model and its optimizer as section 5 has them."""
    model = Transformer(config, seed=recipe.seed, dtype=recipe.dtype_policy)
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


def default_strategy() -> tf.distribute.Strategy:
    """`MultiWorkerMirroredStrategy` where `TF_CONFIG` names several workers,
    `MirroredStrategy` over several GPUs, or the one device there is.

    To be called before TensorFlow does anything else where there are workers.
    """
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if len(cluster.cluster_spec().as_dict().get("worker", ())) > 1:
        return tf.distribute.MultiWorkerMirroredStrategy()
    gpus = tf.config.list_logical_devices("GPU")
    if len(gpus) > 1:
        return tf.distribute.MirroredStrategy([gpu.name for gpu in gpus])
    return tf.distribute.get_strategy()


def cut_for(strategy, parts: int = 1) -> Cut:
    """How batches are cut for this worker of a strategy."""
    worker, workers = worker_of(strategy)
    return Cut(
        workers, worker, strategy.num_replicas_in_sync // workers, parts
    )


def worker_of(strategy) -> tuple[int, int]:
    """The number of this worker, and how many there are."""
    cluster = strategy.cluster_resolver
    workers = cluster.cluster_spec().as_dict().get("worker", ()) if cluster else ()
    return (cluster.task_id, len(workers)) if len(workers) > 1 else (0, 1)


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
            translate_lines(translate, pairs.source),
            pairs.target,
            run.recipe.bleu_tokenizer,
        ),
        "split": split,
        "step": int(keras.ops.convert_to_numpy(model.optimizer.iterations)),
        "search": dataclasses.asdict(settings),
    }
    evaluation.remember(run.folder, result)
    return result
