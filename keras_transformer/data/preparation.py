"""Prepares a corpus for training, once: clean, encode, write shards.

The corpus is read twice, as a stream: to learn the vocabulary and to find
duplicates, and to encode. The text is never in memory as a whole.
"""

import collections
import contextlib
import dataclasses
import itertools
import json
import math
import os
import pathlib
import re
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import sentencepiece

import keras_transformer
from keras_transformer.atomic_files import (
    check_is_new,
    resumable_folder,
    write_aside,
)
from keras_transformer.data.corpus import (
    absolute,
    lacks_validation,
    open_corpus,
)
from keras_transformer.data.directions import (
    Languages,
    check_tags,
    checked_directions,
    joined,
    settings_of,
)
from keras_transformer.data.held_out import draw_pairs, without
from keras_transformer.data.options import Preparation
from keras_transformer.data.prepared_corpus import (
    FORMAT,
    KINDS,
    MANIFEST,
    SIDES,
    PreparedCorpus,
    file_sha256,
    sha256,
)
from keras_transformer.data.sentencepiece_file import tag_of
from keras_transformer.data.shards import (
    Block,
    CorpusStats,
    find_duplicates,
    hash_pairs,
    make_shard,
    read_blocks,
    read_corpus_stats,
    read_records,
    readable_rows,
)
from keras_transformer.data.text_files import Pair, PairStream, check_name_parts
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.data.vocabulary import (
    learn_vocabularies,
    vocabulary_sample,
)
from keras_transformer.validation import check_argument, shown

Corpus = str | Iterable[Mapping]
Tokenizers = tuple[Tokenizer, Tokenizer]
RECORD = "job.json"  # in the temporary folder: which job it belongs to
SECONDS = 10  # between two lines of progress


