"""Data, section 5.1: turns text into batches.

Needs SentencePiece and NumPy; corpora of TensorFlow Datasets need that, too.

Shapes: B batch, T target length, S source length.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
