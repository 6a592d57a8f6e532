"""The length penalty of beam search: section 6.1."""

from keras import KerasTensor, ops

# Beam search stops early because a penalty never falls as n grows. Whoever adds
# a formula finds the present ones in `paper.py`, `test_conformance.py` and
# `test_decoding.py` of the tests, in `export_readme.md` and `ctranslate2.py` of
# the exports, in the guides, and as departures in `docs/paper.md`.
FORMULAS = ("gnmt", "power")


def length_penalty(
    length: int | KerasTensor,
    alpha: float | KerasTensor,
    formula: str = "gnmt",
) -> KerasTensor:
    """Returns the length penalty ((5 + n) / 6)^α of Wu et al. (2016).

    The paper uses it with α = 0.6. The other formula, "power", is n^α, which
    Marian, CTranslate2 and transformers have. Values of α are not portable
    from one formula to the other.

    Example:

    >>> print(f"{float(length_penalty(7, 0.6)):.4f}")
    1.5157

    Beam search divides log-probabilities by the penalty.

    Args:
        length: n, an integer or integer tensor, at least 1. It counts the end
            token but not the start token.
        alpha: α ≥ 0, a number or scalar tensor.
        formula: "gnmt" (default) or "power".

    Returns:
        float32 tensor of the shape of `length`.

    Raises:
        ValueError: if `formula` is unknown.
    """
    if formula not in FORMULAS:
        raise ValueError(
            f"`formula` must be one of {', '.join(FORMULAS)}. "
            f"Received: formula={formula!r}"
        )
    length = ops.cast(length, "float32")
    base = length if formula == "power" else (5.0 + length) / 6.0
    return base ** ops.cast(alpha, "float32")
