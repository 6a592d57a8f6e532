"""Settings of pairs that trained models make of text in one language.

It imports neither Keras nor TensorFlow, so the command shows its help fast.
"""

import dataclasses
import re

from keras_transformer.validation import (
    check_at_least,
    check_field,
    check_types,
    option_field,
)


@dataclasses.dataclass(frozen=True)
class SyntheticPairs:
    """Describes how pairs are made of text in one language.

    The help of each field is what `keras-transformer back-translate --help`
    prints.

    Example:

    >>> SyntheticPairs(sampling=True).tag
    'bt'

    Raises:
        ValueError: if a value is out of range.
    """

    source: str | None = option_field(
        None, "source language of the pairs (default: by the run's languages)"
    )
    target: str | None = option_field(
        None, "target language of the pairs (default: by the run's languages)"
    )
    split: str = option_field("train", "split that is written")
    tag: str = option_field(
        "bt",
        "begin each source that is made with the tag >>NAME<<, so that the "
        "model can tell it from others (Caswell et al., 2019); '' for none",
        metavar="NAME",
    )
    beam_size: int | None = option_field(
        None, "number of hypotheses to keep (default: the run's)"
    )
    alpha: float | None = option_field(
        None,
        "exponent of the length penalty (default: the run's)",
        metavar="ALPHA",
    )
    sampling: bool = option_field(
        False,
        "draw translations by their probability instead of searching the most "
        "probable ones (Edunov et al., 2018)",
    )
    seed: int = option_field(1, "seed of what is drawn")
    per_line: int = option_field(
        1, "translations of a line to take, the most probable ones"
    )
    min_score: float | None = option_field(
        None,
        "leave out translations whose mean log-probability of a word piece is "
        "less (default: none is too small)",
    )

    def __post_init__(self) -> None:
        check_types(self)
        check_at_least(self, beam_size=1, alpha=0, per_line=1)
        check_field(self, "seed", 0 <= self.seed < 2**31, "in [0, 2³¹)")
        holds = bool(re.fullmatch(r"[\w-]*", self.tag))
        check_field(self, "tag", holds, "of letters, digits, `_` and `-`")
        fits = not (self.sampling and self.per_line > 1)
        check_field(self, "per_line", fits, "1 where translations are drawn")
