"""Checks positions that a subclass computes inside attention."""

import keras
import numpy as np
import pytest
from conformance import assert_close, random
from keras import ops

from keras_transformer import DecoderLayer, MultiHeadAttention

B, T, S, D, H, F = 2, 3, 5, 14, 2, 17


@keras.saving.register_keras_serializable(package="tests")
class TurningAttention(MultiHeadAttention):
    """Turns the first two dimensions of each head by its position."""

    def encode_positions(self, heads, first):
        first = ops.reshape(ops.cast(first, "int32"), (-1, 1, 1))
        places = first + ops.arange(ops.shape(heads)[2], dtype="int32")
        angles = ops.cast(places, heads.dtype)[..., None]  # [B or 1, 1, T, 1]
        sin, cos = ops.sin(angles), ops.cos(angles)
        a, b, rest = ops.split(heads, [1, 2], axis=-1)
        turned = [a * cos - b * sin, a * sin + b * cos, rest]
        return ops.concatenate(turned, axis=-1)


@keras.saving.register_keras_serializable(package="tests")
class TurningDecoderLayer(DecoderLayer):
    self_attention_class = TurningAttention


@pytest.mark.parametrize("window", [None, 4])
def test_positions_inside_attention_are_the_same_step_by_step(window):
    layer = TurningDecoderLayer(D, H, F, sliding_window=window)
    x, memory = random(B, 7, D), random(B, S, D)
    expected = layer(x, memory)
    cache, memory_cache = layer.empty_cache(B, 7), layer.project_memory(memory)
    for first, length in ((0, 3), (3, 1), (4, 1), (5, 1), (6, 1)):
        found, cache = layer(
            x[:, first : first + length],
            cache=cache,
            cache_index=first,
            memory_cache=memory_cache,
        )
        assert_close(found, expected[:, first : first + length])


@pytest.mark.parametrize("window", [None, 4])
def test_rows_at_different_positions_are_turned_by_their_own(window):
    layer = TurningDecoderLayer(D, H, F, sliding_window=window)
    x, memory = random(B, 7, D), random(B, S, D)
    expected, starts = layer(x, memory), [4, 2]
    memory_cache, caches = layer.project_memory(memory), []
    for i, start in enumerate(starts):
        cache = layer.empty_cache(1, 7)
        own = {k: v[i : i + 1] for k, v in memory_cache.items()}
        for k in range(start):
            _, cache = layer(
                x[i : i + 1, k : k + 1],
                cache=cache,
                cache_index=k,
                memory_cache=own,
            )
        caches.append(cache)
    found, _ = layer(
        np.stack([x[i, k : k + 2] for i, k in enumerate(starts)]),
        cache={k: ops.concatenate([c[k] for c in caches]) for k in caches[0]},
        cache_index=np.array(starts),
        memory_cache=memory_cache,
    )
    for i, k in enumerate(starts):
        assert_close(found[i], expected[i, k : k + 2])


def test_positions_inside_attention_are_distances(tmp_path):
    """Padding on the left changes positions, but no distance."""
    inputs, memory = keras.Input((None, D)), keras.Input((None, D))
    mask = keras.Input((None,), dtype="bool")
    layer = TurningDecoderLayer(D, H, F)
    outputs = layer(inputs, memory, x_mask=mask)
    model = keras.Model([inputs, memory, mask], outputs)
    model.save(tmp_path / "model.keras")
    model = keras.saving.load_model(tmp_path / "model.keras")
    x, m = random(B, T, D), random(B, S, D)
    later = np.concatenate([random(B, 5, D), x], axis=1)
    real = np.arange(5 + T) >= 5
    expected = model([x, m, np.ones((B, T), bool)])
    found = model([later, m, np.tile(real, (B, 1))])
    assert_close(found[:, 5:], expected)
    plain = DecoderLayer(D, H, F)
    plain.build(x.shape, m.shape)
    plain.set_weights(layer.get_weights())
    with pytest.raises(AssertionError):
        assert_close(plain(x, m), expected, tolerance=1e-3)


def test_attention_to_the_memory_has_no_positions():
    layer = TurningDecoderLayer(D, H, F)
    assert type(layer.self_attention) is TurningAttention
    assert type(layer.cross_attention) is MultiHeadAttention
