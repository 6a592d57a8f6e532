"""Data, section 5.1: text becomes batches. Needs TensorFlow and
tensorflow-text.

Shapes: B batch, T target length, S source length.
"""

from keras_transformer.lazy_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "SentencePairs": "corpus",
        "Tokenizer": "tokenizer",
        "load_pairs": "corpus",
        "read_lines": "corpus",
        "train_tokenizer": "tokenizer",
    },
)
