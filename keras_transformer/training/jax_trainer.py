"""Training on JAX: one update of the weights, compiled, on all devices.

It computes the same sums as `tensorflow_trainer`: over all real target tokens
of a batch, however it is divided.

Shapes: A parts, B rows of a part on all devices, S source length, T target
length, D d_model, N = B·T tokens.
"""

import contextlib
import os
from collections.abc import Generator, Iterable, Iterator, Sequence

import jax
import keras
import numpy as np
from jax import numpy as jnp

from keras_transformer.data.batches import Batch, Sharding, prefetched
from keras_transformer.ids import PAD
from keras_transformer.model import Transformer
from keras_transformer.training.projection_loss import (
    TeacherTokens,
    token_losses,
    with_bias,
    without_bias,
)
from keras_transformer.training.recipe import Recipe


class JaxTrainer:
    """Trains a model on the devices of JAX; see `loop.Trainer`.

    The state of training is on the devices while steps run, and `store` puts it
    into the model. `self.model` of a callback calls `store` first.

    Args:
        distribution: a `keras.distribution.DataParallel`. Defaults to one over
            all devices of this process.
    """

    few_shapes = True
    # Sums are read a step late, so that the device has its next step by then.
    delay = 1
    worker = 0

    def __init__(
        self, distribution: keras.distribution.DataParallel | None = None
    ):
        if jax.process_count() > 1:
            raise ValueError(
                "Training on JAX takes the devices of one process. Received: "
                f"{jax.process_count()} processes. Train on one machine, or on "
                "several with TensorFlow."
            )
        if distribution is None and jax.device_count() > 1:
            distribution = keras.distribution.DataParallel()
        self.distribution = distribution
        if jax.default_backend() != "cpu":
            _keep_programs()

    def sharding(self, parts: int = 1) -> Sharding:
        """Returns how batches are divided."""
        found = self.distribution
        devices = found.num_model_replicas if found else 1
        return Sharding(replicas=devices, parts=parts)

    def scope(self) -> contextlib.AbstractContextManager:
        """Returns the context in which models are made."""
        found = self.distribution
        return found.scope() if found else contextlib.nullcontext()

    def prepare(
        self,
        model: Transformer,
        recipe: Recipe,
        teachers: Sequence[Transformer] = (),
    ) -> None:
        """Makes the programs of a step and of a validation step."""
        self.model = model
        self._state: tuple | None = None  # of the steps since `store`

        def update(state, others, batch):
            weights, fixed, slots = state
            gradients, fixed, sums = _over_parts(
                lambda fixed, part: _gradients(
                    model, recipe, weights, fixed, part, teachers, others
                ),
                fixed,
                batch,
            )
            weights, slots = model.optimizer.stateless_apply(
                slots, gradients, weights
            )
            return (weights, fixed, slots), sums

        def evaluate(weights, fixed, batch):
            def of_part(fixed, part):
                return (), fixed, _losses(model, recipe, weights, fixed, part)

            return _over_parts(of_part, fixed, batch)[2]

        self._others = [
            (
                _values(teacher.trainable_variables),
                _values(teacher.non_trainable_variables),
            )
            for teacher in teachers
        ]
        self._training_step = jax.jit(update, donate_argnums=0)
        self._evaluation_step = jax.jit(evaluate)

    def batches(self, batches: Iterable[Batch]) -> Generator:
        """Returns an iterator for `train` or `evaluate`."""
        return prefetched(map(self._on_devices, batches))

    def _on_devices(self, batch):
        def placed(x):  # (R, A, B, length)
            x = x.swapaxes(0, 1)
            x = x.reshape(len(x), -1, x.shape[-1])
            if (found := self.distribution) is None:
                return jax.device_put(x)
            axes = (None, found.batch_dim_name, None)
            layout = keras.distribution.TensorLayout(axes, found.device_mesh)
            return keras.distribution.distribute_tensor(x, layout)

        return {name: placed(x) for name, x in batch.items()}

    def train(self, batches: Iterator, stop_requests: np.ndarray) -> dict:
        """Updates the weights by the next batch; returns sums."""
        if self._state is None:
            self.model.jax_state_sync = self.store  # Keras' callbacks call it
            self._state = (
                _values(self.model.trainable_variables),
                _values(self.model.non_trainable_variables),
                _values(self.model.optimizer.variables),
            )
        self._state, sums = self._training_step(
            self._state, self._others, next(batches)
        )
        return {**sums, "stop_requests": stop_requests}

    def evaluate(self, batches: Iterator) -> dict:
        """Returns the sums of the next batch, without an update."""
        self.store()
        return self._evaluation_step(
            _values(self.model.trainable_variables),
            _values(self.model.non_trainable_variables),
            next(batches),
        )

    def total(self, vector: np.ndarray) -> np.ndarray:
        """Returns the sum of a vector over all processes, of which is one."""
        return vector

    def store(self) -> None:
        """Puts the state of training into the model and its optimizer."""
        if self._state is None:
            return
        model = self.model
        for variables, values in zip(
            (
                model.trainable_variables,
                model.non_trainable_variables,
                model.optimizer.variables,
            ),
            self._state,
            strict=True,
        ):
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
        self._state = None
        del model.jax_state_sync  # `fit` has its own


