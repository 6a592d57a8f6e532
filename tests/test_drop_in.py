"""Compares our attention with Keras' own, in whose place it can stand."""

import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
from conformance import assert_close, numpy_of, random

from keras_transformer import MultiHeadAttention, replace_attention

B, T, S, H, D, K = 2, 5, 11, 7, 13, 3


def keras_layer(query, value, **options):
    """Returns Keras' layer, built, with random weights."""
    layer = keras.layers.MultiHeadAttention(H, K, **options)
    layer.build(query.shape, value.shape)
    for weight in layer.weights:
        weight.assign(0.3 * random(*weight.shape))
    return layer


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("use_gate", [False, True])
@pytest.mark.parametrize("length", [T, S])
@pytest.mark.parametrize("window", [None, 1, 3, 7])
def test_windows_and_gates_are_those_of_keras(window, length, use_gate, dtype):
    query, value = random(B, T, D), random(B, length, D + 2)
    theirs = keras_layer(
        query, value, sliding_window=window, use_gate=use_gate, dtype=dtype
    )
    ours = MultiHeadAttention.from_keras(theirs)
    mask = np.arange(length) < np.array([[length], [length - 2]])
    tolerance = 1e-5 if dtype == "float32" else 3e-2
    for causal in (False, True):
        options = {"use_causal_mask": causal, "value_mask": mask}
        expected = theirs(query, value, **options)
        found = ours(query, value, **options)
        scored, scores = ours(
            query, value, return_attention_scores=True, **options
        )
        # Where a query sees no key, Keras' layer attends to all.
        seen = numpy_of(scores).astype("float32").sum(-1).min(axis=1) > 0.5
        assert seen.mean() > 0.6
        for one in (found, scored):
            assert_close(
                numpy_of(one)[seen], numpy_of(expected)[seen], tolerance
            )


def test_scores_are_those_of_keras():
    query, value = random(B, T, D), random(B, S, D)
    theirs = keras_layer(query, value, sliding_window=3)
    ours = MultiHeadAttention.from_keras(theirs)
    options = {"return_attention_scores": True, "use_causal_mask": True}
    for mine, other in zip(
        ours(query, value, **options),
        theirs(query, value, **options),
        strict=True,
    ):
        assert_close(mine, other)


def test_gates_stay_the_same_step_by_step():
    layer = MultiHeadAttention(H, K, K + 2, use_gate=True)
    x, memory = random(B, T, D), random(B, S, D)
    expected = numpy_of(layer(x, x, use_causal_mask=True))
    cache = layer.empty_cache(B, T)
    for i in range(T):
        part = x[:, i : i + 1]
        found, cache = layer(part, part, cache=cache, cache_index=i)
        assert_close(found, expected[:, i : i + 1])
    beams = np.repeat(x, 3, axis=0)
    found = layer(beams, cache=layer.project(memory))
    assert_close(found, layer(beams, np.repeat(memory, 3, axis=0)))


def test_flash_attention_is_demanded_as_in_keras():
    """It is computed where the backend can, and fails where Keras' layer does,
    with the same words."""
    x = random(B, T, D)
    results = []
    for kind in (keras.layers.MultiHeadAttention, MultiHeadAttention):
        layer = kind(H, K, flash_attention=True)
        try:
            results.append(tuple(layer(x, x).shape))
        except (ValueError, RuntimeError, ImportError) as error:
            results.append(str(error).split("Arguments received")[0])
        with pytest.raises(ValueError, match=r"attention (scores|weights)"):
            layer(x, x, return_attention_scores=True)
        with pytest.raises(ValueError, match=r"[Dd]ropout"):
            kind(H, K, dropout=0.1, flash_attention=True)
        layer = kind(H, K, flash_attention=False)
        assert tuple(layer(x, x).shape) == x.shape
    assert results[0] == results[1]


def test_attention_over_other_axes_is_refused():
    for axes in ((1, 2), 2, (0,)):
        with pytest.raises(ValueError, match=r"attention_axes=.*Leave it out"):
            MultiHeadAttention(H, K, attention_axes=axes)
    for axes in (None, 1, (1,)):
        MultiHeadAttention(H, K, attention_axes=axes)


