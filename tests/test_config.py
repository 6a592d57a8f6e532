"""Checks the presets, the errors and the JSON of `TransformerConfig`."""

import dataclasses
import json

import numpy as np
import pytest

from keras_transformer import TransformerConfig


def test_presets_equal_table_3():
    base = TransformerConfig.preset("base", vocab_size=37_000)
    assert base == TransformerConfig(37_000)
    shape = (base.num_layers, base.d_model, base.d_ff, base.num_heads)
    assert (*shape, base.dropout_rate) == (6, 512, 2048, 8, 0.1)
    big = TransformerConfig.preset("big", vocab_size=37_000)
    shape = (big.num_layers, big.d_model, big.d_ff, big.num_heads)
    assert (*shape, big.dropout_rate) == (6, 1024, 4096, 16, 0.3)


def test_a_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TransformerConfig(31).d_model = 7


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"vocab_size": 3}, "vocab_size=3"),
        ({"vocab_size": 31, "d_model": 10, "num_heads": 3}, "num_heads=3"),
        ({"vocab_size": 31, "dropout_rate": 1.0}, "dropout_rate=1.0"),
        ({"vocab_size": 31, "d_ff": 0}, "d_ff=0"),
        ({"vocab_size": 31, "dff": 7}, "Unknown fields.*dff"),
        ({"vocab_size": 31, "positions": "sinus"}, "positions='sinus'"),
        ({"vocab_size": 31, "positions": "learned"}, "max_length=None"),
        ({"vocab_size": 31, "max_length": 0}, "max_length=0"),
        ({"vocab_size": 31.0}, r"vocab_size=31\.0"),
        ({"vocab_size": 31, "num_layers": True}, "num_layers=True"),
        ({"vocab_size": 31, "source_vocab_size": 2}, "source_vocab_size=2"),
        ({"vocab_size": 31, "key_dim": 0}, "key_dim=0"),
        ({"vocab_size": 31, "norm_first": "yes"}, "norm_first='yes'"),
        ({"vocab_size": 31, "activation": None}, "activation=None"),
        ({"vocab_size": 31, "layer_norm_epsilon": 0}, "layer_norm_epsilon=0"),
        ({"vocab_size": 31, "sliding_window": 0}, "sliding_window=0"),
        ({"num_key_value_heads": 3}, "divisor of num_heads=8.*_heads=3"),
        ({"num_key_value_heads": 0}, "at least 1.*num_key_value_heads=0"),
        ({"positions": "rotary", "key_dim": 7}, "even.*key_dim=7"),
        ({"positions": "rotary", "d_model": 72}, "even.*key_dim=9"),
        ({"normalization": "batch"}, "'layer', 'rms'.*='batch'"),
        ({"feed_forward": "geglu"}, "'ffn', 'swiglu'.*='geglu'"),
        ({"qk_norm": 1}, "qk_norm=1"),
    ],
)
def test_errors_name_what_was_received(values, message):
    with pytest.raises(ValueError, match=message):
        TransformerConfig.from_dict({"vocab_size": 31} | values)


def test_integers_of_numpy_become_pythons():
    config = TransformerConfig(np.int64(31), key_dim=np.int32(7))
    config = json.loads(json.dumps(config.to_dict()))
    assert (config["vocab_size"], config["key_dim"]) == (31, 7)


def test_the_error_for_an_unknown_preset_lists_the_presets():
    with pytest.raises(ValueError, match=r"tiny, base, big.*'huge'"):
        TransformerConfig.preset("huge", vocab_size=31)
