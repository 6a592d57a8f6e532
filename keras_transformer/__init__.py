"""The Transformer of "Attention Is All You Need" for Keras 3.

Importing this package needs Keras alone, on any backend. What needs TensorFlow
is in `keras_transformer.data`, `.training`, `.evaluation` and `.saved_model`.
"""

import importlib
from typing import TYPE_CHECKING

from keras_transformer import chatter

if TYPE_CHECKING:
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

_MODULES = (
    "config",
    "decoding",
    "layers",
    "losses",
    "model",
    "sampling",
    "schedule",
)


def _load():
    """Imports every public name, which registers the classes with Keras."""
    for module in _MODULES:
        module = importlib.import_module(f"{__name__}.{module}")
        names = set(__all__) & vars(module).keys()
        globals().update({name: vars(module)[name] for name in names})


def __getattr__(name):
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _load()
    return globals()[name]


def __dir__():
    return sorted({*globals(), *__all__})


# `keras.models.load_model` finds only classes that were imported, so a library
# registers them at once. The command loads no `.keras` file, and its help is
# not to wait for a backend.
if not chatter.is_command(__name__):
    _load()
