"""Training, sections 5.2 to 5.4: a recipe becomes a run, and a run a model."""

from keras_transformer.lazy_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Recipe": "recipe",
        "Run": "run",
        "TrainingInterrupted": "loop",
        "choose_weights": "weights_choice",
        "evaluate": "train_run",
        "load_model": "models",
        "make_model": "models",
        "open_run": "run",
        "start_run": "new_run",
        "train": "train_run",
    },
)
