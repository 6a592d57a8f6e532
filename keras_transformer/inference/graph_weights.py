"""Weights of a trained model, rearranged for fast translation.

One matrix projects queries, keys and values; the matrix of the logits is stored
transposed; √d_k and √d_model are multiplied into the weights; and everything
is cast once. Every matrix has the plain shape `(D_in, D_out)`: other layouts
are faster with one processor's library and up to ten times as slow with
another's. Some matrices have more columns than D_out, see `widened`.
"""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_transformer.inference.draft_head import DraftHead
from keras_transformer.layers import FeatureEmbedding
from keras_transformer.layers.normalization import RMSNormalization
from keras_transformer.model import Transformer

SLOW_COLUMNS = 512  # a multiple of so many columns makes a matrix slow
MORE_COLUMNS = 16  # 64 bytes, a line of the processor's cache

Layer = dict[str, tf.Tensor]


def inference_weights(
    model: Transformer,
    dtype: str = "float32",
    suppressed_ids: Sequence[int] = (),
) -> dict[str, Any]:
    """Returns the weights of a `Transformer` as `InferenceModel` needs them.

    Args:
        model: the trained model.
        dtype: dtype of the matrices, "float32" (default) or "bfloat16". Sums,
            norms and softmax are always float32.
        suppressed_ids: ids that must not be generated. Defaults to none.

    Returns:
        Nested dictionaries of tensors.

    Raises:
        ValueError: if a layer is quantized.
    """
    config = model.config
    weights = {
        "target": _embedding(model.target_embedding, model, dtype),
        "encoder": [
            {**_self_attention(x, dtype), **_feed_forward(x, dtype)}
            for x in model.encoder_layers
        ],
        "decoder": [
            {
                **_self_attention(x, dtype),
                **_cross_attention(x, dtype),
                **_feed_forward(x, dtype),
            }
            for x in model.decoder_layers
        ],
        "projection": widened(_projection(model, suppressed_ids), dtype),
    }
    if not config.shared_vocabulary:
        weights["source"] = _embedding(model.source_embedding, model, dtype)
    if config.norm_first:
        weights["encoder_norm"] = _norm(model.encoder_norm)
        weights["decoder_norm"] = _norm(model.decoder_norm)
    return weights


def draft_head_weights(
    head: DraftHead,
    model: Transformer,
    dtype: str = "float32",
    suppressed_ids: Sequence[int] = (),
) -> dict[str, Any]:
    """Returns the weights of a draft head as `BlockwiseModel` needs them.

    Args:
        head: the trained draft head.
        model: the `Transformer` that it drafts for.
        dtype: as for `inference_weights`.
        suppressed_ids: as for `inference_weights`.
    """
    weights: dict[str, Any] = {
        "start": _linear(dtype, head.start),
        **_cross_attention(head, dtype),
        **_feed_forward(head, dtype),
    }
    if head.likely_pieces is not None:
        pieces = tf.constant(head.likely_pieces, tf.int32)
        likely = {
            name: tf.gather(x, pieces, axis=-1)
            for name, x in _projection(model, suppressed_ids).items()
        }
        weights["likely_pieces"] = pieces
        weights["likely"] = widened(likely, dtype)
    return weights


def _self_attention(layer, dtype):
    attention = layer.self_attention
    return {
        "self": _linear(
            dtype,
            attention.query_projection,
            attention.key_projection,
            attention.value_projection,
            scales=[_query_scale(attention), 1.0, 1.0],
        ),
        **_head_norms(attention, "self"),
        "self_output": _linear(dtype, attention.output_projection),
        "self_norm": _norm(layer.self_attention_norm),
    }


def _cross_attention(layer, dtype):
    attention = layer.cross_attention
    return {
        "query": _linear(
            dtype,
            attention.query_projection,
            scales=[_query_scale(attention)],
        ),
        **_head_norms(attention, "memory"),
        "memory": _linear(
            dtype, attention.key_projection, attention.value_projection
        ),
        "cross_output": _linear(dtype, attention.output_projection),
        "cross_norm": _norm(layer.cross_attention_norm),
    }


