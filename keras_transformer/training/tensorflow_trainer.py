"""Training on TensorFlow: one update of the weights under any strategy.

A batch may lie on several replicas, on several machines, and in several parts
that each replica works off one after the other. What is minimised is always
the sum over all real target tokens of the whole batch, divided by their
number: parts carry weights of 1 / that number, so that losses and gradients
are simply added.

Shapes: A parts, B rows of a part, S source length, T target length, D d_model,
N real tokens.
"""

import contextlib
from collections.abc import Generator, Iterable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from keras_transformer.data.batches import Batch, Sharding, prefetched
from keras_transformer.ids import PAD
from keras_transformer.model import Transformer
from keras_transformer.training.projection_loss import (
    TeacherTokens,
    add_in_place,
    token_losses,
    with_bias,
    without_bias,
)
from keras_transformer.training.recipe import Recipe


def default_strategy() -> tf.distribute.Strategy:
    """Returns a distribution strategy for the devices of this process.

    It is `MultiWorkerMirroredStrategy` if `TF_CONFIG` names several workers,
    `MirroredStrategy` if there are several GPUs, and TensorFlow's default
    strategy for one device otherwise. With several workers, call this function
    before TensorFlow does anything else.

    Raises:
        ValueError: if `TF_CONFIG` has tasks that are not workers.
    """
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    tasks = cluster.cluster_spec().as_dict()
    if tasks.keys() - {"worker"}:
        raise ValueError(
            "TF_CONFIG must have tasks of type worker only; the first of them "
            f"is the chief. Received: {sorted(tasks)}."
        )
    if len(tasks.get("worker", ())) > 1:
        return tf.distribute.MultiWorkerMirroredStrategy()
    gpus = tf.config.list_logical_devices("GPU")
    if len(gpus) > 1:
        return tf.distribute.MirroredStrategy([gpu.name for gpu in gpus])
    return tf.distribute.get_strategy()


class TensorFlowTrainer:
    """Trains a model under a `tf.distribute` strategy; see `loop.Trainer`.

    Args:
        strategy: the strategy. Defaults to `default_strategy()`.
    """

    few_shapes = False
    delay = 0

    def __init__(self, strategy: tf.distribute.Strategy | None = None):
        self.strategy = strategy or default_strategy()
        cluster = self.strategy.cluster_resolver
        spec = cluster.cluster_spec().as_dict() if cluster else {}
        self.workers = max(len(spec.get("worker", ())), 1)
        self.worker = cluster.task_id if self.workers > 1 else 0
        # One signature, one trace.
        self._sum = tf.function(
            lambda x: self._summed({"x": self._run(tf.identity, x)})["x"],
            input_signature=[tf.TensorSpec([None], tf.float64)],
            autograph=False,
        )

    def sharding(self, parts: int = 1) -> Sharding:
        """Returns how batches are divided, for this worker."""
        replicas = self.strategy.num_replicas_in_sync // self.workers
        return Sharding(self.workers, self.worker, replicas, parts)

    def scope(self) -> contextlib.AbstractContextManager:
        """Returns the context in which models are made."""
        return self.strategy.scope()

    def prepare(
        self,
        model: Transformer,
        recipe: Recipe,
        teachers: Sequence[Transformer] = (),
    ) -> None:
        """Makes the programs of a step and of a validation step."""
        smoothing = recipe.label_smoothing
        parts = recipe.gradient_accumulation_steps
        signature = self._signature(parts)
        vector = tf.TensorSpec([None], tf.float64)

        def update(batch, stop_requests):
            gradients, sums = _over_parts(
                lambda part: _gradients(
                    model, part, smoothing, teachers, recipe.teacher_weight
                ),
                batch,
                parts,
            )
            model.optimizer.apply(gradients, model.trainable_variables)
            return {**sums, "stop_requests": tf.identity(stop_requests)}

        def evaluate(batch):
            return _over_parts(
                lambda part: _losses(model, part, smoothing), batch, parts
            )

        # One signature, one trace for all shapes.
        @tf.function(input_signature=[signature, vector], autograph=False)
        def training_step(batch, stop_requests):
            return self._summed(self._run(update, batch, stop_requests))

        @tf.function(input_signature=[signature], autograph=False)
        def evaluation_step(batch):
            return self._summed(self._run(evaluate, batch))

        self._training_step = training_step
        self._evaluation_step = evaluation_step

    def _signature(self, parts):
        """Returns the types of a batch, as the strategy divides it."""
        empty = tf.data.Dataset.from_generator(
            list, output_signature=signature_of_batch(parts)
        )
        distribute = self.strategy.distribute_datasets_from_function
        return distribute(lambda _: empty).element_spec

    def batches(self, batches: Iterable[Batch]) -> Generator:
        """Returns an iterator for `train` or `evaluate`."""
        return prefetched(map(self._on_replicas, batches))

    def _on_replicas(self, batch):
        def piece(context):
            replica = context.replica_id_in_sync_group % len(batch["source"])
            return {name: tf.constant(x[replica]) for name, x in batch.items()}

        return self.strategy.experimental_distribute_values_from_function(piece)

    def train(self, batches: Iterator, stop_requests: np.ndarray) -> dict:
        """Updates the weights by the next batch; returns sums."""
        stop_requests = tf.constant(stop_requests, tf.float64)
        return self._training_step(next(batches), stop_requests)

    def evaluate(self, batches: Iterator) -> dict:
        """Returns the sums of the next batch, without an update."""
        return self._evaluation_step(next(batches))

    def total(self, vector: np.ndarray) -> np.ndarray:
        """Returns the sum of a vector over all replicas."""
        return self._sum(tf.constant(vector, tf.float64)).numpy()

    def store(self) -> None:
        """Variables of TensorFlow always have the state of training."""

    def _run(self, function, *args):
        return self.strategy.run(function, args)

    def _summed(self, sums):
        add = tf.distribute.ReduceOp.SUM
        return {
            name: self.strategy.reduce(add, value, axis=None)
            for name, value in sums.items()
        }


