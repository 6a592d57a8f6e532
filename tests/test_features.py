"""Checks inputs of feature vectors instead of ids, on any Keras backend."""

import keras
import numpy as np
import paper
import pytest
from conformance import (
    LABELS,
    SOURCE,
    TARGET,
    V,
    compiled_on_jax,
    numpy_of,
    random,
    with_seeded_weights,
)

import keras_transformer as kt
from keras_transformer.testing import assert_no_leak

F = 5
# The vector of each id. Those at padding, of id 0, are large: nothing may
# depend on them.
VECTORS = random(11, F)
VECTORS[0] = 1000.0
MASK = SOURCE != 0
INPUTS = {"source": VECTORS[SOURCE], "source_mask": MASK, "target": TARGET}


def make_model(**options):
    shape = {"num_layers": 2, "d_model": 22, "num_heads": 2, "d_ff": 17}
    config = kt.TransformerConfig(V, source_features=F, **shape, **options)
    return with_seeded_weights(kt.Transformer(config, seed=7))


@pytest.fixture(scope="module")
def model():
    return make_model()


def test_features_are_projected_and_positions_are_added():
    layer = kt.FeatureEmbedding(22, dropout_rate=0)
    x = random(2, 7, F)
    found = numpy_of(layer(x))
    kernel, bias = layer.get_weights()
    expected = x @ kernel + bias + paper.positional_encoding(7, 22)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    shifted = numpy_of(layer(x[:, 3:], offset=3))
    np.testing.assert_allclose(shifted, found[:, 3:], atol=1e-5)


@pytest.mark.parametrize("positions", ["learned", None, "sinusoidal_halves"])
def test_positions_are_those_of_ids(positions):
    options = {"positions": positions, "max_length": 13, "dropout_rate": 0}
    ids = kt.PositionalEmbedding(3, 22, **options)
    features = kt.FeatureEmbedding(22, **options)
    ids.build((2, 7))
    features.build((2, 7, F))
    for layer in (ids, features):
        with_seeded_weights(layer)
    if positions == "learned":
        table = ids.position_embeddings
        features.position_embeddings.assign(table)
    ids.embeddings.assign(np.zeros((3, 22)))
    features.projection.bias.assign(np.zeros(22))
    np.testing.assert_allclose(
        numpy_of(features(np.zeros((2, 7, F)))),
        numpy_of(ids(np.zeros((2, 7)))),
        atol=1e-6,
    )


def test_an_implicit_mask_reaches_the_layers_that_follow():
    embedding = kt.FeatureEmbedding(22)
    encoder = kt.EncoderLayer(22, num_heads=2, d_ff=17)
    x = keras.Input((None, F))
    masked = keras.layers.Masking(1000.0)(x)
    model = keras.Model(x, encoder(embedding(masked)))
    found = numpy_of(model(INPUTS["source"]))
    expected = numpy_of(encoder(embedding(INPUTS["source"]), mask=MASK))
    np.testing.assert_allclose(found[MASK], expected[MASK], atol=1e-5)


@pytest.mark.parametrize("norm_first", [False, True])
def test_nothing_leaks(norm_first):
    model = make_model(norm_first=norm_first)

    def outputs(ids):
        source, target = ids["source"], ids["target"]
        return model(
            {
                "source": VECTORS[source],
                "source_mask": source != 0,
                "target": target,
            }
        )

    assert_no_leak(
        outputs, {"source": SOURCE, "target": TARGET}, causal="target"
    )


def test_without_a_mask_all_vectors_are_real(model):
    source = random(2, 7, F)
    found = model.encode(source)
    expected = model.encode(source, source_mask=np.ones((2, 7), bool))
    np.testing.assert_allclose(numpy_of(found), numpy_of(expected), atol=1e-6)


def test_cached_steps_equal_the_logits_of_the_model(model):
    expected = numpy_of(compiled_on_jax(model)(INPUTS))
    encoded = model.encode(INPUTS["source"], source_mask=MASK)
    memory = model.project_memory(encoded)
    cache = model.empty_cache(*TARGET.shape)
    real = TARGET != 0
    for t in range(TARGET.shape[1]):
        found, cache = model.decode_step(TARGET[:, t], cache, t, memory, MASK)
        np.testing.assert_allclose(
            numpy_of(found)[real[:, t]], expected[real[:, t], t], atol=1e-5
        )


def test_training_changes_every_weight_and_files_keep_them(tmp_path):
    model = make_model()
    model.compile(
        keras.optimizers.Adam(1e-2),
        kt.LabelSmoothedCrossEntropy(),
        jit_compile=keras.backend.backend() == "jax",
    )
    before = [numpy_of(w) for w in model.trainable_weights]
    assert np.isfinite(model.train_on_batch(INPUTS, LABELS))
    for weight, old in zip(model.trainable_weights, before, strict=True):
        assert (numpy_of(weight) != old).any(), weight.path
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(
        numpy_of(again(INPUTS)), numpy_of(model(INPUTS)), atol=1e-6
    )


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            lambda: kt.TransformerConfig(
                31, source_vocab_size=37, source_features=F
            ),
            "source_vocab_size=37, source_features=5",
        ),
        (
            lambda: kt.TransformerConfig(31, source_features=0),
            "source_features=0",
        ),
        (lambda: kt.FeatureEmbedding(0), "d_model=0"),
        (lambda: kt.FeatureEmbedding(8, positions="x"), "positions='x'"),
        (lambda: kt.FeatureEmbedding(8)(np.ones((2, 3))), r"\(2, 3\)"),
        (
            lambda: kt.FeatureEmbedding(8, positions="learned", max_length=3)(
                np.ones((2, 5, F))
            ),
            "length=5, max_length=3",
        ),
    ],
)
def test_wrong_arguments_are_refused(make, expected):
    with pytest.raises(ValueError, match=expected):
        make()
