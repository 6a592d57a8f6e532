"""Data, section 5.1: turns text into batches.

Needs TensorFlow and tensorflow-text.

Shapes: B batch, T target length, S source length.
"""

from typing import TYPE_CHECKING

from keras_transformer.lazy_names import lazy_names

if TYPE_CHECKING:
    from keras_transformer.data.corpus import SentencePairs as SentencePairs
    from keras_transformer.data.corpus import load_pairs as load_pairs
    from keras_transformer.data.prepare_corpus import prepare as prepare
    from keras_transformer.data.prepared import PreparedCorpus as PreparedCorpus
    from keras_transformer.data.settings import Preparation as Preparation
    from keras_transformer.data.text_files import read_lines as read_lines
    from keras_transformer.data.tokenizer import Tokenizer as Tokenizer
    from keras_transformer.data.tokenizer import (
        train_tokenizer as train_tokenizer,
    )

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Preparation": "settings",
        "PreparedCorpus": "prepared",
        "SentencePairs": "corpus",
        "Tokenizer": "tokenizer",
        "load_pairs": "corpus",
        "prepare": "prepare_corpus",
        "read_lines": "text_files",
        "train_tokenizer": "tokenizer",
    },
)
