"""What happens around the steps of `fit`: speed, quality, checkpoints."""

import keras

from keras_transformer import checkpoints, evaluation
from keras_transformer.translator import (
    SearchSettings,
    Translator,
    compiled,
    translate_lines,
)


class TranslationQuality(keras.callbacks.Callback):
    """Adds `val_bleu` to the logs: greedy translations of validation pairs.

    Args:
        run: the `Run` whose vocabularies serve.
        pairs: `SentencePairs`, of which the first `sentences` are translated.
    """

    def __init__(self, run, pairs, sentences: int = 500):
        super().__init__()
        self.run = run
        self.source = pairs.source[:sentences]
        self.references = pairs.target[:sentences]
        self.translate = None

    def on_epoch_end(self, epoch, logs=None):
        if self.translate is None:
            self.translate = compiled(
                Translator(
                    self.model,
                    self.run.source_tokenizer,
                    self.run.target_tokenizer,
                    SearchSettings(beam_size=1),
                )
            )
        hypotheses = translate_lines(self.translate, self.source)
        logs["val_bleu"] = evaluation.score(
            hypotheses, self.references, self.run.recipe.bleu_tokenizer
        )["bleu"]


class Checkpoint(keras.callbacks.Callback):
    """Saves all state at the end of each epoch, see `checkpoints.save`."""

    def __init__(self, folder, keep: int):
        super().__init__()
        self.folder = folder
        self.keep = keep

    def on_epoch_end(self, epoch, logs=None):
        step = int(keras.ops.convert_to_numpy(self.model.optimizer.iterations))
        checkpoints.save(self.folder, self.model, step, self.keep)
