"""Shows a training to a person: by a line that is renewed on a terminal, by a
line a minute elsewhere, and by three translations at each validation."""

import sys
import time

import keras

from keras_transformer.training.callbacks import TranslationQuality, steps_of

SECONDS_OF_TERMINAL, SECONDS_OF_FILE = 0.2, 60.0  # between two lines
WIDTH = 100  # characters of a sentence that are shown


class Progress(keras.callbacks.Callback):
    """Prints steps, losses, speed and the time that is left.

    Args:
        steps: updates in all.
        every: updates between validations.
        quality: has the translations of the last validation.
        verbose: 1 renews one line, 2 prints a line every minute, 0 nothing.
    """

    def __init__(
        self, steps: int, every: int, quality: TranslationQuality, verbose: int
    ):
        super().__init__()
        self.steps, self.every = steps, every
        self.quality, self.verbose = quality, verbose
        self.pause = SECONDS_OF_TERMINAL if verbose == 1 else SECONDS_OF_FILE
        self.is_open = False  # whether a line has no end yet

    def on_train_begin(self, logs: dict | None = None):
        self.began = self.shown = time.monotonic()
        self.first = self.first_timed = self.step = steps_of(self.model)

    def on_epoch_begin(self, epoch: int, logs: dict | None = None):
        self.epoch_began = self.epoch_ended = time.monotonic()
        self.epoch_first = self.step

    def on_train_batch_end(self, batch: int, logs: dict):
        self.step += 1
        self.epoch_ended = now = time.monotonic()
        if self.step == self.first + 1 < self.steps:  # which also compiled
            self.began = self.epoch_began = now
            self.first_timed = self.epoch_first = self.step
        is_last = self.step == self.steps or self.step % self.every == 0
        if now - self.shown >= self.pause or (self.verbose == 1 and is_last):
            self.shown = now
            self._print(self._line(logs), ends=self.verbose != 1)

    def on_epoch_end(self, epoch: int, logs: dict):
        if not self.verbose:
            return
        self.shown = time.monotonic()
        self._print(self._line(logs))
        for source, translation, reference in self.quality.samples:
            self._print(f"  {_cut(source)}")
            self._print(f"    translated  {_cut(translation)}")
            self._print(f"    reference   {_cut(reference)}")

    def close(self):
        """Ends a line that is to be renewed, so that others follow it."""
        if self.is_open:
            print(flush=True)
            self.is_open = False

    def _line(self, logs):
        parts = [f"step {self.step:,}/{self.steps:,}"]
        if "nll" in logs:
            parts.append(f"loss {logs['nll']:.3f}")
        if "val_nll" in logs:
            parts.append(f"validation {logs['val_nll']:.3f}")
        for name in (name for name in logs if name.startswith("val_bleu")):
            direction = name.removeprefix("val_bleu").replace("_", " ", 1)
            parts.append(f"BLEU{direction} {logs[name]:.1f}")
        if steps := self.step - self.epoch_first:
            seconds = (self.epoch_ended - self.epoch_began) / steps
            parts.append(f"{logs['tokens/s']:,.0f} tokens/s")
            parts.append(f"{_seconds(seconds)} a step")
        if done := self.step - self.first_timed:
            left = (time.monotonic() - self.began) / done
            left *= self.steps - self.step
            parts.append(f"{duration(left)} left" if left else "done")
        return "  ".join(parts)

    def _print(self, line, ends=True):
        if not self.verbose:
            return
        begin = "\r\033[K" if self.is_open else ""
        print(begin + line, end="\n" if ends else "", flush=True)
        self.is_open = not ends


def duration(seconds: float) -> str:
    """Returns a time as people say it, such as "1 h 5 min"."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min" if minutes else f"{seconds} s"


def _seconds(seconds):
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


def _cut(text):
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"


def verbosity() -> int:
    """Returns Keras' `verbose` for this process: a line that is renewed on a
    terminal, lines elsewhere, nothing where standard output is closed."""
    if sys.stdout is None:
        return 0
    return 1 if sys.stdout.isatty() else 2
