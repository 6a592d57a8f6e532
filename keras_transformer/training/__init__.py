"""Training, sections 5.2 to 5.4: starts runs from recipes and trains them."""

from typing import TYPE_CHECKING

from keras_transformer.lazy_names import lazy_names

if TYPE_CHECKING:
    from keras_transformer.training.loop import (
        TrainingInterrupted as TrainingInterrupted,
    )
    from keras_transformer.training.models import load_model as load_model
    from keras_transformer.training.models import make_model as make_model
    from keras_transformer.training.models import run_of_model as run_of_model
    from keras_transformer.training.new_run import start_run as start_run
    from keras_transformer.training.proposals import (
        learn_proposals as learn_proposals,
    )
    from keras_transformer.training.recipe import Recipe as Recipe
    from keras_transformer.training.run import Run as Run
    from keras_transformer.training.run import open_run as open_run
    from keras_transformer.training.train_run import evaluate as evaluate
    from keras_transformer.training.train_run import train as train
    from keras_transformer.training.weights_choice import (
        choose_weights as choose_weights,
    )

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Recipe": "recipe",
        "Run": "run",
        "TrainingInterrupted": "loop",
        "choose_weights": "weights_choice",
        "evaluate": "train_run",
        "learn_proposals": "proposals",
        "load_model": "models",
        "make_model": "models",
        "open_run": "run",
        "run_of_model": "models",
        "start_run": "new_run",
        "train": "train_run",
    },
)
