"""The learning rate: section 5.3 of the paper."""

import math
from typing import Any

import keras
from keras import KerasTensor, ops


def learning_rate(
    step: int | KerasTensor, d_model: int, warmup_steps: int = 4000
) -> KerasTensor:
    """Returns the learning rate of equation 3, section 5.3.

    lrate = d_model^-0.5 · min(step^-0.5, step · warmup_steps^-1.5)

    Args:
        step: number of the update, counted from 1; a number or tensor.
        d_model: width of the model.
        warmup_steps: steps until the peak. Defaults to 4000.
    """
    step = ops.cast(step, "float32")
    rising = step * warmup_steps**-1.5
    return ops.minimum(ops.rsqrt(step), rising) / math.sqrt(d_model)


@keras.saving.register_keras_serializable(package="keras_transformer")
class TransformerSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Warms up linearly, then decays by the inverse square root of the step.

    This is the learning rate of section 5.3.

    Example:

    >>> schedule = TransformerSchedule(d_model=512, warmup_steps=4000)
    >>> print(f"{float(schedule(3999)):.6f}")  # the peak
    0.000699

    Keras passes the number of completed updates, 0 at the first update, so
    equation 3 is evaluated at `step + 1`. The peak, at `warmup_steps`, is
    `scale / √(d_model · warmup_steps)`.

    With `gradient_accumulation_steps=n` Keras' optimizers pass the number of
    batches instead, n for each update: give `n * warmup_steps` and
    `scale * n**0.5`, which makes the rates of equation 3.

    Args:
        d_model: width of the model.
        warmup_steps: steps until the peak. Defaults to 4000.
        scale: factor on the learning rate; not in the paper. Defaults to 1.

    Raises:
        ValueError: if an argument is not positive.
    """

    def __init__(
        self, d_model: int, warmup_steps: int = 4000, scale: float = 1.0
    ):
        super().__init__()
        if not all(0 < x < math.inf for x in (d_model, warmup_steps, scale)):
            raise ValueError(
                "`d_model`, `warmup_steps` and `scale` must be positive and "
                "finite. "
                f"Received: d_model={d_model}, warmup_steps={warmup_steps}, "
                f"scale={scale}"
            )
        self.d_model = d_model
        self.warmup_steps = warmup_steps
        self.scale = scale

    def __call__(self, step: int | KerasTensor) -> KerasTensor:
        step = ops.cast(step, "float32") + 1
        return self.scale * learning_rate(step, self.d_model, self.warmup_steps)

    def at(self, step: int) -> float:
        """Returns the rate after `step` updates, without a device."""
        rising = (step + 1) * self.warmup_steps**-1.5
        rate = min((step + 1) ** -0.5, rising) / math.sqrt(self.d_model)
        return self.scale * rate

    def get_config(self) -> dict[str, Any]:
        return {
            "d_model": self.d_model,
            "warmup_steps": self.warmup_steps,
            "scale": self.scale,
        }
