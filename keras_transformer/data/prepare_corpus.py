"""Prepares a corpus for training, once: clean, encode, write shards.

The corpus is read twice, as a stream: to learn the vocabulary and to find
duplicates, and to encode. The text is never in memory as a whole.
"""

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from keras_transformer.atomic_files import write_aside
from keras_transformer.data.preparation_job import (
    SURVEY,
    Corpus,
    Job,
    Tokenizers,
    finish,
    make_job,
    temporary_folder,
)
from keras_transformer.data.prepared import SIDES, PreparedCorpus
from keras_transformer.data.settings import Preparation
from keras_transformer.data.shards import (
    Block,
    find_duplicates,
    hash_pairs,
    make_shard,
    readable_rows,
)
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.data.vocabulary import Sample, learn_vocabularies

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
            the first corpus for both.

    Returns:
        The prepared corpus, whose folder `Recipe(corpus=...)` takes.

    Raises:
        ValueError: if the folder exists, a corpus cannot be read, no pair is
            left, or another process prepares the same folder.
        OSError: if the folder cannot be written.
    """
    settings = settings or Preparation()
    job = make_job(corpora, folder, settings, weights, tokenizers, evaluation)
    with temporary_folder(job) as aside:
        blocks = _blocks_of(job)
        found = _read_survey(aside) or _survey(job, aside, blocks)
        tokenizers, repeated, total = found
        progress = _Progress("Encoded", total)
        records = []
        for block in blocks():
            duplicates = repeated.get(block.key)
            records.append(
                make_shard(aside, block, duplicates, tokenizers, settings)
            )
            progress.add(len(block.pairs))
        finish(job, aside, records, tokenizers)
    return PreparedCorpus(folder)


def _blocks_of(job: Job) -> Callable[[], Iterator[Block]]:
    """Returns a function that yields the blocks; a single one is kept."""
    first = list(itertools.islice(job.blocks(), 2))
    return job.blocks if len(first) > 1 else lambda: iter(first)


def _survey(job, aside, blocks):
    """Learns the vocabularies and finds the duplicates.

    Returns:
        The tokenizers, the duplicates by block, and the number of pairs.
    """
    settings, total = job.settings, 0
    sample = Sample(settings.vocabulary_pairs, settings.seed)
    hashes = {}
    if job.tokenizers is None or settings.drop_duplicates:
        progress = _Progress("Read", None)
        for block in blocks():
            rows, _ = readable_rows(block, settings)
            if job.tokenizers is None:
                sample.add(block, rows)
            if settings.drop_duplicates:
                hashes[block.key] = hash_pairs(block, rows)
            total += len(block.pairs)
            progress.add(len(block.pairs))
    repeated = find_duplicates(hashes)
    tokenizers = job.tokenizers
    if tokenizers is None:
        progress.say("Learning the vocabulary …")
        tokenizers = learn_vocabularies(sample.pairs(), settings)
    _write_survey(aside, tokenizers, repeated, total)
    return tokenizers, repeated, total


def _write_survey(aside, tokenizers, repeated, total):
    """Writes what `_read_survey` reads, so that it is not done twice."""
    arrays = {f"{c} {n}": found for (c, n), found in repeated.items()}
    for side, tokenizer in zip(SIDES, tokenizers, strict=True):
        arrays[side] = np.frombuffer(tokenizer.model, np.uint8)
    with write_aside(aside / SURVEY) as file:
        np.savez(file, total=total, **arrays)


def _read_survey(aside):
    path = aside / SURVEY
    if not path.exists():
        return None
    with np.load(path) as file:
        arrays = dict(file)
    total = int(arrays.pop("total"))
    source, target = (arrays.pop(side).tobytes() for side in SIDES)
    tokenizer = Tokenizer(source)
    other = tokenizer if source == target else Tokenizer(target)
    repeated = {tuple(map(int, k.split())): v for k, v in arrays.items()}
    return (tokenizer, other), repeated, total


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
