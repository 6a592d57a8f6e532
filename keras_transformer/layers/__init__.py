"""Section 3 of the paper as Keras layers, for any backend.

Shapes in this package: B batch, T target or query length, S source or key
length, H heads, D d_model, K d_k or d_v.
"""

from .attention import (
    scaled_dot_product_attention as scaled_dot_product_attention,
)
from .drop_in import replace_attention as replace_attention
from .embeddings import FeatureEmbedding as FeatureEmbedding
from .embeddings import PositionalEmbedding as PositionalEmbedding
from .embeddings import positional_encoding as positional_encoding
from .feed_forward import FeedForward as FeedForward
from .masks import causal_mask as causal_mask
from .masks import combine_masks as combine_masks
from .masks import padding_mask as padding_mask
from .multi_head_attention import MultiHeadAttention as MultiHeadAttention
from .transformer_layers import DecoderLayer as DecoderLayer
from .transformer_layers import EncoderLayer as EncoderLayer