def _query_scale(attention):
    """Returns the factor on W^Q: 1 / √d_k, unless queries are normalised."""
    return 1.0 if attention.qk_norm else 1 / math.sqrt(attention.key_dim)


def _head_norms(attention, name):
    """Returns the scales of normalised queries, with 1 / √d_k, and keys."""
    if not attention.qk_norm:
        return {}
    scale = 1 / math.sqrt(attention.key_dim)
    return {
        f"{name}_query_norm": _array(attention.query_norm.scale) * scale,
        f"{name}_key_norm": _array(attention.key_norm.scale),
    }


def _feed_forward(layer, dtype):
    network = layer.feed_forward
    # A gate is computed in one product with the inner layer, before it.
    inner = (
        [network.gate, network.inner] if network.use_gate else [network.inner]
    )
    return {
        "inner": _linear(dtype, *inner),
        "outer": _linear(dtype, network.outer),
        "feed_forward_norm": _norm(layer.feed_forward_norm),
    }


def _embedding(layer, model, dtype):
    config = model.config
    if isinstance(layer, FeatureEmbedding):
        result = _linear(dtype, layer.projection)
    else:
        scale = config.d_model**0.5 if config.scale_embeddings else 1.0
        result = {"table": _array(layer.embeddings) * scale}
    if config.positions == "learned":
        result["positions"] = _array(layer.position_embeddings)
    return result


def _projection(model, suppressed_ids):
    """Returns the float32 layer that projects to logits.

    Its bias is -inf at suppressed ids. `logits_bias`, if there is one, is the
    trained bias, for the logits of given targets.
    """
    layer, size = model.target_embedding, model.config.vocab_size
    bias = tf.zeros([size])
    result = {"kernel": tf.transpose(_array(layer.projection))}
    if model.config.use_logits_bias:
        result["logits_bias"] = bias = _array(layer.logits_bias)
    is_suppressed = tf.reduce_any(
        tf.one_hot(suppressed_ids, size, True, False), axis=0
    )
    result["bias"] = tf.where(is_suppressed, float("-inf"), bias)
    return result


def _linear(dtype, *layers, scales=None):
    """Concatenates the outputs of several layers, scaled, in one layer."""
    pairs = list(zip(layers, scales or [1.0] * len(layers), strict=True))
    for layer in layers:
        if mode := layer.quantization_mode:
            raise ValueError(
                "A model to translate with must not be quantized. Received: "
                f"{layer.path} in {mode}. Take the model as it was before, "
                "and quantize its export by "
                "`keras-transformer export --dtype int8`."
            )
    kernel = tf.concat([_array(x.kernel) * s for x, s in pairs], axis=1)
    result = {"kernel": kernel}
    if layers[0].use_bias:
        bias = tf.concat([_array(x.bias) * s for x, s in pairs], axis=0)
        result["bias"] = bias
    return widened(result, dtype)


def _norm(layer):
    if isinstance(layer, RMSNormalization):
        return {"gamma": _array(layer.scale)}
    return {"gamma": _array(layer.gamma), "beta": _array(layer.beta)}


def _array(variable):
    return tf.cast(tf.convert_to_tensor(variable), tf.float32)


def widened(layer: Layer, dtype: str) -> Layer:
    """Casts a layer, and adds columns of zeros to a matrix that would be slow.

    Where the rows of a float32 matrix are multiples of 2 KB apart, numbers
    below one another displace each other in the processor's cache. Without
    AVX-512, oneDNN takes two to three times as long to multiply up to some
    hundred rows by such a matrix.

    Args:
        layer: `kernel` `(D_in, D_out)` and what is added to the product.
        dtype: "float32" or "bfloat16".

    Returns:
        The same in that dtype. In float32 it has 16 more columns if D_out is a
        multiple of 512 and D_in is at least 256.
    """
    depth, columns = layer["kernel"].shape
    layer = {name: tf.cast(value, dtype) for name, value in layer.items()}
    if dtype != "float32" or depth < 256 or columns % SLOW_COLUMNS:
        return layer
    return {
        name: tf.pad(x, [[0, 0]] * (len(x.shape) - 1) + [[0, MORE_COLUMNS]])
        for name, x in layer.items()
    }
