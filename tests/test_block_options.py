"""Checks the options of today's models against `paper`, on any Keras backend.

The oracle and its layers are in `block_oracle`.
"""

import functools

import keras
import numpy as np
import paper
import pytest
from block_oracle import (
    MEMORY,
    MEMORY_MASK,
    OPTIONS,
    X_MASK,
    B,
    D,
    H,
    K,
    T,
    X,
    oracle,
    seeded_layer,
    self_mask,
    step_of,
    stepwise,
)
from conformance import assert_close, compiled_on_jax, numpy_of, random
from keras import ops

import keras_transformer as kt
from keras_transformer.layers.embeddings import rotary_angles, rotate

BACKEND = keras.backend.backend()
# JAX has float64 as an option of the whole process, and Keras on PyTorch
# multiplies matrices in float32.
DTYPES = ["float32", "float64"] if BACKEND == "tensorflow" else ["float32"]
LAYERS = {
    "encoder": {},
    "causal": {"norm_first": True, "use_bias": False},
    # Values of another width than keys, for which no backend has a kernel.
    "window": {"sliding_window": 4, "value_dim": 5},
    "decoder": {"norm_first": True, "value_dim": 5},
    "post-norm decoder": {"sliding_window": 3},
}
every_option = pytest.mark.parametrize("option", OPTIONS)
every_layer = pytest.mark.parametrize("kind", LAYERS)
# A cache knows no padding, and later positions are hidden.
every_step = pytest.mark.parametrize(
    "kind", [kind for kind in LAYERS if kind not in ("encoder", "window")]
)


@functools.cache
def layer_and_output(kind, option, dtype="float32", masked=True):
    """Returns a layer, its arguments, those of its call, and the output of the
    oracle."""
    options = LAYERS[kind] | OPTIONS[option]
    is_decoder = kind.endswith("decoder")
    layer = seeded_layer(is_decoder, dtype=dtype, **options)
    mask = X_MASK if masked else np.ones_like(X_MASK)
    causal = is_decoder or kind == "causal"
    own = self_mask(mask, causal, options.get("sliding_window"))
    memory_mask = MEMORY_MASK if masked else None
    expected = oracle(layer, options, own, memory_mask=memory_mask)
    call = {"use_causal_mask": causal}
    if is_decoder:
        call = {"memory": MEMORY, "memory_mask": memory_mask}
    return layer, options, call | {"mask": mask}, expected


# === The equations ===


@every_option
@every_layer
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_layer_is_the_oracle(kind, option, dtype):
    """Outputs are of order 1 to 10. Some twenty products and sums of up to 60
    numbers each round by 2⁻²⁴ or 2⁻⁵³ of them."""
    layer, _, call, expected = layer_and_output(kind, option, dtype)
    x = X.astype(dtype)
    found = compiled_on_jax(functools.partial(layer, **call))(x)
    tolerance = 1e-5 if dtype == "float32" else 1e-13
    assert_close(found, expected, tolerance)


@every_option
def test_bfloat16_is_near(option):
    """Each operation rounds to eight bits."""
    layer, _, call, expected = layer_and_output(
        "decoder", option, "mixed_bfloat16"
    )
    error = numpy_of(ops.cast(layer(X, **call), "float32")) - expected
    assert 0 < np.linalg.norm(error) < 0.02 * np.linalg.norm(expected)


# === Step by step ===


@every_option
@every_step
@pytest.mark.parametrize(
    "ends", [[T], range(1, T + 1), [2, 3, 8, T]], ids=["once", "each", "some"]
)
def test_steps_with_a_cache_are_the_oracle(kind, option, ends):
    layer, *_, expected = layer_and_output(kind, option, masked=False)
    memory = MEMORY if kind.endswith("decoder") else None
    assert_close(stepwise(layer, X, ends, memory), expected)


@every_step
def test_a_cache_begins_with_padding_that_is_masked(kind):
    """Positions of padding count, and those of the cache's end do not."""
    layer, options, *_ = layer_and_output(kind, "all")
    real = np.arange(T) >= np.array([[0], [2], [3]])
    window = options.get("sliding_window")
    own = self_mask(real, True, window)
    expected = oracle(layer, options, own)
    call = {"attention_mask": np.repeat(real[:, None], T, axis=1)}
    memory = MEMORY if kind.endswith("decoder") else None
    found = stepwise(layer, X, [4, 5, T], memory, **call)
    assert_close(found[real], expected[real])


