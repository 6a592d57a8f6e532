"""Checks training on JAX, without TensorFlow; `make test-jax` runs them.

Shapes: N tokens, D = 22, V = 31.
"""

import jax
import keras
import numpy as np
import pytest
from jax import numpy as jnp

from keras_transformer import (
    LabelSmoothedCrossEntropy,
    TextClassifier,
    Transformer,
    TransformerConfig,
)
from keras_transformer.data import train_tokenizer
from keras_transformer.data.batches import (
    EncodedPairs,
    Rows,
    Sharding,
    make_batch,
)
from keras_transformer.data.builtin.phrases import pairs_of_split
from keras_transformer.inference import TextTokenizer
from keras_transformer.training import lora
from keras_transformer.training.jax_trainer import (
    JaxTrainer,
    _gradients,
    _over_parts,
    _values,
)
from keras_transformer.training.models import make_model
from keras_transformer.training.projection_loss import (
    CHUNK,
    projection_loss,
    token_losses,
)
from keras_transformer.training.recipe import Recipe


def small_model(source_vocab_size=None, **shape):
    shape = {"num_layers": 1, "d_model": 22, "num_heads": 2, "d_ff": 17} | shape
    config = TransformerConfig(31, source_vocab_size, dropout_rate=0.0, **shape)
    return Transformer(config, seed=1)


def a_batch(parts=1):
    rng = np.random.default_rng(1)
    sides = [
        [[*rng.integers(4, 29, rng.integers(1, 11)), 3] for _ in range(13)]
        for _ in range(2)
    ]
    pairs = EncodedPairs(*map(Rows.of, sides))
    batch = make_batch(pairs, Sharding(parts=parts), longest=64)
    return {name: x[0] for name, x in batch.items()}


def found_gradients(model, recipe, batch, teachers=()):
    weights = _values(model.trainable_variables)
    others = [
        (
            _values(teacher.trainable_variables),
            _values(teacher.non_trainable_variables),
        )
        for teacher in teachers
    ]
    gradients, _, sums = _over_parts(
        lambda fixed, part: _gradients(
            model, recipe, weights, fixed, part, teachers, others
        ),
        _values(model.non_trainable_variables),
        batch,
    )
    return gradients, sums


def expected_gradients(model, batch, loss_of):
    """Returns what JAX makes of a loss of labels and logits."""
    fixed = _values(model.non_trainable_variables)
    ids = {k: batch[k].reshape(-1, batch[k].shape[-1]) for k in batch}

    def loss(weights):
        inputs = {k: ids[k] for k in ("source", "target")}
        logits, _ = model.stateless_call(weights, fixed, inputs)
        return loss_of(ids["labels"], logits)

    return jax.value_and_grad(loss)(_values(model.trainable_variables))


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(
    ("source_vocab_size", "shape"),
    [
        (None, {"norm_first": True}),
        (29, {"use_logits_bias": True, "tie_projection": False}),
    ],
    ids=str,
)
def test_gradients_equal_those_of_the_public_loss(
    source_vocab_size, shape, parts
):
    model, batch = small_model(source_vocab_size, **shape), a_batch(parts)
    loss = LabelSmoothedCrossEntropy(0.1)
    value, expected = expected_gradients(model, batch, loss)
    found, sums = found_gradients(model, Recipe(), batch)
    np.testing.assert_allclose(sums["loss"] / sums["tokens"], value, rtol=1e-5)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_gradients_with_teachers_equal_those_of_their_mean_distribution():
    model, batch = small_model(), a_batch()
    teachers = [small_model(d_model=10, use_logits_bias=True), small_model()]
    ids = {k: batch[k][0] for k in ("source", "target")}
    taught = sum(
        jax.nn.softmax(teacher(ids, training=False)) / 2 for teacher in teachers
    )

    def loss(labels, logits):
        target = 0.9 * jax.nn.one_hot(labels, 31) + 0.1 / 31
        target = 0.7 * target + 0.3 * taught
        losses = -jnp.sum(target * jax.nn.log_softmax(logits), axis=-1)
        return jnp.sum(losses * (labels != 0)) / jnp.sum(labels != 0)

    value, expected = expected_gradients(model, batch, loss)
    recipe = Recipe(teacher_weight=0.3, initial_run="the teacher's")
    found, sums = found_gradients(model, recipe, batch, teachers)
    np.testing.assert_allclose(sums["loss"] / sums["tokens"], value, rtol=1e-5)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_chunks_give_the_loss_of_all_tokens_at_once():
    rng = np.random.default_rng(1)
    table = jnp.asarray(rng.normal(size=(31, 22)), "float32")
    for count in (1, CHUNK, 2 * CHUNK + 5):
        x = jnp.asarray(rng.normal(size=(count, 22)), "float32")
        labels = jnp.asarray(rng.integers(0, 31, count))
        weights = jnp.asarray(rng.uniform(size=count), "float32")

        def loss(x, table, labels=labels, weights=weights):
            log_p = jax.nn.log_softmax(x @ table.T)
            target = 0.9 * jax.nn.one_hot(labels, 31) + 0.1 / 31
            return jnp.sum(weights * -jnp.sum(target * log_p, axis=-1))

        def ours(x, table, labels=labels, weights=weights):
            return 3 * projection_loss(x, table, labels, weights, 0.1)

        found = token_losses(x, table, labels, weights, 0.1, gradients=True)
        total = jnp.sum(weights * found["loss"])
        np.testing.assert_allclose(total, loss(x, table), rtol=1e-5)
        expected = jax.grad(loss, (0, 1))(x, table)
        scaled = jax.grad(ours, (0, 1))(x, table)
        for i, name in enumerate(("d_features", "d_table")):
            np.testing.assert_allclose(found[name], expected[i], atol=4e-4)
            np.testing.assert_allclose(scaled[i] / 3, expected[i], atol=4e-4)


