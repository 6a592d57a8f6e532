"""Weights of a trained model, rearranged for fast translation.

One matrix projects queries, keys and values; the matrix of the logits is stored
transposed; √d_k and √d_model are multiplied into the weights; and everything
is cast once. Every matrix has the plain shape `(D_in, D_out)`: other layouts
are faster with one processor's library and up to ten times as slow with
another's.
"""

import math
from collections.abc import Sequence

import tensorflow as tf

from keras_transformer.layers import FeatureEmbedding
from keras_transformer.model import Transformer


def inference_weights(
    model: Transformer, dtype: str = "float32", barred: Sequence[int] = ()
) -> dict:
    """Returns the weights of a `Transformer` as `InferenceModel` needs them.

    Args:
        model: the trained model.
        dtype: dtype of the matrices, "float32" (default) or "bfloat16". Sums,
            norms and softmax are always float32.
        barred: ids that must not be generated. Defaults to none.

    Returns:
        Nested dictionaries of tensors.
    """
    config = model.config

    def array(variable):
        return tf.cast(tf.convert_to_tensor(variable), tf.float32)

    def linear(*layers, scales=None):
        """Concatenates the outputs of several layers in one layer."""
        scales = scales or [1.0] * len(layers)
        pairs = list(zip(layers, scales, strict=True))
        kernel = tf.concat([array(x.kernel) * s for x, s in pairs], axis=1)
        result = {"kernel": tf.cast(kernel, dtype)}
        if config.use_bias:
            bias = tf.concat([array(x.bias) * s for x, s in pairs], axis=0)
            result["bias"] = tf.cast(bias, dtype)
        return result

    def norm(layer):
        return {"gamma": array(layer.gamma), "beta": array(layer.beta)}

    def layer_weights(layer, cross):
        own = layer.self_attention
        scale = 1 / math.sqrt(own.key_dim)
        result = {
            "self": linear(
                own.query_projection,
                own.key_projection,
                own.value_projection,
                scales=[scale, 1.0, 1.0],
            ),
            "self_output": linear(own.output_projection),
            "self_norm": norm(layer.self_attention_norm),
            "inner": linear(layer.feed_forward.inner),
            "outer": linear(layer.feed_forward.outer),
            "feed_forward_norm": norm(layer.feed_forward_norm),
        }
        if cross:
            other = layer.cross_attention
            result["query"] = linear(other.query_projection, scales=[scale])
            result["memory"] = linear(
                other.key_projection, other.value_projection
            )
            result["cross_output"] = linear(other.output_projection)
            result["cross_norm"] = norm(layer.cross_attention_norm)
        return result

    def embedding(layer):
        if isinstance(layer, FeatureEmbedding):
            result = linear(layer.projection)
        else:
            scale = config.d_model**0.5 if config.scale_embeddings else 1.0
            result = {"table": array(layer.embeddings) * scale}
        if config.positions == "learned":
            result["positions"] = array(layer.position_embeddings)
        return result

    def projection(layer):
        bias = tf.zeros([config.vocab_size])
        result = {"kernel": tf.transpose(array(layer.projection))}
        if config.use_logits_bias:
            result["logits_bias"] = bias = array(layer.logits_bias)
        is_barred = tf.reduce_any(
            tf.one_hot(barred, config.vocab_size, True, False), axis=0
        )
        result["bias"] = tf.where(is_barred, float("-inf"), bias)
        return {name: tf.cast(value, dtype) for name, value in result.items()}

    weights = {
        "target": embedding(model.target_embedding),
        "encoder": [layer_weights(x, False) for x in model.encoder_layers],
        "decoder": [layer_weights(x, True) for x in model.decoder_layers],
        "projection": projection(model.target_embedding),
    }
    if not config.shared_vocabulary:
        weights["source"] = embedding(model.source_embedding)
    if config.norm_first:
        weights["encoder_norm"] = norm(model.encoder_norm)
        weights["decoder_norm"] = norm(model.decoder_norm)
    return weights
