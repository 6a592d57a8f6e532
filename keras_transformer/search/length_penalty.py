"""The length penalty of beam search: section 6.1."""

from keras import KerasTensor, ops

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

    n counts the end token but not the start token.

    Beam search divides log-probabilities by the penalty. It stops early on
    the assumption that the penalty never falls as n grows. Keep that property
    if you change the formula; n is at least 1. The formula is also written in
    `tests/paper.py` and `tests/test_conformance.py`, with known values in
    `tests/test_decoding.py`; `export/export_readme.md`, `export/ctranslate2.py`
    and the guides `decode_your_model.py` and `export_and_serve.py` describe it.
    Another formula is a departure: a row in `docs/paper.md`.

    Args:
        length: n, an integer or integer tensor.
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
    return (length if formula == "power" else (5.0 + length) / 6.0) ** alpha
