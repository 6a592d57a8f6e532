"""Checks the functional model: its weights, masks, steps and files."""

import json
import pathlib

import keras
import numpy as np
import paper
import pytest
from keras import ops

from keras_transformer import (
    LabelSmoothedCrossEntropy,
    Transformer,
    TransformerConfig,
)

V = 31
SMALL = TransformerConfig(V, num_layers=3, d_model=22, num_heads=2, d_ff=17)
SOURCE = np.array([[5, 6, 7, 8, 3], [9, 3, 0, 0, 0], [4, 4, 3, 0, 0]])
TARGET = np.array([[2, 5, 6], [2, 7, 0], [2, 11, 13]])
INPUTS = {"source": SOURCE, "target": TARGET}

# Section 2 of table 3: parameters of the two stacks, no embedding.
STACKS = [
    ("base", {}, 44_138_496),
    ("big", {}, 176_357_376),
    ("tiny", {}, 1_325_056),
    ("h=1", {"num_heads": 1}, 44_138_496),
    ("h=32", {"num_heads": 32}, 44_138_496),
    ("d_k=16", {"key_dim": 16, "value_dim": 64}, 44_138_496 - 7_091_712),
    ("d_k=32", {"key_dim": 32, "value_dim": 64}, 44_138_496 - 4_727_808),
    ("N=2", {"num_layers": 2}, 14_712_832),
    ("N=4", {"num_layers": 4}, 29_425_664),
    ("N=8", {"num_layers": 8}, 58_851_328),
    ("d=256", {"d_model": 256, "key_dim": 32}, 17_362_944),
    ("d=1024", {"d_model": 1024, "key_dim": 128}, 126_001_152),
    ("d_ff=1024", {"d_ff": 1024}, 31_543_296),
    ("d_ff=4096", {"d_ff": 4096}, 69_328_896),
]


@pytest.mark.parametrize(("name", "changes", "expected"), STACKS)
def test_parameter_counts_equal_table_3(name, changes, expected):
    preset = name if not changes else "base"
    config = TransformerConfig.preset(preset, vocab_size=5, **changes)
    d, h, f = config.d_model, config.num_heads, config.d_ff
    dk = config.key_dim or d // h
    dv = config.value_dim or dk
    closed = config.num_layers * (
        paper.encoder_layer_parameters(d, h, dk, dv, f)
        + paper.decoder_layer_parameters(d, h, dk, dv, f)
    )
    assert closed == expected
    # All layers are alike, so one encoder and one decoder layer are enough.
    model = Transformer(
        TransformerConfig.from_dict({**config.to_dict(), "num_layers": 1})
    )
    assert model.count_params() - 5 * d == expected // config.num_layers


def test_source_target_and_output_share_one_embedding():
    assert Transformer(SMALL).target_embedding.count_params() == V * 22
    model = Transformer(SMALL)
    assert model.source_embedding is model.target_embedding


def test_two_vocabularies_have_two_embeddings():
    config = TransformerConfig.from_dict(
        {**SMALL.to_dict(), "source_vocab_size": 43}
    )
    two, one = Transformer(config), Transformer(SMALL)
    assert two.count_params() == one.count_params() + 43 * 22
    source = np.where(SOURCE == 9, 42, SOURCE)
    assert two({"source": source, "target": TARGET}).shape == (3, 3, V)


def test_names_and_shapes_of_weights_stay_the_same():
    """Checkpoints depend on these names and shapes."""
    path = pathlib.Path(__file__).with_name("weight_tree.json")
    model = Transformer(
        TransformerConfig(V, num_layers=1, d_model=22, num_heads=2, d_ff=17)
    )
    found = [[w.path, list(w.shape)] for w in model.weights]
    assert found == json.loads(path.read_text()), (
        "The weights changed, so old checkpoints do not load. If that is "
        "meant: raise FORMAT in checkpoints.py, note it in the changelog, and "
        f"write this to {path.name}: {json.dumps(found)}"
    )


def test_the_future_does_not_leak_in_training():
    """Outputs are equal bit for bit, since equal seeds drop the same."""
    config = TransformerConfig.from_dict(
        {**SMALL.to_dict(), "attention_dropout_rate": 0.2}
    )

    def run(target):
        model = Transformer(config, seed=5)
        model.set_weights(weights)
        inputs = {"source": SOURCE, "target": target}
        return np.asarray(model(inputs, training=True))

    weights = Transformer(config).get_weights()
    other = TARGET.copy()
    other[:, 2] = 17
    before, after = run(TARGET), run(other)
    np.testing.assert_array_equal(before[:, :2], after[:, :2])
    assert (before[0, 2] != after[0, 2]).any()


def test_rows_of_padding_alone_have_finite_logits():
    inputs = {"source": np.zeros((2, 5), int), "target": np.zeros((2, 3), int)}
    assert np.isfinite(np.asarray(Transformer(SMALL)(inputs))).all()


@pytest.mark.parametrize(
    "policy", ["float32", "mixed_bfloat16", "mixed_float16"]
)
def test_a_keras_file_round_trips(policy, tmp_path):
    model = Transformer(SMALL, seed=3, dtype=policy)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.config == SMALL
    assert again.dtype_policy.name == policy
    assert again.get_config() == model.get_config()
    np.testing.assert_array_equal(again(INPUTS), model(INPUTS))


def test_frozen_layers_stay_frozen_in_a_file(tmp_path):
    model = Transformer(SMALL)
    model.encoder_layers[0].trainable = False
    model.compile(
        keras.optimizers.Adam(), LabelSmoothedCrossEntropy(), run_eagerly=True
    )
    model.fit(INPUTS, INPUTS["target"], verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    names = [[w.path for w in m.trainable_weights] for m in (model, again)]
    assert names[0] == names[1]
    assert int(again.optimizer.iterations) == 1


def test_initial_weights_have_the_configured_scale():
    for scale in (1.0, 0.25):
        config = TransformerConfig.preset(
            "tiny", vocab_size=31, num_layers=1, initializer_scale=scale
        )
        layer = Transformer(config).decoder_layers[0]
        inner = layer.feed_forward.inner.kernel
        outer = layer.feed_forward.outer.kernel
        largest = (6 * scale / (128 + 256)) ** 0.5  # Glorot's, by √scale
        for kernel in (inner, outer):
            assert largest * 0.99 < ops.max(ops.abs(kernel)) <= largest
        assert ops.any(inner != ops.transpose(outer))


def test_the_model_learns_one_batch():
    model = Transformer(
        TransformerConfig(V, num_layers=1, d_model=22, num_heads=2, d_ff=17)
    )
    model.compile(keras.optimizers.Adam(1e-3), LabelSmoothedCrossEntropy())
    labels = np.array([[5, 6, 3], [7, 3, 0], [11, 13, 3]])
    history = model.fit(INPUTS, labels, epochs=30, verbose=0).history["loss"]
    assert history[-1] < 0.8 * history[0]
