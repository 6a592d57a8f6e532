"""A trained model's weights, laid out for translating.

Queries, keys and values are one product, the table of the projection lies
transposed, √d_k and √d_model are part of the weights, and everything is cast
once. Every matrix is a plain `(D_in, D_out)`: other layouts are faster with one
processor's library and up to ten times as slow with another's.
"""

import math

import tensorflow as tf


def inference_weights(model, dtype="float32", barred=()) -> dict:
    """The weights of a `Transformer` as `InferenceModel` wants them.

    Args:
        model: a `Transformer`.
        dtype: of the matrices: "float32" or "bfloat16". Sums, norms and
            softmax are float32 always.
        barred: ids that are never to be generated.

    Returns:
        Nested dictionaries of tensors.
    """
    config = model.config

    def array(variable):
        return tf.cast(tf.convert_to_tensor(variable), tf.float32)

    def linear(*layers, scales=None):
        """Several layers side by side."""
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
        scale = math.sqrt(config.d_model)
        result = {"table": array(layer.embeddings) * scale}
        if config.positions == "learned":
            result["positions"] = array(layer.position_embeddings)
        return result

    target = embedding(model.target_embedding)
    table = array(model.target_embedding.embeddings)
    weights = {
        "target": target,
        "encoder": [layer_weights(x, False) for x in model.encoder_layers],
        "decoder": [layer_weights(x, True) for x in model.decoder_layers],
        "projection": {
            "kernel": tf.cast(tf.transpose(table), dtype),
            "bias": tf.cast(
                tf.where(
                    tf.reduce_any(
                        tf.one_hot(barred, config.vocab_size, True, False),
                        axis=0,
                    ),
                    float("-inf"),
                    tf.zeros([config.vocab_size]),
                ),
                dtype,
            ),
        },
    }
    if not config.shared_vocabulary:
        weights["source"] = embedding(model.source_embedding)
    if config.norm_first:
        weights["encoder_norm"] = norm(model.encoder_norm)
        weights["decoder_norm"] = norm(model.decoder_norm)
    return weights
