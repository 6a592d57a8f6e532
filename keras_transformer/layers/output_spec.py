"""Shapes and dtypes of what attention returns, without running it.

Keras would find them by tracing the layer, which fails for the inputs that it
takes to be sparse, such as a symbolic `tensor * number`.
"""

import inspect

import keras


def arguments_of_call(layer, args, kwargs):
    """Returns the arguments of a call of the layer by their names."""
    return inspect.signature(layer.call).bind(*args, **kwargs).arguments


def attention_output_spec(
    layer,
    query,
    value=None,
    return_attention_scores=False,
    cache=None,
    cache_index=None,
    **_,
):
    """Returns the `KerasTensor`s of a call of `MultiHeadAttention`: one, or a
    tuple of the output, the scores and the cache, those that are asked for."""

    def announced(shape):
        return keras.KerasTensor(shape, dtype=layer.compute_dtype)

    returned = [announced(layer.compute_output_shape(query.shape))]
    if return_attention_scores:
        batch, length = query.shape[:2]
        keys = value.shape[1] if cache is None else cache["key"].shape[2]
        if cache is not None and cache_index is None:
            # Rows that share their keys are one row with more queries.
            rows = cache["key"].shape[0]
            known = None not in (rows, batch, length)
            batch, length = rows, batch * length // rows if known else None
        returned.append(announced((batch, layer.num_heads, length, keys)))
    if cache_index is not None:
        returned.append({k: announced(x.shape) for k, x in cache.items()})
    return tuple(returned) if len(returned) > 1 else returned[0]