def _keep_programs():
    """Lets JAX keep what it compiles, unless it is told where already."""
    if getattr(jax.config, "jax_compilation_cache_dir", None) is None:
        cache = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
        folder = os.path.join(cache, "keras_transformer", "jax")
        jax.config.update("jax_compilation_cache_dir", folder)


def _values(variables):
    return [variable.value for variable in variables]


def _over_parts(function, fixed, batch):
    """Returns the sums of what `function(fixed, part)` returns for each part:
    gradients and losses; and the last of the fixed variables."""
    parts = len(batch["source"])
    gradients, fixed, sums = function(
        fixed, {name: x[0] for name, x in batch.items()}
    )
    if parts == 1:
        return gradients, fixed, sums

    def add(carry, part):
        before, fixed = carry
        gradients, fixed, sums = function(fixed, part)
        return (jax.tree.map(jnp.add, before, (gradients, sums)), fixed), None

    rest = {name: x[1:] for name, x in batch.items()}
    carry = (gradients, sums), fixed
    ((gradients, sums), fixed), _ = jax.lax.scan(add, carry, rest)
    return gradients, fixed, sums


def _decoder_output(model, weights, fixed, part, training):
    """Returns features `(N, D)`; and the fixed variables afterwards, such as
    the states of random generators, the matrix of the projection, and its bias,
    which may be `None`."""
    variables = model.trainable_variables, model.non_trainable_variables
    mapping = [
        pair
        for names, values in zip(variables, (weights, fixed), strict=True)
        for pair in zip(names, values, strict=True)
    ]
    inputs = {name: part[name] for name in ("source", "target")}
    layer = model.target_embedding
    with keras.StatelessScope(mapping) as scope:
        features = model.decoder_output(inputs, training=training)
        table = layer.projection.value
        bias = layer.logits_bias.value if layer.use_logits_bias else None
    fixed = [scope.get_current_value(v) for v in variables[1]]
    return features.reshape(-1, features.shape[-1]), (fixed, table, bias)


def _gradients(model, recipe, weights, fixed, part, teachers, others):
    """Returns the gradients of the weights, the fixed variables afterwards,
    and the sums of a part."""
    predicted = []
    for teacher, (values, fixed_values) in zip(teachers, others, strict=True):
        x, (_, table, bias) = _decoder_output(
            teacher, values, fixed_values, part, False
        )
        x, table = with_bias(x, table, bias)
        table = table.astype(x.dtype)
        weight = recipe.teacher_weight / len(teachers)
        predicted.append(TeacherTokens(x, table, weight))

    def features_of(weights):
        return _decoder_output(model, weights, fixed, part, True)

    features, backward, (new_fixed, table, bias) = jax.vjp(
        features_of, weights, has_aux=True
    )
    layer = model.target_embedding
    labels = part["labels"].reshape(-1)
    found = token_losses(
        *with_bias(features, table, bias),
        labels,
        part["weights"].reshape(-1),
        recipe.label_smoothing,
        True,
        layer.projection.trainable,
        predicted,
    )
    d_features, d_table = found["d_features"], found.get("d_table")
    if layer.use_logits_bias:
        d_features, d_table, d_bias = without_bias(d_features, d_table)
    (gradients,) = backward(d_features.astype(features.dtype))
    for i, variable in enumerate(model.trainable_variables):
        if variable is layer.projection:
            gradients[i] += d_table
        elif layer.use_logits_bias and variable is layer.logits_bias:
            gradients[i] = d_bias
    return gradients, new_fixed, _sums(found, labels)


def _losses(model, recipe, weights, fixed, part):
    """Returns the sums over the real tokens of a part, without dropout."""
    features, (_, table, bias) = _decoder_output(
        model, weights, fixed, part, False
    )
    labels = part["labels"].reshape(-1)
    found = token_losses(
        *with_bias(features, table, bias),
        labels,
        part["weights"].reshape(-1),
        recipe.label_smoothing,
    )
    return _sums(found, labels)


def _sums(found, labels):
    real = labels != PAD
    return {
        "loss": jnp.sum(jnp.where(real, found["loss"], 0)),
        "nll": jnp.sum(jnp.where(real, found["nll"], 0)),
        "tokens": jnp.sum(real, dtype="float32"),
    }
