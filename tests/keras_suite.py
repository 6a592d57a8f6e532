"""Keras' own tests of its attention layer, run on ours.

    python tests/keras_suite.py

prints which pass, and why the others cannot. It fails if others fail than
those that are listed here, or if one of them passes.
"""

import sys
import types
import unittest

import keras
from keras.src import layers
from keras.src.layers.attention import multi_head_attention_test

import keras_transformer as kt

RANK = "inputs and outputs have rank 3"
HOOK = "there is no method `_compute_attention` to override"
WORDS = "the error has other words"
DIFFERENT = {
    "attention_axes_negative_indexing": RANK,
    "causal_only_masks_non_4d_inputs": RANK,
    "compute_output_shape_different_qv_last_dims": RANK,
    "compute_output_shape_high_dim_different_proj": RANK,
    "compute_output_shape_high_dim_same_proj": RANK,
    "compute_output_shape_with_key_different_proj": RANK,
    "compute_output_shape_without_key_different_proj": RANK,
    "high_dim_attention_4d_inputs_1freebatch_mask2": RANK,
    "high_dim_attention_4d_inputs_1freebatch_mask3": RANK,
    "high_dim_attention_4d_inputs_1freebatch_mask4": RANK,
    "high_dim_attention_4d_inputs_2d_attention": RANK,
    "high_dim_attention_5d_inputs_2d_attention": RANK,
    "high_dim_attention_5d_inputs_2d_attention_fullmask": RANK,
    "multi_head_attention_output_shape_as_tuple": RANK,
    "shape_mismatch_error_key_value_dim_mismatch_high_dim": RANK,
    "causal_only_skipped_for_subclass": HOOK,
    "compute_attention_combines_causal_and_explicit_mask_fused_fallback": HOOK,
    "compute_attention_combines_causal_and_explicit_mask_manual_path": HOOK,
    "flash_attention_with_errors": WORDS,
    "invalid_scalar_args_rejected": WORDS,
    "multi_head_attention_output_shape_error": WORDS,
}


@keras.saving.register_keras_serializable(package="keras_suite")
class MultiHeadAttention(kt.MultiHeadAttention):
    """Our layer under the private names that Keras' tests use, and with
    weights that may be given in Keras' shapes."""

    _query_dense = query_dense = property(lambda self: self.query_projection)
    _key_dense = key_dense = property(lambda self: self.key_projection)
    _value_dense = value_dense = property(lambda self: self.value_projection)
    _gate_dense = property(lambda self: self.gate_projection)
    _output_dense = property(lambda self: self.output_projection)
    _sliding_window = property(lambda self: self.sliding_window)
    _flash_attention = property(lambda self: self.flash_attention)

    def set_weights(self, weights):
        pairs = zip(self.weights, weights, strict=True)
        super().set_weights([w.reshape(own.shape) for own, w in pairs])


class Result(unittest.TestResult):
    """Which tests passed, failed, and were skipped, by pytest's means too."""

    def __init__(self):
        super().__init__()
        self.passed, self.failed, self.skipped_names = [], {}, []

    def addSuccess(self, test):  # noqa: N802
        self.passed.append(name_of(test))

    def addError(self, test, error):  # noqa: N802
        if type(error[1]).__name__ == "Skipped":
            self.skipped_names.append(name_of(test))
        else:
            self.failed[name_of(test)] = error[1]

    addFailure = addError  # noqa: N815


def name_of(test):
    return test.id().split(".")[-1].removeprefix("test_")


def run():
    """Returns the `Result` of all tests."""
    theirs = multi_head_attention_test
    names = vars(layers) | {"MultiHeadAttention": MultiHeadAttention}
    theirs.layers = types.SimpleNamespace(**names)
    try:
        suite = unittest.defaultTestLoader.loadTestsFromModule(theirs)
        result = Result()
        suite.run(result)
    finally:
        theirs.layers = layers
    return result


def main():
    result = run()
    total = len(result.passed) + len(result.failed)
    print(f"Keras {keras.__version__} on {keras.backend.backend()}:")
    print(f"{len(result.passed)} of {total} pass")
    for name, error in sorted(result.failed.items()):
        print(f"  {name}: {DIFFERENT.get(name, repr(error))}")
    others = DIFFERENT.keys() - result.failed.keys() - set(result.skipped_names)
    return int(bool(others) or not result.failed.keys() <= DIFFERENT.keys())


if __name__ == "__main__":
    sys.exit(main())