def prepare(
    corpora: Corpus | Sequence[Corpus],
    folder: str | os.PathLike,
    settings: Preparation | None = None,
    weights: Sequence[float] | None = None,
    tokenizers: Tokenizers | None = None,
    evaluation: Mapping[str, Any] | None = None,
    languages: Sequence[Languages] | None = None,
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
            the first corpus if it has a name; rows are one split alone. With
            `languages`, lists that have a corpus for each direction, and
            default to all corpora if each has a name.
        languages: source and target of each corpus, such as
            `[("en", "de"), ("de", "en")]`, for a model of several directions.
            Each source then begins with the tag of its target language, such
            as `>>de<<`. Defaults to those of the settings, without tags.

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
    job = make_job(
        corpora, folder, settings, weights, tokenizers, evaluation, languages
    )
    with temporary_folder(job) as aside:
        texts = write_evaluation(job, aside)
        blocks = _blocks_of(job)
        stats = read_corpus_stats(aside)
        if stats is None:
            stats = _collect_stats(job, blocks)
            stats.write(aside)
        progress = _Progress("Encoded", stats.pairs)
        for block in blocks():
            make_shard(aside, block, stats, job.settings)
            progress.add(len(block.pairs))
        finish(job, aside, stats.tokenizers, texts)
    return PreparedCorpus(folder)


def _blocks_of(job):
    """Returns a function that yields the blocks; a single one is kept."""
    first = list(itertools.islice(job.blocks(), 2))
    return job.blocks if len(first) > 1 else lambda: iter(first)


def _collect_stats(job, blocks):
    """Learns the vocabularies and finds the duplicates."""
    settings, pairs = job.settings, 0
    sample = vocabulary_sample(settings)
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
    return CorpusStats(tokenizers, find_duplicates(hashes), pairs)


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """Describes what is prepared.

    Args:
        folder: to write to.
        settings: a `Preparation`.
        corpora: as `open_corpus` takes them.
        streams: the pairs of each corpus.
        weights: how often an epoch has the pairs of each corpus.
        tokenizers: vocabularies of source and target, or `None` to learn them.
        evaluation: the pairs of the splits for evaluation, by name.
        languages: those of each corpus.
        prefixes: what the sources of each corpus begin with: a tag, or nothing.
    """

    folder: pathlib.Path
    settings: Preparation
    corpora: list[Corpus]
    streams: list[PairStream]
    weights: list[float]
    tokenizers: Tokenizers | None
    evaluation: dict[str, PairStream]
    languages: list[Languages]
    prefixes: list[str]

    @property
    def digest(self) -> str:
        """Tells jobs apart: other data or settings, another digest."""
        streams = [*self.streams, *self.evaluation.values()]
        description = {
            "format": FORMAT,
            "settings": dataclasses.asdict(self.settings),
            "data": [stream.identity for stream in streams],
            "evaluation": list(self.evaluation),
            "weights": self.weights,
            "languages": self.languages,
            "prefixes": self.prefixes,
            "versions": _versions(),
            "vocabularies": [sha256(t.model) for t in self.tokenizers or ()],
        }
        return sha256(json.dumps(description, sort_keys=True).encode())

    def blocks(self) -> Iterator[Block]:
        """Yields the blocks of all corpora."""
        for corpus, stream in enumerate(self.streams):
            prefix = self.prefixes[corpus]
            yield from read_blocks(corpus, stream, self.settings, prefix)


def make_job(
    corpora: Corpus | Sequence[Corpus],
    folder: str | os.PathLike,
    settings: Preparation,
    weights: Sequence[float] | None = None,
    tokenizers: Tokenizers | None = None,
    evaluation: Mapping[str, Any] | None = None,
    languages: Sequence[Languages] | None = None,
) -> Job:
    """Checks the arguments of `prepare` and opens the corpora.

    Raises:
        ValueError: if an argument does not fit, or a corpus does not exist.
    """
    check_name_parts(settings.source, settings.target)
    folder = pathlib.Path(folder).absolute()
    check_is_new(folder, "folder of a prepared corpus")
    if settings.source == settings.target:
        raise ValueError(
            "Source and target must have different names. Received: "
            f"{settings.source!r} for both. In one language, name the sides "
            "apart, as in train.plain and train.simple."
        )
    if isinstance(corpora, str) or not isinstance(corpora, Sequence):
        corpora = [corpora]
    corpora = [absolute(corpus) for corpus in corpora]
    if any(isinstance(corpus, Mapping) for corpus in corpora):
        raise ValueError(
            "Rows are one corpus of several. Received: a list of rows. Give "
            "`[rows]`."
        )
    weights = [1.0] * len(corpora) if weights is None else list(weights)
    usable = weights and all(0 < weight < math.inf for weight in weights)
    if len(weights) != len(corpora) or not usable:
        raise ValueError(
            "Each corpus has a positive weight. "
            f"Received: {len(corpora)} corpora, weights={weights}"
        )

    directions = [(settings.source, settings.target)] * len(corpora)
    prefixes = [""] * len(corpora)
    evaluated = 1  # so many corpora have the splits for evaluation
    if languages is not None:
        directions = checked_directions(languages, corpora)
        prefixes = [f"{tag_of(target)} " for _, target in directions]
        evaluated = len(corpora)
        settings = settings_of(settings, directions)
    if tokenizers is not None:
        check_tags(tokenizers[0], settings.tags)
        settings = dataclasses.replace(
            settings,
            vocab_size=tokenizers[1].vocab_size,
            shared_vocabulary=tokenizers[0].has_pieces_of(tokenizers[1]),
        )

    def opened(corpus, split, direction):
        source, target = direction
        return open_corpus(corpus, split, source, target, settings.data_dir)

    splits = {
        "validation": settings.validation_split,
        "test": settings.test_split or "test",
    }
    if evaluation is None:
        names = (
            ["validation", "test"] if settings.test_split else ["validation"]
        )
        # Rows are one split: they would be validated on themselves.
        have_names = all(isinstance(x, str) for x in corpora[:evaluated])
        names = names if have_names else []
        evaluation = dict.fromkeys(names, corpora[:evaluated])
    elif languages is None:
        evaluation = {name: [corpus] for name, corpus in evaluation.items()}
    if unknown := evaluation.keys() - splits.keys():
        raise ValueError(
            '`evaluation` has the keys "validation" and "test". '
            f"Received: {', '.join(sorted(unknown))}"
        )
    if any(len(some) != evaluated for some in evaluation.values()):
        raise ValueError(
            "With `languages`, each value of `evaluation` is a list of as many "
            f"corpora as are prepared. Received: {evaluated} corpora, "
            f"evaluation={shown(evaluation)}."
        )
    streams = [
        opened(corpus, settings.train_split, direction)
        for corpus, direction in zip(corpora, directions, strict=True)
    ]
    held_out: dict[int, list[Pair]] = {}
    left = settings.validation_pairs
    for i, (source, target) in enumerate(directions[:evaluated]):
        corpus = (
            evaluation["validation"][i] if "validation" in evaluation else ()
        )
        sides = dataclasses.replace(settings, source=source, target=target)
        if left is not None or (
            isinstance(corpus, str) and lacks_validation(corpus, sides)
        ):
            wanted = left and -(-left // (evaluated - i))
            held_out[i] = draw_pairs(streams[i], wanted, settings.seed)
            left = left and left - len(held_out[i])
    if held_out:
        pairs = [pair for some in held_out.values() for pair in some]
        if languages is not None:  # the other direction must not know them
            pairs += [(target, source) for source, target in pairs]
        streams = [without(stream, pairs) for stream in streams]
        count = sum(map(len, held_out.values()))
        print(f"Held {count:,} pairs out of training, to validate on.")
        settings = dataclasses.replace(settings, validation_pairs=count)
    kept = {**({"validation": []} if held_out else {}), **evaluation}

    def stream_of(name, number):
        if name == "validation" and number in held_out:
            identity = streams[number].identity
            return PairStream(identity, lambda: iter(held_out[number]))
        corpus = kept[name][number]
        return opened(corpus, splits[name], directions[number])

    return Job(
        folder,
        settings,
        list(corpora),
        streams,
        weights,
        tokenizers,
        {
            name: joined(
                [stream_of(name, i) for i in range(evaluated)],
                prefixes[:evaluated],
            )
            for name in kept
        },
        directions,
        prefixes,
    )


@contextlib.contextmanager
def temporary_folder(job: Job) -> Iterator[pathlib.Path]:
    """Holds the folder in which a job is done, see `resumable_folder`."""
    with resumable_folder(
        job.folder, RECORD, job.digest, "prepare a corpus"
    ) as folder:
        yield folder


def write_evaluation(job: Job, folder: pathlib.Path) -> dict[str, int]:
    """Writes the text of the splits for evaluation.

    It is done first, since it takes seconds and may fail.

    Returns:
        The number of pairs of each split.

    Raises:
        ValueError: if a split has no pair.
    """
    counts = {
        name: _write_text(_text_paths(job, folder, name), stream)
        for name, stream in job.evaluation.items()
    }
    if empty := [name for name, count in counts.items() if not count]:
        raise ValueError(
            f"Each split needs a pair. Received: {', '.join(empty)}, without "
            "any. Look at its files, or leave it out."
        )
    return counts


def _write_text(paths, stream):
    """Writes a split as parallel files; returns its number of pairs."""
    count = 0
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(write_aside(path)) for path in paths]
        for pair in stream:
            count += 1
            for file, text in zip(files, pair, strict=True):
                # A line break in a sentence would shift the lines after it.
                line = re.sub(r"[\r\n]+", " ", text)
                file.write(f"{line}\n".encode())
    return count


def _text_paths(job, folder, name):
    sides = job.settings.source, job.settings.target
    return [folder / f"{name}.{side}" for side in sides]


def finish(
    job: Job,
    folder: pathlib.Path,
    tokenizers: Tokenizers,
    evaluation: dict[str, int],
) -> None:
    """Writes what is still missing, and removes what is no longer needed.

    Args:
        job: the job.
        folder: of `temporary_folder`, with all shards.
        tokenizers: of source and target.
        evaluation: of `write_evaluation`.

    Raises:
        ValueError: if no pair is left.
    """
    shards = read_records(folder)
    texts = [p for name in evaluation for p in _text_paths(job, folder, name)]
    manifest = _manifest(job, shards, tokenizers, evaluation, texts)
    for c in manifest["corpora"]:
        if c["pairs"] and not round(c["weight"] * c["pairs"]):
            text = f"The weight of {c['corpus']!r} leaves none of its pairs."
            warnings.warn(text, stacklevel=2)
    if not any(round(c["weight"] * c["pairs"]) for c in manifest["corpora"]):
        raise ValueError(
            f"Split {job.settings.train_split!r} has no pair left. Left out: "
            f"{total_left_out(manifest)}; max_length="
            f"{job.settings.max_length}. Raise --max-length, or look at the "
            "files of the split."
        )
    complete = {MANIFEST, *(path.name for path in texts)}
    for side, tokenizer in zip(SIDES, tokenizers, strict=True):
        complete.add(f"{side}.model")
        with write_aside(folder / f"{side}.model") as file:
            file.write(tokenizer.model)
    with write_aside(folder / MANIFEST) as file:
        file.write((json.dumps(manifest, indent=1) + "\n").encode())
    for shard in shards:
        complete.update(f"{shard['name']}.{kind}.npy" for kind in KINDS)
    for path in folder.iterdir():
        if path.name not in complete:
            path.unlink()


def _manifest(job, shards, tokenizers, evaluation, texts):
    corpora = []
    for number, corpus in enumerate(job.corpora):
        mine = [s for s in shards if s["name"].startswith(f"pairs-{number}-")]
        corpora.append(
            {
                "corpus": (
                    corpus if isinstance(corpus, str) else type(corpus).__name__
                ),
                "languages": job.languages[number],
                "weight": job.weights[number],
                "pairs_read": sum(s["pairs_read"] for s in mine),
                "noise": _total(mine, "noise"),
                "left_out": _total(mine, "left_out"),
                "pairs": sum(s["pairs"] for s in mine),
                "shards": [
                    {
                        key: value
                        for key, value in shard.items()
                        if key not in ("pairs_read", "noise", "left_out")
                    }
                    for shard in mine
                ],
            }
        )
    return {
        "format": FORMAT,
        "versions": _versions(),
        "settings": {
            **dataclasses.asdict(job.settings),
            # The default may be more than the text allows.
            "vocab_size": tokenizers[1].vocab_size,
        },
        "vocabularies": {
            side: sha256(tokenizer.model)
            for side, tokenizer in zip(SIDES, tokenizers, strict=True)
        },
        "evaluation": evaluation,
        "texts": {path.name: file_sha256(path) for path in texts},
        "corpora": corpora,
    }


def total_left_out(manifest: Mapping[str, Any]) -> str:
    """Returns how many pairs were left out for which reason, in words."""
    return _in_words(_total(manifest["corpora"], "left_out"))


def total_noise(manifest: Mapping[str, Any]) -> str:
    """Returns how many noisy copies of which kind were added, in words."""
    return _in_words(_total(manifest["corpora"], "noise"))


def _total(records: Iterable[Mapping[str, Any]], name: str) -> dict[str, int]:
    """Adds up the counts that records have under a name."""
    total: collections.Counter[str] = collections.Counter()
    for record in records:
        total.update(record[name])
    return dict(total)


def _in_words(counts):
    found = [
        f"{count:,} {name.replace('_', ' ')}"
        for name, count in counts.items()
        if count
    ]
    return ", ".join(found) or "none"


def _versions():
    return {
        "keras_transformer": keras_transformer.__version__,
        "sentencepiece": sentencepiece.__version__,
    }


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
