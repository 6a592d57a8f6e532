"""The Transformer of "Attention Is All You Need" for Keras 3.

Importing this package needs Keras alone, on any backend. What needs TensorFlow
is in `keras_transformer.data`, `.training`, `.evaluation` and `.saved_model`.
"""

from keras_transformer import chatter

if chatter.is_command(__name__):
    chatter.silence()  # before the first import of Keras

from keras_transformer.config import TransformerConfig
from keras_transformer.decoding import beam_search, length_penalty
from keras_transformer.layers import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
    PositionalEmbedding,
    causal_mask,
    padding_mask,
)
from keras_transformer.losses import (
    LabelSmoothedCrossEntropy,
    Perplexity,
    TokenAccuracy,
    TokenLoss,
)
from keras_transformer.model import Transformer
from keras_transformer.sampling import greedy_search, sample
from keras_transformer.schedule import TransformerSchedule

__version__ = "0.1.0"

__all__ = [
    "DecoderLayer",
    "EncoderLayer",
    "FeedForward",
    "LabelSmoothedCrossEntropy",
    "MultiHeadAttention",
    "Perplexity",
    "PositionalEmbedding",
    "TokenAccuracy",
    "TokenLoss",
    "Transformer",
    "TransformerConfig",
    "TransformerSchedule",
    "beam_search",
    "causal_mask",
    "greedy_search",
    "length_penalty",
    "padding_mask",
    "sample",
]
