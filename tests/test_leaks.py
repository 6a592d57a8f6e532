"""Checks by exact gradients that no real token depends on padding."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import (
    DecoderLayer,
    EncoderLayer,
    MultiHeadAttention,
    PositionalEmbedding,
)

SOURCE = np.array([[5, 3, 2, 4, 0], [4, 0, 0, 0, 0], [1, 2, 3, 0, 0]])
TARGET = np.array([[5, 3, 0], [4, 2, 1], [1, 0, 0]])
D, LAYERS = 14, 3


def encoder(implicit, sliding_window=None, **options):
    layers = [
        EncoderLayer(D, 2, 17, 0.3, 0.2, 0.1, sliding_window=sliding_window)
        for _ in range(LAYERS)
    ]
    mask = {} if implicit else {"mask": tf.constant(SOURCE != 0)}

    def run(x, training):
        for layer in layers:
            x = layer(x, training=training, **mask, **options)
            yield x

    return run, SOURCE


def decoder_and_masks(implicit):
    layers = [DecoderLayer(D, 2, 17, 0.3, 0.2, 0.1) for _ in range(LAYERS)]
    masks = {
        "x_mask": tf.constant(TARGET != 0),
        "memory_mask": tf.constant(SOURCE != 0),
    }
    return layers, {} if implicit else masks


def memory_of_decoder(implicit):
    """The decoder's output must not see the padding of the memory."""
    layers, masks = decoder_and_masks(implicit)
    embedding = PositionalEmbedding(7, D)

    def run(memory, training):
        x = embedding(TARGET)
        for layer in layers:
            x = layer(x, memory, training=training, **masks)
            yield x

    return run, TARGET


def target_of_decoder(implicit):
    layers, masks = decoder_and_masks(implicit)
    memory = PositionalEmbedding(7, D)(SOURCE)

    def run(x, training):
        for layer in layers:
            x = layer(x, memory, training=training, **masks)
            yield x

    return run, TARGET


def attention(implicit):
    layers = [MultiHeadAttention(2, 7, dropout=0.2) for _ in range(LAYERS)]
    mask = {} if implicit else {"value_mask": tf.constant(SOURCE != 0)}

    def run(x, training):
        memory = x
        for layer in layers:
            x = layer(x, memory, training=training, **mask)
            yield x

    return run, SOURCE


NEAR = np.abs(np.arange(5)[:, None] - np.arange(5)) <= 2
STACKS = [
    (encoder, SOURCE),
    (functools.partial(encoder, use_causal_mask=True), SOURCE),
    (functools.partial(encoder, sliding_window=2), SOURCE),
    # An explicit `attention_mask` does not replace the implicit mask.
    (functools.partial(encoder, attention_mask=NEAR[None]), SOURCE),
    (memory_of_decoder, SOURCE),
    (target_of_decoder, TARGET),
    (attention, SOURCE),
]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize(("stack", "ids"), STACKS)
def test_gradient_at_padding_is_exactly_zero(stack, ids, implicit, training):
    run, output_ids = stack(implicit)
    embedding = PositionalEmbedding(7, D, dropout_rate=0.2)
    embedded = embedding(ids, training=training)
    mask = embedded._keras_mask
    with tf.GradientTape(persistent=True) as tape:
        x = tf.identity(embedded)
        tape.watch(x)
        if implicit:
            x._keras_mask = mask
        real = tf.constant((output_ids != 0)[..., None], tf.float32)
        sums = [
            tf.reduce_sum(real * tf.sin(y) * np.arange(1.0, D + 1))
            for y in run(x, training)
        ]
    assert len(sums) == LAYERS
    for total in sums:
        gradient = tape.gradient(total, x).numpy()
        assert (gradient[ids == 0] == 0).all()
        assert (gradient[ids != 0] != 0).any()
