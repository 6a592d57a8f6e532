"""Compares masks with pictures of them."""

import numpy as np
import pytest

from keras_transformer.layers import causal_mask, combine_masks, padding_mask


def drawn(picture):
    return np.array([[c == "1" for c in row.split()] for row in picture])


def test_padding_mask_is_as_drawn():
    found = padding_mask(np.array([[7, 5, 3, 0, 0]]))
    np.testing.assert_array_equal(found, drawn(["1 1 1 0 0"]))


def test_causal_mask_is_as_drawn():
    expected = drawn(["1 0 0 0", "1 1 0 0", "1 1 1 0", "1 1 1 1"])
    np.testing.assert_array_equal(causal_mask(4)[0], expected)


def test_causal_mask_with_offset_is_as_drawn():
    expected = drawn(["1 1 1 0 0", "1 1 1 1 0"])
    np.testing.assert_array_equal(causal_mask(2, 5, offset=2)[0], expected)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_combining_is_conjunction_and_none_is_neutral(missing):
    rng = np.random.default_rng(3)
    masks = [rng.random((2, 3, 5)) > 0.5 for _ in range(3)]
    expected = np.all([m for i, m in enumerate(masks) if i != missing], axis=0)
    masks[missing] = None
    np.testing.assert_array_equal(combine_masks(*masks), expected)


def test_combining_nothing_is_none():
    assert combine_masks(None, None) is None
