"""Settings of the search of a translator.

It imports neither Keras nor TensorFlow, so the command shows its help fast.
"""

import dataclasses
import math
from typing import Any

from keras_transformer.validation import (
    check_at_least,
    check_field,
    check_types,
    option_field,
)


@dataclasses.dataclass(frozen=True)
class SearchSettings:
    """Describes how a translation is searched.

    The defaults are those of section 6.1: "beam size of 4 and length penalty
    α = 0.6 […] maximum output length during inference to input length + 50".

    Example:

    >>> settings = SearchSettings(beam_size=1)  # greedy search
    >>> settings.alpha, settings.extra_length  # defaults
    (0.6, 50)

    Args:
        beam_size: number of hypotheses to keep. Defaults to 4.
        alpha: exponent of the length penalty. Defaults to 0.6.
        length_penalty: formula of the penalty of n word pieces: "gnmt",
            ((5 + n) / 6)^α as in the paper, or "power", n^α. Defaults to
            "gnmt".
        early_stopping: when the search of a sentence stops, see `beam_search`:
            "heuristic" (default), "never" early, or "filled".
        extra_length: number of word pieces by which a translation may be longer
            than its source. Defaults to 50.
        max_source_length: maximum number of word pieces of a source; a longer
            source is cut. Defaults to 512.
        max_length: maximum number of word pieces of a translation, end token
            included. Defaults to `None`: only `extra_length` limits it.
        min_length: minimum number of word pieces of a translation, end token
            included. Defaults to 0: no minimum.
        no_repeat_ngram_size: n: no n word pieces in a row occur twice in a
            translation. Defaults to 0: no limit.
        repetition_penalty: divisor or factor, see `beam_search`, that lowers
            the scores of word pieces that a translation has already. Defaults
            to 1: no penalty. Like the two before, it is that of transformers.
        max_beam_size: largest beam size that callers may request. Defaults to
            32.
        allow_unknown: whether the unknown piece, which has no text, may be
            generated. Defaults to False.
        recase_capitals: whether text in capitals, of two words or more, is
            translated as a sentence, and its translation written in capitals.
            Defaults to True.
        replace_punctuation: whether full-width and some typographic punctuation
            of sources becomes ASCII, see `replace_punctuation`. Defaults to
            False.
        normalize_punctuation: language of the sources, if their punctuation is
            to be normalised, see `normalize_punctuation`. Defaults to `None`.

    Raises:
        ValueError: if a value is out of range.
    """

    beam_size: int = option_field(
        4, "number of hypotheses to keep, section 6.1"
    )
    alpha: float = option_field(
        0.6, "exponent of the length penalty", metavar="ALPHA"
    )
    length_penalty: str = option_field(
        "gnmt",
        "formula of the penalty of n word pieces: gnmt, ((5 + n) / 6)^ALPHA, "
        "or power, n^ALPHA",
        choices=("gnmt", "power"),
    )
    early_stopping: str = option_field(
        "heuristic",
        "when a search stops: never, only when no unfinished hypothesis can "
        "still win; heuristic, when none has a better score at its present "
        "length; filled, as soon as there are enough finished ones",
        choices=("never", "heuristic", "filled"),
    )
    extra_length: int = 50
    max_source_length: int = 512
    max_length: int | None = None
    min_length: int = option_field(
        0, "minimum number of word pieces of a translation, its end included"
    )
    no_repeat_ngram_size: int = option_field(
        0, "let no N word pieces in a row occur twice; 0 for no limit"
    )
    repetition_penalty: float = option_field(
        1.0,
        "lower the scores of word pieces that a translation has already: a "
        "factor on their log-probabilities, in greedy search on their logits",
    )
    max_beam_size: int = 32
    allow_unknown: bool = False
    recase_capitals: bool = option_field(
        True,
        "give text in capitals to the model as it is (default: as a sentence, "
        "and its translation is written in capitals)",
        option="keep-capitals",
    )
    replace_punctuation: bool = option_field(
        False,
        "replace Unicode punctuation of sources by ASCII, and remove what does "
        "not print, as Moses does",
    )
    normalize_punctuation: str | None = option_field(
        None,
        "normalise the punctuation of sources in this language as Moses does",
        metavar="LANGUAGE",
    )

    def __post_init__(self) -> None:
        # TensorFlow would not take an integer of NumPy as int32.
        check_types(self)
        check_field(self, "alpha", math.isfinite(self.alpha), "a finite number")
        object.__setattr__(self, "alpha", float(self.alpha))
        check_at_least(
            self,
            beam_size=1,
            alpha=0,
            extra_length=0,
            max_source_length=1,
            max_length=1,
            min_length=0,
            no_repeat_ngram_size=0,
        )
        is_positive = 0 < self.repetition_penalty < math.inf
        expected = "positive and finite"
        check_field(self, "repetition_penalty", is_positive, expected)
        for field in dataclasses.fields(self):
            if choices := field.metadata.get("choices"):
                holds = getattr(self, field.name) in choices
                expected = f"one of {', '.join(choices)}"
                check_field(self, field.name, holds, expected)
        is_possible = self.beam_size <= self.max_beam_size
        expected = f"at most {self.max_beam_size}"
        check_field(self, "beam_size", is_possible, expected)

    def penalty(self, length: int) -> float:
        """Returns the length penalty of a number of word pieces."""
        is_power = self.length_penalty == "power"
        return (length if is_power else (5 + length) / 6) ** self.alpha

    def longest(self, positions: int | None = None) -> tuple[int, int]:
        """Returns the maximum numbers of word pieces of a source and of a
        translation, end tokens included.

        Args:
            positions: number of learned positions of the model. Defaults to
                `None`: it takes any number.
        """
        source = self.max_source_length + 1
        source = min(source, positions or source)
        target = source + self.extra_length
        target = min(target, self.max_length or target, positions or target)
        return source, target

    @property
    def rules(self) -> dict[str, Any]:
        """Arguments of a search that say what a translation must be like; none
        where nothing is asked."""
        rules: dict[str, Any] = {}
        if self.min_length > 1:  # the end token is always there
            rules["min_lengths"] = [self.min_length]
        if self.no_repeat_ngram_size:
            rules["no_repeat_ngram_size"] = self.no_repeat_ngram_size
        if self.repetition_penalty != 1:
            rules["repetition_penalty"] = self.repetition_penalty
        return rules
