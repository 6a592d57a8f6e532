"""Models that others have trained, imported as runs of this package."""

from typing import TYPE_CHECKING

from keras_transformer.lazy_names import lazy_names

if TYPE_CHECKING:
    from keras_transformer.pretrained.marian import (
        import_marian as import_marian,
    )

__all__, __getattr__, __dir__ = lazy_names(
    __name__, {"import_marian": "marian"}
)
