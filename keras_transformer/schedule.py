"""The learning rate: section 5.3 of the paper."""

import math

import keras
from keras import ops


def learning_rate(step, d_model, warmup_steps=4000):
    """Returns the rate of equation 3, section 5.3:
    d_model^-0.5 · min(step^-0.5, step · warmup_steps^-1.5).

    `step` counts from 1: a float32 tensor or anything that becomes one.
    """
    step = ops.cast(step, "float32")
    rising = step * warmup_steps**-1.5
    return ops.minimum(ops.rsqrt(step), rising) / math.sqrt(d_model)


@keras.saving.register_keras_serializable(package="keras_transformer")
class TransformerSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Warms up linearly, then decays with the inverse square root of the step:
    section 5.3.

    Example:

    >>> schedule = TransformerSchedule(d_model=512, warmup_steps=4000)
    >>> print(f"{float(schedule(3999)):.6f}")  # the peak
    0.000699

    Keras passes the number of updates done, 0 at the first, so equation 3 is
    read at `step + 1`. The peak, at `warmup_steps`, is
    `scale / √(d_model · warmup_steps)`.

    Args:
        d_model: width of the model.
        warmup_steps: steps until the peak. Defaults to 4000.
        scale: factor on the whole curve. Defaults to 1; not in the paper.

    Raises:
        ValueError: if an argument is not positive.
    """

    def __init__(self, d_model, warmup_steps=4000, scale=1.0):
        super().__init__()
        if min(d_model, warmup_steps, scale) <= 0:
            raise ValueError(
                "`d_model`, `warmup_steps` and `scale` must be positive. "
                f"Received: d_model={d_model}, warmup_steps={warmup_steps}, "
                f"scale={scale}"
            )
        self.d_model = d_model
        self.warmup_steps = warmup_steps
        self.scale = scale

    def __call__(self, step):
        step = ops.cast(step, "float32") + 1
        return self.scale * learning_rate(step, self.d_model, self.warmup_steps)

    def get_config(self):
        return {
            "d_model": self.d_model,
            "warmup_steps": self.warmup_steps,
            "scale": self.scale,
        }
