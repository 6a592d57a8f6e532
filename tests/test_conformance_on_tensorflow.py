"""Checks of every public layer that need TensorFlow.

They are about replicas, and about the implicit masks of eager tensors.
"""

import conformance
import numpy as np
import pytest
import tensorflow as tf

each_layer = pytest.mark.parametrize(
    "row", conformance.LAYERS, ids=lambda row: row.name
)


@each_layer
def test_each_of_two_replicas_computes_what_one_device_computes(row):
    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    inputs = row.inputs
    with strategy.scope():
        layer = row.make()
        layer.build(*[x.shape for x in inputs])
    expected = layer(*inputs)
    found = strategy.run(
        tf.function(lambda: layer(*[tf.convert_to_tensor(x) for x in inputs]))
    )
    values = strategy.experimental_local_results(found)
    assert len(values) == 2
    for value in values:
        np.testing.assert_allclose(value, expected, atol=1e-5)


@each_layer
def test_a_call_leaves_the_implicit_masks_of_its_inputs(row):
    if row.name == "PositionalEmbedding":
        ids = tf.convert_to_tensor(row.inputs[0])
        found = row.make(mask_zero=True)(ids)
        np.testing.assert_array_equal(found._keras_mask, ids != 0)
        return
    tensors = [tf.convert_to_tensor(x) for x in row.inputs]
    masks = [np.arange(x.shape[1])[None] < [[2], [1]] for x in row.inputs]
    for tensor, mask in zip(tensors, masks, strict=True):
        tensor._keras_mask = tf.convert_to_tensor(mask)
    found = row.make()(*tensors)
    for tensor, mask in zip(tensors, masks, strict=True):
        np.testing.assert_array_equal(tensor._keras_mask, mask)
    np.testing.assert_array_equal(found._keras_mask, masks[0])
