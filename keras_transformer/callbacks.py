"""What happens around the steps of `fit`: speed, quality, checkpoints."""

import time

import keras
import tensorflow as tf

from keras_transformer import checkpoints, evaluation
from keras_transformer.translator import (
    SearchSettings,
    Translator,
    compiled,
    translate_lines,
)


class StopAt(keras.callbacks.Callback):
    """Ends `fit` after the step `last`, also inside an epoch."""

    def __init__(self, last: int, done: int = 0):
        super().__init__()
        self.last = last
        self.done = done

    def on_train_batch_end(self, batch, logs=None):
        self.done += 1
        if self.done >= self.last:
            self.model.stop_training = True


class TokensPerSecond(keras.callbacks.Callback):
    """Adds `tokens/s`, real target tokens, to the progress bar and the logs.

    Counts by the metric `nll`, which knows every replica's tokens.
    """

    def on_epoch_begin(self, epoch, logs=None):
        self.began = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.speed = self._tokens() / (time.perf_counter() - self.began)
        logs["tokens/s"] = round(self.speed)

    def on_epoch_end(self, epoch, logs=None):
        logs["tokens/s"] = round(self.speed)

    def _tokens(self):
        metrics = {metric.name: metric for metric in self.model.metrics}
        nll = metrics["compile_metrics"].metrics[0]
        return float(tf.convert_to_tensor(nll.tokens.value))


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
        logs["val_bleu"] = evaluation.score(hypotheses, self.references)["bleu"]


class Checkpoint(keras.callbacks.Callback):
    """Saves all state at the end of each epoch, see `checkpoints.save`."""

    def __init__(self, folder, keep: int):
        super().__init__()
        self.folder = folder
        self.keep = keep

    def on_epoch_end(self, epoch, logs=None):
        step = int(keras.ops.convert_to_numpy(self.model.optimizer.iterations))
        checkpoints.save(self.folder, self.model, step, self.keep)
