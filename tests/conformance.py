"""One description of every public layer: how to make it and what it takes."""

import numpy as np

import keras_transformer as kt

B, T, S, D = 2, 3, 5, 14


def random(*shape):
    return (
        np.random.default_rng(sum(shape)).normal(size=shape).astype("float32")
    )


IDS = np.array([[5, 3, 0], [4, 0, 0]], "int32")

# Class, arguments that are all other than the defaults, inputs.
LAYERS = {
    "MultiHeadAttention": (
        kt.MultiHeadAttention,
        {
            "num_heads": 2,
            "key_dim": 3,
            "value_dim": 5,
            "dropout": 0.2,
            "use_bias": False,
            "output_shape": 11,
            "kernel_initializer": "he_normal",
            "bias_initializer": "ones",
            "kernel_regularizer": "l2",
            "bias_regularizer": "l1",
            "activity_regularizer": "l2",
            "kernel_constraint": "max_norm",
            "bias_constraint": "non_neg",
            "seed": 7,
        },
        (random(B, T, D), random(B, S, D)),
    ),
    "PositionalEmbedding": (
        kt.PositionalEmbedding,
        {
            "vocab_size": 7,
            "d_model": D,
            "positions": "learned",
            "max_length": 13,
            "dropout_rate": 0.2,
            "mask_zero": False,
            "embeddings_initializer": "uniform",
            "seed": 7,
        },
        (IDS,),
    ),
    "FeedForward": (
        kt.FeedForward,
        {
            "d_model": D,
            "d_ff": 17,
            "activation": "gelu",
            "dropout_rate": 0.2,
            "use_bias": False,
            "kernel_initializer": "he_normal",
            "seed": 7,
        },
        (random(B, T, D),),
    ),
}
_RESIDUAL = {
    "d_model": D,
    "num_heads": 2,
    "d_ff": 17,
    "dropout_rate": 0.2,
    "attention_dropout_rate": 0.3,
    "activation_dropout_rate": 0.4,
    "norm_first": True,
    "key_dim": 3,
    "value_dim": 5,
    "activation": "gelu",
    "use_bias": False,
    "layer_norm_epsilon": 1e-3,
    "kernel_initializer": "he_normal",
    "seed": 7,
}
LAYERS["EncoderLayer"] = (kt.EncoderLayer, _RESIDUAL, (random(B, T, D),))
LAYERS["DecoderLayer"] = (
    kt.DecoderLayer,
    _RESIDUAL,
    (random(B, T, D), random(B, S, D)),
)
