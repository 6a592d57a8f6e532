"""Section 3 of the paper as Keras layers, for any backend.

Shapes in this package: B batch, T target or query length, S source or key
length, H heads, D d_model, K d_k or d_v.
"""

from keras_transformer.layers.attention import scaled_dot_product_attention
from keras_transformer.layers.embeddings import (
    FeatureEmbedding,
    PositionalEmbedding,
    positional_encoding,
)
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.masks import (
    causal_mask,
    combine_masks,
    padding_mask,
)
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.transformer_layers import (
    DecoderLayer,
    EncoderLayer,
)

__all__ = [
    "DecoderLayer",
    "EncoderLayer",
    "FeatureEmbedding",
    "FeedForward",
    "MultiHeadAttention",
    "PositionalEmbedding",
    "causal_mask",
    "combine_masks",
    "padding_mask",
    "positional_encoding",
    "scaled_dot_product_attention",
]
