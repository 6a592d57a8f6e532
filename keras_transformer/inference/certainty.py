"""How sure a model is of its translations, and which of them look wrong."""

from collections.abc import Sequence

import numpy as np

MOST_LINES = 100  # named of each kind
FACTOR = 2.5  # on the usual ratio of lengths, either way
LONG = 20  # characters from which on a length says something


def certainty(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[str],
    mean_log_probs: Sequence[float],
) -> dict:
    """Says how well log-probabilities sort good translations from bad ones.

    Example:

    >>> german = ["Die Uhr geht nach.", "Zimmer 7 ist im dritten Stock."]
    >>> guesses = ["Die Uhr geht nach.", "Zimmer 9 ist gut."]
    >>> english = ["The watch is slow.", "Room 7 is on the third floor."]
    >>> certainty(english, guesses, german, [-0.1, -1.2])["spearman"]
    1.0

    Args:
        sources, hypotheses, references: lines in the same order.
        mean_log_probs: the mean log-probability of each hypothesis' pieces.

    Returns:
        A dictionary of `pearson` and `spearman`, the correlation of the
        log-probabilities with chrF of each line, `None` where one of them is
        constant; and numbers of lines, from 1 on and at most 100 of a kind:
        `copied`, the same as their source, of at least three words; `empty`;
        and `odd_length`, 2.5 times as long, or as short, as the others are.

    Raises:
        ValueError: if the lists differ in length or are empty.
    """
    lists = sources, hypotheses, references, mean_log_probs
    sizes = [len(x) for x in lists]
    if len(set(sizes)) > 1 or not sizes[0]:
        raise ValueError(
            "Every line needs its source, hypothesis, reference and "
            "log-probability. Received: {} sources, {} hypotheses, {} "
            "references, {} log-probabilities.".format(*sizes)
        )
    from sacrebleu.metrics import CHRF  # here, so that help starts fast

    chrf = CHRF()
    scores = [
        chrf.sentence_score(hypothesis, [reference]).score
        for hypothesis, reference in zip(hypotheses, references, strict=True)
    ]
    pairs = list(zip(sources, hypotheses, strict=True))
    lengths = np.array([[len(x), len(y)] for x, y in pairs], float)
    usual = lengths[:, 1].sum() / max(lengths[:, 0].sum(), 1)
    ratios = (lengths[:, 1] + 1) / (lengths[:, 0] * usual + 1)
    kinds = {
        "copied": [
            len(x.split()) > 2 and x.strip() == y.strip() for x, y in pairs
        ],
        "empty": [bool(x.strip()) and not y.strip() for x, y in pairs],
        "odd_length": (lengths.max(axis=1) >= LONG)
        & (lengths[:, 1] > 0)
        & (np.abs(np.log(ratios)) > np.log(FACTOR)),
    }
    return {
        "pearson": _correlation(mean_log_probs, scores),
        "spearman": _correlation(_ranks(mean_log_probs), _ranks(scores)),
    } | {
        name: (np.flatnonzero(lines) + 1)[:MOST_LINES].tolist()
        for name, lines in kinds.items()
    }


def _correlation(x, y):
    x, y = (np.asarray(values, float) for values in (x, y))
    if not (np.ptp(x) and np.ptp(y)):
        return None
    return round(float(np.corrcoef(x, y)[0, 1]), 3)


def _ranks(values):
    """Returns the rank of each value; equal ones share their mean rank."""
    _, places, counts = np.unique(
        values, return_inverse=True, return_counts=True
    )
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[places]
