"""Prepares a corpus on many machines, as an Apache Beam pipeline.

The steps and the files are those of `prepare`. Every worker has to see the
corpus and the folder, on a file system that all machines share.
"""

import functools
import os
from collections.abc import Mapping, Sequence

import apache_beam as beam

from keras_transformer.data import shards
from keras_transformer.data.corpus import open_corpus
from keras_transformer.data.options import Preparation
from keras_transformer.data.preparation import (
    Corpus,
    Job,
    Tokenizers,
    finish,
    make_job,
    temporary_folder,
    write_evaluation,
)
from keras_transformer.data.prepared_corpus import PreparedCorpus
from keras_transformer.data.shards import CorpusStats, read_corpus_stats
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.data.vocabulary import (
    learn_vocabularies,
    vocabulary_sample,
)
from keras_transformer.integrations.beam.pipeline import run_pipeline


def prepare_on_beam(
    corpora: Corpus | Sequence[Corpus],
    folder: str | os.PathLike,
    settings: Preparation | None = None,
    weights: Sequence[float] | None = None,
    tokenizers: Tokenizers | None = None,
    evaluation: Mapping[str, Corpus] | None = None,
    options: Sequence[str] = (),
) -> PreparedCorpus:
    """Prepares corpora as `prepare` does, and writes the same bytes.

    Args:
        corpora, folder, settings, weights, tokenizers, evaluation: as for
            `prepare`.
        options: of the pipeline, such as `["--runner=FlinkRunner"]`. Defaults
            to those of Beam's DirectRunner.

    Returns:
        The prepared corpus.

    Raises:
        ValueError: as for `prepare`.
        RuntimeError: if a worker fails as often as the runner allows.
        ChildProcessError: if DirectRunner's workers are killed four times.
    """
    settings = settings or Preparation()
    job = make_job(corpora, folder, settings, weights, tokenizers, evaluation)
    # Workers open the corpora by their names: a stream cannot be sent to them.
    arguments = settings.train_split, *job.languages, settings.data_dir
    read = functools.partial(_read, job.corpora, arguments)
    with temporary_folder(job) as aside:
        texts = write_evaluation(job, aside)
        if read_corpus_stats(aside) is None:
            run_pipeline(
                lambda pipeline: _collect_stats(
                    _blocks(pipeline, job, read), job, str(aside)
                ),
                options,
            )
        run_pipeline(
            lambda pipeline: (
                _blocks(pipeline, job, read)
                | "Write shards" >> beam.ParDo(_MakeShard(str(aside), settings))
            ),
            options,
        )
        stats = read_corpus_stats(aside)
        assert stats is not None  # the first pipeline wrote it
        finish(job, aside, stats.tokenizers, texts)
    return PreparedCorpus(folder)


def _blocks(pipeline, job: Job, read):
    """Reads each corpus by one worker, and sends its blocks to all."""
    return (
        pipeline
        | "Corpora" >> beam.Create(range(len(job.corpora)))
        | "Read blocks" >> beam.FlatMap(read)
        | "Send to all workers" >> beam.Reshuffle()
    )


def _read(corpora, arguments, number):
    yield from shards.read_blocks(
        number, open_corpus(corpora[number], *arguments)
    )


def _collect_stats(blocks, job, folder):
    """Adds the steps that learn the vocabularies and find the duplicates."""
    settings = job.settings
    hashes = (
        blocks
        | "Hash pairs" >> beam.Map(_hashes, settings)
        | "Collect hashes" >> beam.combiners.ToDict()
    )
    sample = blocks | "Draw pairs" >> beam.CombineGlobally(_Draw(settings))
    models = job.tokenizers and [t.model for t in job.tokenizers]
    _ = hashes | "Write statistics" >> beam.Map(
        _write_stats, beam.pvalue.AsSingleton(sample), models, settings, folder
    )


def _hashes(block, settings):
    """Returns the key of a block and its hashes, none to keep duplicates."""
    rows, _ = shards.readable_rows(block, settings)
    rows = rows if settings.drop_duplicates else []
    return block.key, shards.hash_pairs(block, rows)


class _Draw(beam.CombineFn):
    """Draws the pairs that the vocabulary is learned from."""

    def __init__(self, settings):
        self.settings = settings

    def create_accumulator(self):
        return vocabulary_sample(self.settings)

    def add_input(self, sample, block):
        sample.add(block, shards.readable_rows(block, self.settings)[0])
        return sample

    def merge_accumulators(self, samples):
        merged = self.create_accumulator()
        for sample in samples:
            merged.merge(sample)
        return merged

    def extract_output(self, sample):
        return sample.pairs()


def _write_stats(hashes, pairs, models, settings, folder):
    if models is None:
        tokenizers = learn_vocabularies(pairs, settings)
    else:
        source, target = (Tokenizer(model) for model in models)
        tokenizers = source, target
    repeated = (
        shards.find_duplicates(hashes) if settings.drop_duplicates else {}
    )
    CorpusStats(tokenizers, repeated, 0).write(folder)


class _MakeShard(beam.DoFn):
    """Writes the shard of a block; done twice, it writes the same bytes."""

    def __init__(self, folder, settings):
        self.folder, self.settings = folder, settings

    def setup(self):
        stats = read_corpus_stats(self.folder)
        assert stats is not None  # the pipeline before wrote it
        self.stats = stats

    def process(self, block):
        shards.make_shard(self.folder, block, self.stats, self.settings)