def signature_of_batch(parts: int = 1) -> dict[str, tf.TensorSpec]:
    """Returns the types of a replica's share of a batch, of any lengths.

    Args:
        parts: number of its parts. Defaults to 1.
    """
    ids = tf.TensorSpec((parts, None, None), tf.int32)
    weights = tf.TensorSpec(ids.shape, tf.float32)
    return {"source": ids, "target": ids, "labels": ids, "weights": weights}


def _over_parts(function, batch, parts):
    """Returns the sum of what `function` returns for each part."""
    sums = function({name: x[0] for name, x in batch.items()})
    if parts == 1:
        return sums

    def add(i, sums):
        more = function({name: x[i] for name, x in batch.items()})
        return i + 1, tf.nest.map_structure(tf.add, sums, more)

    _, sums = tf.while_loop(
        lambda i, _: i < parts, add, (1, sums), parallel_iterations=1
    )
    return sums


def _gradients(model, part, label_smoothing, teachers=(), teacher_weight=0.0):
    """Returns dense gradients of every trainable variable, and the sums."""
    predicted = []
    for teacher in teachers:
        features, table, *_ = _without_dropout(teacher, part)
        table = tf.cast(table, features.dtype)
        weight = teacher_weight / len(teachers)
        predicted.append(TeacherTokens(features, table, weight))
    variables = model.trainable_variables
    inputs = {name: part[name] for name in ("source", "target")}
    with tf.GradientTape() as tape:
        features = model.decoder_output(inputs, training=True)  # [B, T, D]
        features, labels, weights = _real_tokens(features, part)
    layer = model.target_embedding
    projection = layer.projection  # LoRA does not train it
    found = token_losses(
        *with_bias(features, *_table_and_bias(layer)),
        labels,
        weights,
        label_smoothing,
        True,
        projection.trainable,
        predicted,
    )
    d_features, d_table = found["d_features"], found.get("d_table")
    if layer.use_logits_bias:
        d_features, d_table, d_bias = without_bias(d_features, d_table)
    d_features = tf.cast(d_features, features.dtype)
    gradients = tape.gradient(
        features,
        [v.value for v in variables],
        d_features,
        tf.UnconnectedGradients.ZERO,
    )
    # The gradients of the two uses of the table, as embeddings and as
    # projection, are added in place, which takes 4% off a step.
    for i, variable in enumerate(variables):
        if variable is projection:
            gradients[i] = _add_in_place(d_table, gradients[i])
        elif layer.use_logits_bias and variable is layer.logits_bias:
            gradients[i] = d_bias
        else:
            gradients[i] = tf.convert_to_tensor(gradients[i])
    return gradients, _sums(found)


def _add_in_place(dense, gradient):
    """Adds a gradient, which may be sparse, to a dense one."""
    if isinstance(gradient, tf.IndexedSlices):
        return add_in_place(dense, gradient.indices[:, None], gradient.values)
    return dense + gradient


def _losses(model, part, label_smoothing):
    """Returns the sums over the real tokens of a part, without dropout."""
    features, table, labels, weights = _without_dropout(model, part)
    return _sums(
        token_losses(features, table, labels, weights, label_smoothing)
    )


def _without_dropout(model, part):
    """Returns features `(N, D)`, table, labels and weights of the tokens
    that are not padding."""
    features = model.decoder_output(part, training=False)
    features, labels, weights = _real_tokens(features, part)
    table_and_bias = _table_and_bias(model.target_embedding)
    return *with_bias(features, *table_and_bias), labels, weights


def _table_and_bias(layer):
    bias = layer.logits_bias if layer.use_logits_bias else None
    return (
        tf.convert_to_tensor(layer.projection),
        None if bias is None else tf.convert_to_tensor(bias),
    )


def _real_tokens(features, part):
    """Returns features `(N, D)`, labels and weights `(N,)` of the tokens that
    are not padding."""
    labels = tf.reshape(part["labels"], (-1,))
    real = tf.where(tf.not_equal(labels, PAD))[:, 0]  # [N]
    return (
        tf.gather(tf.reshape(features, (-1, features.shape[-1])), real),
        tf.gather(labels, real),
        tf.gather(tf.reshape(part["weights"], (-1,)), real),
    )


def _sums(found):
    return {
        "loss": tf.reduce_sum(found["loss"]),
        "nll": tf.reduce_sum(found["nll"]),
        "tokens": tf.cast(tf.size(found["loss"]), tf.float32),
    }
