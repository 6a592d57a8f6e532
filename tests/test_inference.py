"""Checks that the fast inference model computes what the Keras model does."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import Transformer, TransformerConfig, beam_search
from keras_transformer.config import POSITIONS
from keras_transformer.inference import int8_weights
from keras_transformer.inference.graph_layers import product
from keras_transformer.inference.graph_model import InferenceModel
from keras_transformer.inference.graph_weights import inference_weights

SOURCE = np.array([[5, 6, 7, 9, 3], [11, 3, 0, 0, 0]], "int32")
# Each field that the forward pass depends on differs from its default in one.
CONFIGS = [
    {},
    {"norm_first": True, "layer_norm_epsilon": 1e-2},
    {"source_vocab_size": 43, "positions": None},
    {"positions": "learned", "max_length": 13, "norm_first": True},
    {"key_dim": 7, "value_dim": 5},
    {"use_bias": False, "activation": "gelu", "source_vocab_size": 37},
    {"activation": "silu", "positions": None, "norm_first": True},
    {"positions": "sinusoidal_halves", "num_encoder_layers": 3},
    {"scale_embeddings": False, "num_decoder_layers": 1},
    {"tie_projection": False, "use_logits_bias": True},
    {"use_logits_bias": True, "source_vocab_size": 43},
    {"sliding_window": 2, "norm_first": True},
    {"sliding_window": 1},
    {"sliding_window": 4},
    {"num_heads": 6, "num_key_value_heads": 2, "key_dim": 7, "value_dim": 5},
    {"num_heads": 6, "num_key_value_heads": 3, "key_dim": 5},
    {"normalization": "rms", "layer_norm_epsilon": 1e-2},
    {"feed_forward": "swiglu", "d_ff": 31},
    {"positions": "rotary", "key_dim": 6, "sliding_window": 3},
    {"qk_norm": True, "use_bias": False},
    {
        "norm_first": True,
        "normalization": "rms",
        "feed_forward": "swiglu",
        "positions": "rotary",
        "use_bias": False,
        "num_heads": 6,
        "num_key_value_heads": 2,
        "key_dim": 10,
        "qk_norm": True,
        "sliding_window": 4,
    },
]
# Of this one each matrix gets columns of zeros, see `widened`.
WIDE = {
    "vocab_size": 512,
    "num_layers": 1,
    "d_model": 512,
    "d_ff": 512,
    "use_logits_bias": True,
}
SHAPE = {"vocab_size", "num_layers", "d_model", "num_heads", "d_ff"}
IN_TRAINING = {
    "dropout_rate",
    "attention_dropout_rate",
    "activation_dropout_rate",
    "initializer_scale",
}


def test_every_field_of_a_config_is_compared():
    fields = {field.name for field in dataclasses.fields(TransformerConfig)}
    compared = {name for config in CONFIGS for name in config}
    depends = fields - SHAPE - IN_TRAINING - {"source_features"}
    assert depends == compared - SHAPE
    positions = {config.get("positions", "sinusoidal") for config in CONFIGS}
    assert positions == set(POSITIONS)


def random_model(**config):
    shape = {
        "vocab_size": 41,
        "num_layers": 2,
        "d_model": 26,
        "num_heads": 2,
        "d_ff": 37,
    }
    model = Transformer(TransformerConfig(**{**shape, **config}), seed=1)
    rng = np.random.default_rng(1)
    # Biases start as zeros and norms as ones, which would hide a mistake.
    for weight in model.weights:
        weight.assign(weight + 0.2 * rng.normal(size=weight.shape))
    return model


def logits_along_random_beams(model, dtype, copies=1, steps=6, beams=3):
    """Yields logits of the fast model's steps, and those of the Keras model.

    The Keras model computes in float64, so that only the rounding of the fast
    model has to be tolerated.
    """
    exact = Transformer(model.config, dtype="float64")
    exact.set_weights(model.get_weights())
    fast = InferenceModel(model.config, inference_weights(model, dtype))
    sources = np.repeat(SOURCE, copies, axis=0)
    memory = fast.encode(sources)
    cache = fast.empty_cache(memory, beams)
    rng = np.random.default_rng(2)
    prefixes = np.full((len(sources), beams, 1), 2, "int32")
    for index in range(steps):
        found, cache = fast.step(prefixes[..., -1], cache, tf.constant(index))
        expected = exact(
            {
                "source": np.repeat(sources, beams, axis=0),
                "target": prefixes.reshape(-1, index + 1),
            }
        )[:, -1]
        yield found.numpy(), expected.numpy()
        origins = rng.integers(0, beams, size=(len(sources), beams))
        cache = fast.reorder_cache(cache, origins)
        prefixes = np.take_along_axis(prefixes, origins[..., None], axis=1)
        new = rng.integers(4, 41, size=(len(sources), beams, 1))
        prefixes = np.concatenate([prefixes, new], axis=2).astype("int32")


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_steps_give_the_logits_of_the_model(config):
    """Each beam continues a random one of the step before."""
    for found, expected in logits_along_random_beams(
        random_model(**config), "float32"
    ):
        np.testing.assert_allclose(found, expected, atol=2e-5)


def test_hundreds_of_rows_give_the_logits_of_the_model():
    for found, expected in logits_along_random_beams(
        random_model(), "float32", copies=401
    ):
        np.testing.assert_allclose(found, expected, atol=2e-5)


def test_widened_matrices_give_the_logits_of_the_model():
    for found, expected in logits_along_random_beams(
        random_model(**WIDE), "float32"
    ):
        # Sums of 512 numbers round more than sums of 26.
        np.testing.assert_allclose(found, expected, atol=5e-4)


def test_matrices_that_would_be_slow_are_widened():
    def columns(dtype):
        weights = inference_weights(random_model(**WIDE), dtype)
        layers = [*weights["encoder"], *weights["decoder"]]
        parts = [part for layer in layers for part in layer.values()]
        return {
            part["kernel"].shape[1]
            for part in [*parts, weights["projection"]]
            if "kernel" in part
        }

    assert columns("float32") == {512 + 16, 2 * 512 + 16, 3 * 512 + 16}
    assert columns("bfloat16") == {512, 2 * 512, 3 * 512}


@pytest.mark.parametrize(
    ("depth", "columns", "dtype", "products"),
    [
        (256, 1024, "float32", 2),
        (277, 1031, "float32", 2),  # 128 and 149 rows
        (256, 1023, "float32", 1),
        (255, 1031, "float32", 1),
        (277, 1031, "bfloat16", 1),
    ],
)
def test_large_float32_matrices_are_multiplied_in_halves(
    depth, columns, dtype, products
):
    rng = np.random.default_rng(depth)
    x = tf.constant(rng.normal(size=(3, depth)), dtype)
    kernel = tf.constant(rng.normal(size=(depth, columns)), dtype)
    multiply = tf.function(product).get_concrete_function(x, kernel)
    kinds = [node.op for node in multiply.graph.as_graph_def().node]
    assert kinds.count("MatMul") == products
    x64, kernel64 = (tf.cast(value, tf.float64) for value in (x, kernel))
    np.testing.assert_allclose(
        tf.cast(multiply(x, kernel), tf.float64),
        tf.matmul(x64, kernel64),
        rtol=0,
        atol=1e-3 if dtype == "float32" else 0.5,
    )


def test_bfloat16_logits_are_close():
    for found, expected in logits_along_random_beams(
        random_model(), "bfloat16"
    ):
        error = np.abs(found - expected).max()
        assert 0 < error < 0.03 * np.abs(expected).max()


@pytest.mark.parametrize("config", [{}, CONFIGS[-1]], ids=str)
def test_logits_of_matrices_in_int8_are_close(config):
    """A number is off by 1 / 254 of the greatest in its column at most."""
    model = random_model(**config)
    weights = inference_weights(model)
    logits = []
    for in_int8 in (True, False):
        stored = int8_weights.variables(weights, in_int8)
        fast = InferenceModel(model.config, stored)
        cache = fast.empty_cache(fast.encode(SOURCE), 1)
        for index, token in enumerate([2, 7, 31]):
            tokens = np.full((2, 1), token)
            found, cache = fast.step(tokens, cache, tf.constant(index))
        logits.append(found.numpy())
    error = np.linalg.norm(logits[0] - logits[1])
    assert 0 < error < 0.1 * np.linalg.norm(logits[1])


def test_a_shared_table_is_stored_twice():
    """It is stored as the embedding and, transposed, as the projection."""
    sizes = [
        int(tf.size(x))
        for x in tf.nest.flatten(inference_weights(random_model()))
    ]
    assert sizes.count(41 * 26) == 2


def test_suppressed_ids_have_no_probability():
    model = random_model()
    weights = inference_weights(model, suppressed_ids=[0, 7])
    fast = InferenceModel(model.config, weights)
    logits, _ = fast.step(
        tf.constant([[2], [2]]),
        fast.empty_cache(fast.encode(SOURCE), 1),
        tf.constant(0),
    )
    possible = np.isfinite(logits.numpy())
    assert not possible[:, [0, 7]].any()
    assert possible.sum() == 2 * 39


@pytest.mark.parametrize("config", [{}, {"sliding_window": 3}], ids=str)
@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_search_finds_the_same_with_the_keras_model(beam_size, config):
    """The search with the Keras model reorders the caches of its layers."""
    model = random_model(**config)
    memory = model.project_memory(model.encode(SOURCE))
    limits = [11, 7]

    def plain(tokens, cache, index):
        return model.decode_step(tokens, cache, index, memory, SOURCE != 0)

    fast = InferenceModel(model.config, inference_weights(model))

    def step(tokens, cache, index):
        return fast.step(tf.reshape(tokens, [-1, beam_size]), cache, index)

    ids, scores = beam_search(
        plain, model.empty_cache(2 * beam_size, 11), limits, beam_size
    )
    found, found_scores = beam_search(
        step,
        fast.empty_cache(fast.encode(SOURCE), beam_size),
        limits,
        beam_size,
        reorder_cache=fast.reorder_cache,
        select_rows=fast.select_rows,
    )
    np.testing.assert_array_equal(found, keras.ops.convert_to_numpy(ids))
    np.testing.assert_allclose(found_scores, scores, atol=1e-5)


@pytest.mark.parametrize("config", [{}, {"sliding_window": 2}, WIDE], ids=str)
def test_a_known_target_is_scored_in_one_pass(config):
    """Its log-probabilities are those of the Keras model, and 0 at padding."""
    model = random_model(**config)
    fast = InferenceModel(
        model.config, inference_weights(model, suppressed_ids=[9])
    )
    target = np.array([[5, 9, 7, 3], [8, 3, 0, 0]], "int32")
    found, attention = fast.read(target, fast.encode(SOURCE))
    before = np.array([[2, 5, 9, 7], [2, 8, 3, 0]], "int32")
    logits = model({"source": SOURCE, "target": before})
    every = keras.ops.log_softmax(logits).numpy()
    expected = np.take_along_axis(every, target[..., None], axis=2)[..., 0]
    np.testing.assert_allclose(found, expected * (target != 0), atol=2e-5)
    assert [x.shape for x in attention] == [
        (2, 2, 4, 5)
    ] * model.config.num_layers
    for weights in attention:
        np.testing.assert_allclose(
            tf.reduce_sum(weights, axis=-1), 1, atol=1e-6
        )
        assert not weights[1, ..., 2:].numpy().any()  # padding of the source


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_the_attention_of_the_encoder_is_that_of_its_layers(config):
    model = random_model(**config)
    fast = InferenceModel(model.config, inference_weights(model))
    memory = fast.encode(SOURCE, with_attention=True)
    exact = Transformer(model.config, dtype="float64")
    exact.set_weights(model.get_weights())
    is_real = SOURCE != 0
    places = np.arange(SOURCE.shape[1])
    distances = abs(places[:, None] - places)
    is_far = distances >= (model.config.sliding_window or len(places))
    x = exact.source_embedding(SOURCE)
    for weights, layer in zip(
        memory["encoder_attention"], exact.encoder_layers, strict=True
    ):
        x, expected = layer(x, mask=is_real, return_attention_scores=True)
        found, expected = weights.numpy(), expected.numpy()
        assert not found[0][:, is_far].any()
        for i, real in enumerate(is_real):
            rows = found[i][:, real]
            np.testing.assert_allclose(rows, expected[i][:, real], atol=2e-5)
            np.testing.assert_allclose(rows.sum(axis=-1), 1, atol=1e-6)
            assert not rows[..., ~real].any()


def test_the_memory_is_the_same_with_and_without_attention():
    """With the weights a window is a mask, without them it is in blocks."""
    model = random_model(sliding_window=2)
    fast = InferenceModel(model.config, inference_weights(model))
    plain, explained = fast.encode(SOURCE), fast.encode(SOURCE, None, True)
    assert explained.keys() - plain.keys() == {"encoder_attention"}
    for name in plain:
        for one, other in zip(
            tf.nest.flatten(plain[name]),
            tf.nest.flatten(explained[name]),
            strict=True,
        ):
            places = tf.constant([0, 1])  # real in both sentences
            np.testing.assert_allclose(
                tf.gather(one, places, axis=-2 if name == "heads" else -1),
                tf.gather(other, places, axis=-2 if name == "heads" else -1),
                atol=1e-5,
            )


def test_the_cache_of_a_window_does_not_grow():
    """It has the last r / 2 positions of each beam."""
    model = random_model(sliding_window=4)
    fast = InferenceModel(model.config, inference_weights(model))
    cache = fast.empty_cache(fast.encode(SOURCE), 5)
    for index in range(7):
        _, cache = fast.step(np.full((2, 5), 4), cache, tf.constant(index))
        kept = min(index + 1, 3)
        for keys, values in cache["heads"]:
            assert keys.shape[2] == values.shape[2] == 5 * kept
        assert cache["ancestors"].shape == (2, 5, kept)


@pytest.mark.parametrize(
    "config",
    [{}, {"use_bias": False}, {"positions": "learned", "max_length": 7}],
    ids=str,
)
def test_steps_over_feature_vectors_give_the_logits_of_the_model(config):
    model = random_model(source_features=5, norm_first=True, **config)
    fast = InferenceModel(model.config, inference_weights(model))
    vectors = np.random.default_rng(1).normal(size=(2, 5, 5)).astype("float32")
    mask = np.array([[True] * 5, [True] * 3 + [False] * 2])
    target = np.array([[2, 8, 9], [2, 30, 7]], "int32")
    expected = model({"source": vectors, "source_mask": mask, "target": target})
    cache = fast.empty_cache(fast.encode(vectors, mask), 1)
    for t in range(3):
        found, cache = fast.step(target[:, t : t + 1], cache, tf.constant(t))
        np.testing.assert_allclose(found, expected[:, t], atol=2e-5)
    unmasked = fast.encode(vectors)
    everywhere = fast.encode(vectors, np.ones((2, 5), bool))
    for one, other in zip(
        tf.nest.flatten(unmasked), tf.nest.flatten(everywhere), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("config", [{}, {"source_features": 5}], ids=str)
def test_a_source_of_another_rank_is_refused(config):
    model = random_model(**config)
    fast = InferenceModel(model.config, inference_weights(model))
    source = SOURCE if config else np.ones((2, 5, 5), "float32")
    with pytest.raises(ValueError, match=r"source.shape=\(2, 5"):
        fast.encode(source)


def test_a_quantized_model_is_refused():
    """Its matrices are numbers of another scale."""
    model = random_model()
    model.encoder_layers[0].self_attention.query_projection.quantize("int8")
    with pytest.raises(ValueError, match=r"quantized.*query in int8.*export"):
        inference_weights(model)
