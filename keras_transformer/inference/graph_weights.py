"""Weights of a trained model, rearranged for fast translation.

One matrix projects queries, keys and values; the matrix of the logits is stored
transposed; √d_k and √d_model are multiplied into the weights; and everything
is cast once. Every matrix has the plain shape `(D_in, D_out)`: other layouts
are faster with one processor's library and up to ten times as slow with
another's. Some matrices have more columns than D_out, see `widened`.
"""

import math
from collections.abc import Sequence

import tensorflow as tf

from keras_transformer.inference.draft_head import ProposalLayer
from keras_transformer.layers import FeatureEmbedding
from keras_transformer.model import Transformer

SLOW_COLUMNS = 512  # a multiple of so many columns makes a matrix slow
MORE_COLUMNS = 16  # 64 bytes, a line of the processor's cache


def inference_weights(
    model: Transformer,
    dtype: str = "float32",
    barred: Sequence[int] = (),
    proposals: ProposalLayer | None = None,
) -> dict:
    """Returns the weights of a `Transformer` as `InferenceModel` needs them.

    Args:
        model: the trained model.
        dtype: dtype of the matrices, "float32" (default) or "bfloat16". Sums,
            norms and softmax are always float32.
        barred: ids that must not be generated. Defaults to none.
        proposals: a `ProposalLayer` for a `BlockwiseModel`, or `None`
            (default).

    Returns:
        Nested dictionaries of tensors.

    Raises:
        ValueError: if a layer is quantized.
    """
    config = model.config

    def array(variable):
        return tf.cast(tf.convert_to_tensor(variable), tf.float32)

    def linear(*layers, scales=None):
        """Concatenates the outputs of several layers in one layer."""
        scales = scales or [1.0] * len(layers)
        pairs = list(zip(layers, scales, strict=True))
        for layer in layers:
            _check_plain(layer)
        kernel = tf.concat([array(x.kernel) * s for x, s in pairs], axis=1)
        result = {"kernel": kernel}
        if layers[0].use_bias:
            bias = tf.concat([array(x.bias) * s for x, s in pairs], axis=0)
            result["bias"] = bias
        return widened(result, dtype)

    def norm(layer):
        return {"gamma": array(layer.gamma), "beta": array(layer.beta)}

    def self_attention(layer):
        attention = layer.self_attention
        return {
            "self": linear(
                attention.query_projection,
                attention.key_projection,
                attention.value_projection,
                scales=[1 / math.sqrt(attention.key_dim), 1.0, 1.0],
            ),
            "self_output": linear(attention.output_projection),
            "self_norm": norm(layer.self_attention_norm),
        }

    def cross_attention(layer):
        attention = layer.cross_attention
        return {
            "query": linear(
                attention.query_projection,
                scales=[1 / math.sqrt(attention.key_dim)],
            ),
            "memory": linear(
                attention.key_projection, attention.value_projection
            ),
            "cross_output": linear(attention.output_projection),
            "cross_norm": norm(layer.cross_attention_norm),
        }

    def feed_forward(layer):
        return {
            "inner": linear(layer.feed_forward.inner),
            "outer": linear(layer.feed_forward.outer),
            "feed_forward_norm": norm(layer.feed_forward_norm),
        }

    def embedding(layer):
        if isinstance(layer, FeatureEmbedding):
            result = linear(layer.projection)
        else:
            scale = config.d_model**0.5 if config.scale_embeddings else 1.0
            result = {"table": array(layer.embeddings) * scale}
        if config.positions == "learned":
            result["positions"] = array(layer.position_embeddings)
        return result

    def projection(layer, pieces=None):
        """Returns what projects to the logits of some pieces, or of all."""
        bias = tf.zeros([config.vocab_size])
        result = {"kernel": tf.transpose(array(layer.projection))}
        if config.use_logits_bias:
            result["logits_bias"] = bias = array(layer.logits_bias)
        is_barred = tf.reduce_any(
            tf.one_hot(barred, config.vocab_size, True, False), axis=0
        )
        result["bias"] = tf.where(is_barred, float("-inf"), bias)
        if pieces is not None:
            result = {
                name: tf.gather(x, pieces, axis=-1)
                for name, x in result.items()
            }
        return widened(result, dtype)

    weights = {
        "target": embedding(model.target_embedding),
        "encoder": [
            {**self_attention(x), **feed_forward(x)}
            for x in model.encoder_layers
        ],
        "decoder": [
            {**self_attention(x), **cross_attention(x), **feed_forward(x)}
            for x in model.decoder_layers
        ],
        "projection": projection(model.target_embedding),
    }
    if not config.shared_vocabulary:
        weights["source"] = embedding(model.source_embedding)
    if config.norm_first:
        weights["encoder_norm"] = norm(model.encoder_norm)
        weights["decoder_norm"] = norm(model.decoder_norm)
    if proposals is not None:
        weights["proposals"] = {
            "start": linear(proposals.start),
            **cross_attention(proposals),
            **feed_forward(proposals),
        }
        if proposals.likely_pieces is not None:
            pieces = tf.constant(proposals.likely_pieces, tf.int32)
            weights["proposals"] |= {
                "likely_pieces": pieces,
                "likely": projection(model.target_embedding, pieces),
            }
    return weights


def _check_plain(layer):
    if mode := layer.quantization_mode:
        raise ValueError(
            "A model to translate with must not be quantized. Received: "
            f"{layer.path} in {mode}. Take the model as it was before, and "
            "quantize its export by "
            "`keras-transformer export --dtype int8`."
        )


def widened(layer: dict[str, tf.Tensor], dtype: str) -> dict[str, tf.Tensor]:
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
