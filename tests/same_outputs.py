"""The same weights give the same outputs on every backend.

The TensorFlow process writes its outputs, `python tests/same_outputs.py FILE`;
a process of another backend is started with FILE in `REFERENCE_OUTPUTS` and
compares: `pytest tests/same_outputs.py`. So neither needs the other's backend.
"""

import os
import sys

import conformance
import numpy as np
import pytest

ROWS = [row for row in conformance.ROWS if row not in conformance.CONFIGS]


def write(path):
    arrays = {
        f"{i}_{j}": output
        for i, row in enumerate(ROWS)
        for j, output in enumerate(conformance.outputs(row))
    }
    np.savez(path, **arrays)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_outputs_are_tensorflows(row):
    reference = np.load(os.environ["REFERENCE_OUTPUTS"])
    for j, found in enumerate(conformance.outputs(row)):
        expected = reference[f"{ROWS.index(row)}_{j}"]
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


if __name__ == "__main__":
    write(sys.argv[1])
