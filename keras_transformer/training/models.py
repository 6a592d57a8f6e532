"""The models of a run: the new one that is trained, and the trained one."""

from keras_transformer.config import TransformerConfig
from keras_transformer.model import Transformer
from keras_transformer.processor import resolve_dtype_policy
from keras_transformer.schedule import TransformerSchedule
from keras_transformer.training import checkpoints
from keras_transformer.training.adam import Adam
from keras_transformer.training.recipe import Recipe
from keras_transformer.training.run import Run


def make_model(config: TransformerConfig, recipe: Recipe) -> Transformer:
    """Returns a new model, compiled with the optimizer of section 5.3."""
    dtype = resolve_dtype_policy(recipe.dtype_policy)
    model = Transformer(config, seed=recipe.seed, dtype=dtype)
    schedule = TransformerSchedule(
        config.d_model, recipe.warmup_steps, recipe.learning_rate_scale
    )
    model.compile(
        Adam(
            schedule,
            beta_1=0.9,
            beta_2=0.98,
            epsilon=1e-9,
            global_clipnorm=recipe.global_clipnorm,
        )
    )
    model.optimizer.build(model.trainable_variables)
    return model


def load_model(run: Run) -> Transformer:
    """Returns the model of a run with the weights that were chosen at the end
    of training, or before that with those of the newest intact checkpoint.

    Raises:
        ValueError: if there is no intact checkpoint.
    """
    model = Transformer(run.config)
    if run.weights.exists():
        checkpoints.restore(run.weights, model, with_optimizer=False)
    else:
        checkpoints.restore_newest(run.checkpoints, model, with_optimizer=False)
    return model
