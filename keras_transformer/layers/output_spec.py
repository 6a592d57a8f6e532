"""Shapes and dtypes of the outputs of attention, without running it.

Keras would find them by tracing the layer. That fails for inputs that Keras
assumes to be sparse, such as a symbolic `tensor * number`.
"""

from typing import Any

import keras
from keras import KerasTensor

from keras_transformer.layers.types import Cache, Output


def attention_output_spec(
    layer: keras.layers.Layer,
    query: KerasTensor,
    value: KerasTensor | None = None,
    return_attention_scores: bool = False,
    cache: Cache | None = None,
    cache_index: int | KerasTensor | None = None,
    attention_window: int | None = None,
    **_: Any,
) -> Output:
    """Returns the symbolic outputs of a call of `MultiHeadAttention`.

    Args:
        layer: a `MultiHeadAttention`.
        query, value, cache, cache_index: as in the call.
        return_attention_scores, attention_window: as in the call.

    Returns:
        The output alone, or a tuple of the output and of those of scores and
        cache that the call returns.
    """

    def symbolic(shape):
        return KerasTensor(shape, dtype=layer.compute_dtype)

    returned = [symbolic(layer.compute_output_shape(query.shape))]
    if return_attention_scores:
        batch, length = query.shape[:2]
        attended: KerasTensor = value if cache is None else cache["key"]
        keys = attended.shape[-2]  # `(B, S, D)` or `(B, H, S, d_k)`
        is_written = cache is not None and cache_index is not None
        if is_written and attention_window is not None:
            # The last positions and, for the later queries, the new ones.
            known = None not in (keys, length)
            keys = keys + length - 1 if known else None
        returned.append(symbolic((batch, layer.num_heads, length, keys)))
    if cache is not None and cache_index is not None:
        returned.append({k: symbolic(x.shape) for k, x in cache.items()})
    return tuple(returned) if len(returned) > 1 else returned[0]
