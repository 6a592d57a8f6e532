"""Prepares a corpus for training, once: clean, encode, write shards.

The corpus is read twice, as a stream: to learn the vocabulary and to find
duplicates, and to encode. The text is never in memory as a whole.
"""

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from keras_transformer.config import check_argument
from keras_transformer.data.preparation_job import (
    Corpus,
    Job,
    Tokenizers,
    finish,
    make_job,
    temporary_folder,
    write_evaluation,
)
from keras_transformer.data.prepared import PreparedCorpus
from keras_transformer.data.settings import Preparation
from keras_transformer.data.shards import (
    Block,
    find_duplicates,
    hash_pairs,
    make_shard,
    readable_rows,
)
from keras_transformer.data.survey import Survey, read_survey
from keras_transformer.data.vocabulary import learn_vocabularies, sample_of

SECONDS = 10  # between two lines of progress


def prepare(
    corpora: Corpus | Sequence[Corpus],
    folder: str | os.PathLike,
    settings: Preparation | None = None,
    weights: Sequence[float] | None = None,
    tokenizers: Tokenizers | None = None,
    evaluation: Mapping[str, Corpus] | None = None,
) -> PreparedCorpus:
    """Prepares corpora for training and writes them to a folder.

    The folder appears when all is done. If the process is stopped before, the
    same call goes on where it stopped.

    Example:

    >>> from keras_transformer.data import Preparation
    >>> settings = Preparation(vocab_size=300, drop_duplicates=True)
    >>> pairs = prepare("corpus", "prepared/demo", settings)
    >>> len(pairs)
    3

    Args:
        corpora: a corpus or several, as for `open_corpus`.
        folder: to write to; must not exist.
        settings: defaults to `Preparation()`.
        weights: how often an epoch has the pairs of each corpus, such as
            `[1, 2.5]`. Defaults to once.
        tokenizers: vocabularies of source and target. Defaults to learned ones.
        evaluation: corpora of the text of "validation" and "test". Defaults to
            the first corpus if it has a name; rows are one split alone.

    Returns:
        The prepared corpus, whose folder `Recipe(corpus=...)` takes.

    Raises:
        ValueError: if the folder exists, a corpus cannot be read, no pair is
            left, or another process prepares the same folder.
        OSError: if the folder cannot be written.
    """
    settings = settings or Preparation()
    remedy = "Make them by `Preparation(...)`."
    check_argument("settings", settings, Preparation, remedy)
    job = make_job(corpora, folder, settings, weights, tokenizers, evaluation)
    with temporary_folder(job) as aside:
        texts = write_evaluation(job, aside)
        blocks = _blocks_of(job)
        survey = read_survey(aside)
        if survey is None:
            survey = _survey(job, blocks)
            survey.write(aside)
        progress = _Progress("Encoded", survey.pairs)
        for block in blocks():
            make_shard(aside, block, survey, settings)
            progress.add(len(block.pairs))
        finish(job, aside, survey.tokenizers, texts)
    return PreparedCorpus(folder)


def _blocks_of(job: Job) -> Callable[[], Iterator[Block]]:
    """Returns a function that yields the blocks; a single one is kept."""
    first = list(itertools.islice(job.blocks(), 2))
    return job.blocks if len(first) > 1 else lambda: iter(first)


def _survey(job, blocks):
    """Learns the vocabularies and finds the duplicates."""
    settings, pairs = job.settings, 0
    sample = sample_of(settings)
    hashes, progress = {}, _Progress("Read", None)
    if job.tokenizers is None or settings.drop_duplicates:
        for block in blocks():
            rows, _ = readable_rows(block, settings)
            if job.tokenizers is None:
                sample.add(block, rows)
            if settings.drop_duplicates:
                hashes[block.key] = hash_pairs(block, rows)
            pairs += len(block.pairs)
            progress.add(len(block.pairs))
    tokenizers = job.tokenizers
    if tokenizers is None:
        progress.say("Learning the vocabulary.")
        tokenizers = learn_vocabularies(sample.pairs(), settings)
    return Survey(tokenizers, find_duplicates(hashes), pairs)


class _Progress:
    """Prints how far a long task is, every few seconds.

    Args:
        task: what was done to the pairs, such as "Encoded".
        total: number of pairs, or `None` if it is not known.
    """

    def __init__(self, task: str, total: int | None):
        self.task, self.total, self.done = task, total, 0
        self.began = self.last = time.monotonic()

    def add(self, pairs: int):
        """Counts pairs that are done."""
        self.done += pairs
        now = time.monotonic()
        if now - self.last >= SECONDS:
            self.last = now
            left = ""
            if self.total:
                seconds = now - self.began
                rest = (self.total - self.done) * seconds / self.done
                left = f" of {self.total:,}, {rest / 60:.1f} minutes left"
            print(f"{self.task} {self.done:,} pairs{left}", flush=True)

    def say(self, text: str):
        """Prints a line, if the task is a long one."""
        if self.last > self.began:
            print(text, flush=True)