@pytest.mark.skipif(
    not keras.__version__.startswith("3.15."),
    reason=f"the list is of Keras 3.15, this is {keras.__version__}",
)
def test_keras_own_tests_pass_but_for_those_that_are_listed():
    # In a process of its own: they change settings of the whole process.
    done = subprocess.run(
        [sys.executable, pathlib.Path(__file__).parent / "keras_suite.py"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\n29 of " in done.stdout


# === A whole model ===


def classifier(mask_zero=False):
    """Returns a classifier of ids, as Keras' users write one: the layer used
    twice, a model inside the model, masks, a residual connection."""
    keras.utils.set_random_seed(1)
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(17, D, mask_zero=mask_zero, name="ids")(ids)
    attention = keras.layers.MultiHeadAttention
    shared = attention(2, K, name="shared")
    for causal in (True, False):
        h = shared(x, x, use_causal_mask=causal)
        x = keras.layers.LayerNormalization()(keras.layers.Add()([x, h]))
    inner = keras.Input((None, D))
    block = attention(3, K, use_bias=False, dropout=0.1, name="inner")
    y, scores = block(inner, inner, return_attention_scores=True)
    y = keras.layers.Dense(D, activation="relu")(y)
    block = keras.Model(inner, [y, scores], name="block")
    pool = keras.layers.GlobalAveragePooling1D()
    vectors = keras.Input((None, D))
    x = keras.ops.concatenate([pool(x), pool(block(vectors)[0])], axis=-1)
    return keras.Model([ids, vectors], keras.layers.Dense(4)(x))


def inputs_of(length):
    ids = np.random.default_rng(length).integers(1, 17, (3, length))
    return [ids, random(3, length + 2, D)]


def attentions(model):
    return {
        layer.name: type(layer)
        for layer in model._flatten_layers()
        if "MultiHead" in type(layer).__name__
    }


def test_a_model_keeps_its_outputs_and_its_weights(tmp_path):
    model = classifier()
    frozen = model.get_layer("ids")
    frozen.trainable = False
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(True))
    expected = [numpy_of(model(inputs_of(n))) for n in (2, 7)]
    replaced = replace_attention(model)
    assert attentions(replaced) == {
        "shared": MultiHeadAttention,
        "inner": MultiHeadAttention,
    }
    assert attentions(model)["shared"] is keras.layers.MultiHeadAttention
    assert replaced.count_params() == model.count_params()
    assert replaced.get_layer("ids") is frozen
    replaced.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for one in (replaced, loaded):
        for n, other in zip((2, 7), expected, strict=True):
            assert_close(one(inputs_of(n)), other)
    before = numpy_of(replaced.get_layer("shared").weights[0])
    replaced.fit(inputs_of(7), np.array([0, 1, 2]), verbose=0)
    after = numpy_of(replaced.get_layer("shared").weights[0])
    assert np.abs(after - before).max() > 1e-4


def test_a_row_with_padding_is_read_as_without():
    """Keras' layer removes the mask in front of the residual connection."""
    model = classifier(mask_zero=True)
    ids, vectors = inputs_of(7)
    expected = numpy_of(model([ids, vectors]))
    replaced = replace_attention(model)
    padded = np.pad(ids, [[0, 0], [0, 3]])
    assert_close(replaced([padded, vectors]), expected)
    assert np.abs(numpy_of(model([padded, vectors])) - expected).max() > 0.01


def test_a_sequential_model_may_have_a_model_with_attention():
    x = keras.Input((None, D))
    inner = keras.Model(x, keras.layers.MultiHeadAttention(2, K)(x, x))
    model = keras.Sequential([keras.Input((None, D)), inner])
    x = random(B, T, D)
    replaced = replace_attention(model)
    assert list(attentions(replaced).values()) == [MultiHeadAttention]
    assert_close(replaced(x), model(x))


class Block(keras.layers.Layer):
    """A layer as Keras' users write it."""

    def __init__(self, **options):
        super().__init__(**options)
        self.attention = keras.layers.MultiHeadAttention(2, K)

    def call(self, x):
        return x + self.attention(x, x)


class Model(keras.Model):
    def call(self, x):
        return x


def test_what_cannot_be_replaced_is_named():
    x = keras.Input((None, D))
    with pytest.raises(ValueError, match="'block_of_mine', a Block"):
        replace_attention(keras.Model(x, Block(name="block_of_mine")(x)))
    with pytest.raises(ValueError, match="functional or a sequential"):
        replace_attention(Model())
    with pytest.raises(ValueError, match="calls no"):
        replace_attention(keras.Model(x, keras.layers.Dense(3)(x)))
