"""The Transformer of "Attention Is All You Need" for Keras 3.

Importing this package needs Keras alone, on any backend. What needs TensorFlow
is in `keras_transformer.data`, `.training`, `.inference` and `.export`.
"""

import importlib
from typing import TYPE_CHECKING

from keras_transformer import moved
from keras_transformer.cli import quiet_stderr

if TYPE_CHECKING:
    from keras_transformer.config import TransformerConfig
    from keras_transformer.layers import (
        DecoderLayer,
        EncoderLayer,
        FeatureEmbedding,
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
    from keras_transformer.schedule import TransformerSchedule
    from keras_transformer.search.balanced_trees import BalancedTrees
    from keras_transformer.search.beam_search import beam_search
    from keras_transformer.search.blockwise_search import blockwise_search
    from keras_transformer.search.length_penalty import length_penalty
    from keras_transformer.search.sampling import greedy_search, sample

__version__ = "0.1.0"

__all__ = [
    "BalancedTrees",
    "DecoderLayer",
    "EncoderLayer",
    "FeatureEmbedding",
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
    "blockwise_search",
    "causal_mask",
    "greedy_search",
    "length_penalty",
    "padding_mask",
    "sample",
]

_MODULES = (
    "config",
    "layers",
    "losses",
    "model",
    "schedule",
    "search.balanced_trees",
    "search.beam_search",
    "search.blockwise_search",
    "search.length_penalty",
    "search.sampling",
)


def _load():
    """Imports every public name, which registers the classes with Keras."""
    for path in _MODULES:
        module = importlib.import_module(f"{__name__}.{path}")
        names = set(__all__) & vars(module).keys()
        globals().update({name: vars(module)[name] for name in names})


def __getattr__(name):
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _load()
    return globals()[name]


def __dir__():
    return sorted({*globals(), *__all__})


moved.install()

# `keras.models.load_model` finds only classes that were imported, so a library
# registers them at once. The command loads no `.keras` file, and its help is
# not to wait for a backend.
if not quiet_stderr.is_command(__name__):
    _load()