@every_step
def test_rows_of_a_step_may_be_at_different_positions(kind):
    layer, *_, expected = layer_and_output(kind, "all", masked=False)
    starts, caches, call, step = [5, 2, 8], [], {}, step_of(layer)
    if kind.endswith("decoder"):
        call["memory_cache"] = layer.project_memory(MEMORY)
    for i, start in enumerate(starts):
        own = {k: v[i : i + 1] for k, v in call.get("memory_cache", {}).items()}
        own = {"memory_cache": own} if own else {}
        cache = layer.empty_cache(1, T)
        caches.append(step(X[i : i + 1, :start], cache, 0, **own)[1])
    cache = {k: ops.concatenate([c[k] for c in caches]) for k in caches[0]}
    index = np.array(starts, "int32")
    for _ in range(2):
        places = np.arange(B), index
        new = X[places][:, None]
        found, cache = step(new, cache, index, **call)
        assert_close(found[:, 0], expected[places])
        index = index + 1


# === Each option ===


def test_rotary_scores_know_distances_alone():
    """The oracle's scores do not change when all positions shift, and those of
    the package are the oracle's at any position."""
    query, key = random(1, T, K), random(2, T, K)
    first, later = (
        paper.rotate(query.astype("float64"), shift)
        @ np.swapaxes(paper.rotate(key.astype("float64"), shift), -1, -2)
        for shift in (0, 1000)
    )
    np.testing.assert_allclose(later, first, atol=1e-12)
    assert np.abs(first - query @ np.swapaxes(key, -1, -2)).max() > 1
    for shift in (0, 5, 1000):
        angles = rotary_angles(shift + np.arange(T, dtype="int32"), K)
        found = rotate(ops.convert_to_tensor(query), *angles)
        expected = paper.rotate(query.astype("float64"), shift)
        # An angle near 1,000 rounds by 2⁻¹⁵.
        assert_close(found, expected, 1e-6 if shift < 10 else 2e-4)


def test_a_layer_sees_distances_alone():
    """Padding at the left changes all positions, and no output."""
    layer = seeded_layer(**OPTIONS["all"])
    before = np.concatenate([random(B, 23, D), X], axis=1)
    real = np.tile(np.arange(23 + T) >= 23, (B, 1))
    found = layer(before, mask=real)[:, 23:]
    expected = numpy_of(layer(X))
    assert_close(found, expected)
    plain = seeded_layer(**OPTIONS["all"] | {"positions": None})
    plain.set_weights(layer.get_weights())
    assert np.abs(numpy_of(plain(X)) - expected).max() > 0.1
    order = np.random.default_rng(1).permutation(T)
    assert_close(plain(X[:, order]), numpy_of(plain(X))[:, order])
    assert np.abs(numpy_of(layer(X[:, order])) - expected[:, order]).max() > 0.1


def test_a_keras_file_has_the_options(tmp_path):
    inputs, memory = keras.Input((None, D)), keras.Input((None, D))
    layers = [seeded_layer(d, **OPTIONS["all"]) for d in (False, True)]
    model = keras.Model([inputs, memory], layers[1](layers[0](inputs), memory))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_close(loaded([X, MEMORY]), numpy_of(model([X, MEMORY])))
    config = loaded.layers[-1].get_config()
    assert OPTIONS["all"].items() <= config.items()


# === Errors ===

SHAPE = {"d_model": D, "num_heads": H, "d_ff": 17, "key_dim": K}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_key_value_heads": 4}, "multiple.*num_heads=6.*_heads=4"),
        ({"num_key_value_heads": 0}, "at least 1.*num_key_value_heads=0"),
        ({"positions": "rotary", "key_dim": 7}, "even.*Received: key_dim=7"),
        ({"positions": "learned"}, "\"rotary\" or None.*positions='learned'"),
        ({"normalization": "batch"}, "'layer', 'rms'.*='batch'"),
        ({"feed_forward": "geglu"}, "'ffn', 'swiglu'.*='geglu'"),
    ],
    ids=str,
)
@pytest.mark.parametrize("layer", [kt.EncoderLayer, kt.DecoderLayer])
def test_layers_name_what_was_received(layer, options, message):
    with pytest.raises(ValueError, match=message):
        layer(**SHAPE | options)


def test_a_cache_that_is_only_read_has_no_rotary_positions():
    layer = kt.MultiHeadAttention(H, K, positions="rotary")
    layer.build(X.shape)
    with pytest.raises(ValueError, match=r"only read.*positions='rotary'"):
        layer(X, cache=layer.project(X))
