"""Types of arguments and results of the layers, for annotations.

Tensors are annotated `KerasTensor`, symbolic or not: a layer takes and returns
the tensors of its backend, and NumPy arrays serve as inputs, too.
"""

from collections.abc import Callable

import keras
from keras import KerasTensor

Activation = str | Callable[[KerasTensor], KerasTensor] | None
Initializer = str | dict | keras.initializers.Initializer
Regularizer = str | dict | keras.regularizers.Regularizer | None
Constraint = str | dict | keras.constraints.Constraint | None
# The length of each axis, `None` where it is not known.
Shape = tuple[int | None, ...]
# Keys `(B, H, S, d_k)` under "key" and values `(B, H, S, d_v)` under "value".
Cache = dict[str, KerasTensor]
# The output alone, or followed by what the call asks for: weights, caches.
Output = KerasTensor | tuple
