"""Adam, section 5.3, in one pass over the memory."""

from typing import Any

import keras


@keras.saving.register_keras_serializable(package="keras_transformer")
class Adam(keras.optimizers.Adam):
    """Optimises like `keras.optimizers.Adam`, which it is on JAX.

    There are three differences on TensorFlow. TensorFlow's fused kernel updates
    a variable, instead of a dozen operations. `global_clipnorm` clips the *sum*
    of all replicas' gradients; Keras clips the gradients of each replica before
    they are added. And an id that occurs n times in a batch takes one step in
    the direction of its summed gradients; there, Keras' Adam squares them one
    by one, which makes the steps of untied embeddings up to √n times as long.

    Raises:
        ValueError: for `amsgrad`, which the kernel does not support.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._is_fused = keras.backend.backend() == "tensorflow"
        if self.amsgrad:
            raise ValueError(
                "This Adam does not support AMSGrad. Received: "
                "amsgrad=True. Use keras.optimizers.Adam."
            )

    def _all_reduce_sum_gradients(self, grads_and_vars):
        import tensorflow as tf

        grads, variables = zip(
            *super()._all_reduce_sum_gradients(grads_and_vars), strict=True
        )
        if self.global_clipnorm:
            grads, _ = tf.clip_by_global_norm(grads, self.global_clipnorm)
        return list(zip(grads, variables, strict=True))

    def _clip_gradients(self, grads):
        if self.global_clipnorm and self._is_fused:
            return grads  # clipped after the sum over replicas, see above
        return super()._clip_gradients(grads)

    def update_step(
        self, gradient: Any, variable: keras.Variable, learning_rate: Any
    ) -> None:
        if not self._is_fused:
            super().update_step(gradient, variable, learning_rate)
            return
        import tensorflow as tf

        index = self._get_variable_index(variable)
        step = tf.cast(self.iterations + 1, variable.dtype)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].value.handle,
            v=self._velocities[index].value.handle,
            beta1_power=self.beta_1**step,
            beta2_power=self.beta_2**step,
            lr=tf.cast(learning_rate, variable.dtype),
            beta1=self.beta_1,
            beta2=self.beta_2,
            epsilon=self.epsilon,
            grad=tf.cast(gradient, variable.dtype),
        )
