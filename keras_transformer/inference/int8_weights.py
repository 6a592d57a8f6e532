"""Matrices that are stored in int8 and multiplied in float32.

A SavedModel with them is about a quarter as large. Whoever loads it runs its
initializers, as for lookup tables; that makes the float32 matrices, once. From
then on they are variables like any others.
"""

from typing import Any

import tensorflow as tf

QUANTIZED = {"kernel": 0, "table": 1}  # the axis that shares a scale, by name
LARGEST = 127  # not -128, so that the numbers are symmetric


class Int8Matrix(tf.Module):
    """A float32 matrix that is stored in int8.

    It converts to a tensor as a variable does.

    Args:
        matrix: float32, `(m, n)`.
        axis: the axis along which numbers share a scale.

    Attributes:
        values: variable, int8 numbers `(m, n)`.
        scales: variable, float32 scales of the same shape but for the axis,
            which has size 1.
        product: variable, the two multiplied, nowhere farther from the matrix
            than half a scale. Its shape is not fixed, so that it can be stored
            empty.
    """

    dtype = tf.float32

    def __init__(self, matrix: tf.Tensor, axis: int):
        super().__init__()
        greatest = tf.reduce_max(tf.abs(matrix), axis=axis, keepdims=True)
        scales = greatest / LARGEST
        values = tf.round(tf.math.divide_no_nan(matrix, scales))
        self.values = tf.Variable(tf.cast(values, tf.int8))
        self.scales = tf.Variable(scales)
        self._make_product(matrix.shape)

    def _make_product(self, shape):
        self.shape = shape
        self.product = tf.Variable(
            tf.zeros([0, 0]), shape=[None, None], dtype=self.dtype
        )
        self.fill()

    def computed(self) -> tf.Tensor:
        """Returns the values, multiplied by the scales."""
        return tf.cast(self.values, self.dtype) * self.scales

    def fill(self):
        """Computes the product."""
        self.product.assign(self.computed())

    def clear(self):
        """Empties the product."""
        self.product.assign(tf.zeros([0, 0], self.dtype))

    def read(self) -> tf.Tensor:
        """Returns the product."""
        return tf.ensure_shape(self.product, self.shape)


class TransposedInt8Matrix(Int8Matrix):
    """The transpose of another matrix times a factor, of which only the product
    is a variable of its own.

    Args:
        matrix: the other one, an `Int8Matrix` `(m, n)`.
        factor: the factor, a scalar.
        shape: `(n, M)`; if M > m, the last columns are zeros.
    """

    def __init__(
        self, matrix: Int8Matrix, factor: tf.Tensor, shape: tf.TensorShape
    ):
        tf.Module.__init__(self)
        self.matrix, self.factor = matrix, float(factor)
        self._make_product(shape)

    def computed(self) -> tf.Tensor:
        """Returns the transpose, multiplied by the factor."""
        product = tf.transpose(self.matrix.computed()) * self.factor
        missing = self.shape[1] - self.matrix.shape[0]
        return tf.pad(product, [[0, 0], [0, missing]])


def _tensor(matrix, dtype=None, name=None, as_ref=False):
    del name, as_ref
    if dtype not in (None, matrix.dtype):
        return NotImplemented
    return matrix.read()


tf.register_tensor_conversion_function(Int8Matrix, _tensor)


def variables(weights: Any, in_int8: bool) -> Any:
    """Returns variables that hold weights.

    Args:
        weights: from `inference_weights`, in float32 if `in_int8`.
        in_int8: whether matrices and tables are stored in int8. Each matrix
            then has one scale for each output, each table of embeddings one for
            each row. A table that is also the projection is stored once.

    Returns:
        The same structure of variables, or an `Int8Matrix` in their place.
    """
    if isinstance(weights, list):
        return [variables(part, in_int8) for part in weights]
    if not isinstance(weights, dict):
        return tf.Variable(weights)
    result = {
        name: Int8Matrix(part, QUANTIZED[name])
        if in_int8 and name in QUANTIZED
        else variables(part, in_int8)
        for name, part in weights.items()
    }
    if in_int8 and "projection" in weights:
        kernel = weights["projection"]["kernel"]
        factor = _tied_factor(weights["target"]["table"], kernel)
        if factor is not None:
            result["projection"]["kernel"] = TransposedInt8Matrix(
                result["target"]["table"], factor, kernel.shape
            )
    return result


def _tied_factor(table, kernel):
    """Returns the factor between a table and the kernel of a projection, or
    `None` if they are not the same matrix."""
    kernel = tf.transpose(kernel)[: table.shape[0]]
    factor = tf.norm(kernel) / tf.norm(table)
    error = tf.reduce_max(tf.abs(kernel - factor * table))
    return factor if error <= 1e-5 * tf.reduce_max(tf.abs(kernel)) else None


class Int8Initializer(tf.saved_model.experimental.TrackableResource):
    """Makes a SavedModel store matrices without their products.

    It clears the products. A module that has it as an attribute fills them
    when it is loaded.

    Args:
        weights: from `variables`, in int8.
    """

    def __init__(self, weights: Any):
        super().__init__()
        self._matrices = [
            part
            for part in tf.nest.flatten(weights)
            if isinstance(part, Int8Matrix)
        ]
        for matrix in self._matrices:
            matrix.clear()

    def _create_resource(self):
        return tf.constant(0)  # It only has an initializer.

    def _initialize(self):
        for matrix in self._matrices:
            matrix.fill()
