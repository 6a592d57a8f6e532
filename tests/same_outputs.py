"""Checks that the same weights give the same outputs on every backend.

`python tests/same_outputs.py FILE` writes the outputs of TensorFlow. With FILE
in `REFERENCE_OUTPUTS`, `pytest tests/same_outputs.py` compares those of
another backend. So neither process needs the other's backend.
"""

import os
import sys

import conformance
import numpy as np
import pytest

ROWS = [row for row in conformance.ROWS if row not in conformance.CONFIGS]


def write_reference(path):
    arrays = {
        f"{i}_{j}": output
        for i, row in enumerate(ROWS)
        for j, output in enumerate(conformance.outputs(row))
    }
    np.savez(path, **arrays)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_outputs_equal_those_of_tensorflow(row):
    reference = np.load(os.environ["REFERENCE_OUTPUTS"])
    for j, found in enumerate(conformance.outputs(row)):
        expected = reference[f"{ROWS.index(row)}_{j}"]
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


if __name__ == "__main__":
    write_reference(sys.argv[1])