def test_the_loss_keeps_no_logits_of_all_tokens():
    count = 3 * CHUNK + 1
    x, table = jnp.ones((count, 22)), jnp.ones((31, 22))

    def loss(x, table):
        labels, weights = jnp.zeros(count, "int32"), jnp.ones(count)
        return projection_loss(x, table, labels, weights, 0.1)

    program = str(jax.make_jaxpr(jax.grad(loss, (0, 1)))(x, table))
    assert ",22]" in program
    assert f"[{-(-count // 4)},31]" in program
    assert f"[{count},31]" not in program


def test_lora_trains_its_factors_alone():
    config = small_model().config
    recipe = Recipe(lora_rank=2, initial_run="one", dtype_policy="float32")
    model, trainer = make_model(config, recipe), JaxTrainer()
    trainer.prepare(model, recipe)
    before = {v.path: np.array(v) for v in model.variables}
    batch = {name: x[None] for name, x in a_batch().items()}
    batches = trainer.batches([batch] * 3)
    for _ in range(3):
        trainer.train(batches, np.zeros(2))
    trainer.store()
    changed = {
        v.path for v in model.variables if (np.array(v) != before[v.path]).any()
    }
    factors = {v.path for v in model.trainable_variables}
    assert factors
    assert {x for x in changed if "seed" not in x} <= factors
    assert any(lora.B in path for path in changed)


def test_the_model_has_the_state_whenever_a_callback_looks():
    """Steps consume the arrays that they begin with."""
    recipe = Recipe(dtype_policy="float32")
    model, trainer = make_model(small_model().config, recipe), JaxTrainer()
    trainer.prepare(model, recipe)
    batch = {name: x[None] for name, x in a_batch().items()}
    batches = trainer.batches([batch] * 4)
    for step in range(1, 4):
        trainer.train(batches, np.zeros(2))
        model.jax_state_sync()
        assert int(model.optimizer.iterations.value) == step
        assert np.isfinite(model.get_weights()[0]).all()


def test_a_classifier_takes_the_ids_of_a_text_tokenizer(tmp_path):
    lines = [line for pair in pairs_of_split("train", 200) for line in pair]
    tokenizer = TextTokenizer(train_tokenizer(lines, 347))
    config = TransformerConfig(347, num_layers=1, d_model=22, num_heads=2)
    model = TextClassifier(config, 5)
    texts = ["The clock is slow.", "", "🦄"]
    ids = tokenizer(texts)
    assert tokenizer.decode(ids) == texts
    logits = model.predict(ids, verbose=0)
    assert logits.shape == (3, 5)
    assert np.isfinite(logits).all()
    model.save(tmp_path / "a.keras")
    again = keras.models.load_model(tmp_path / "a.keras")
    np.testing.assert_array_equal(again.predict(ids, verbose=0), logits)
    with pytest.raises(ValueError, match=r"'jax'.*model\(tokenizer\(texts\)"):
        TextClassifier(config, 5, tokenizer)
