"""Every public name has an example, and it runs."""

import doctest
import sys

import pytest

import keras_transformer
from keras_transformer.checks import assert_no_leak

PUBLIC = [getattr(keras_transformer, n) for n in keras_transformer.__all__]


@pytest.mark.parametrize(
    "public", [*PUBLIC, assert_no_leak], ids=lambda public: public.__name__
)
def test_the_example_runs(public):
    names = vars(sys.modules[public.__module__])
    finder = doctest.DocTestFinder(recurse=False)
    (test,) = finder.find(public, public.__name__, globs=dict(names))
    assert test.examples
    report = []
    doctest.DocTestRunner().run(test, out=report.append)
    assert not report, "".join(report)
