"""The length penalty of beam search: section 6.1."""

from keras import ops


def length_penalty(length, alpha):
    """Returns ((5 + n) / 6)^α of Wu et al. (2016), which the paper uses with
    α = 0.6.

    Example:

    >>> print(f"{float(length_penalty(7, 0.6)):.4f}")
    1.5157

    n counts the end token and not the start token. Other systems divide by
    n^α, so values of α are not portable between systems.

    Beam search divides log-probabilities by it. The search stops early on the
    assumption that the penalty never falls as n grows: a formula of your own
    must not fall either.

    Args:
        length: integer or integer tensor, n.
        alpha: number or scalar tensor, α ≥ 0.

    Returns:
        float32, of the shape of `length`.
    """
    return ((5.0 + ops.cast(length, "float32")) / 6.0) ** alpha
