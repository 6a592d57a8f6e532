"""Apache Beam: prepares corpora and translates files on many machines.

The steps and the files are those of `prepare` and `translate_lines`. Every
worker has to see corpora, files and folders, on a file system that all machines
share.
"""

import builtins
import contextlib
import functools
import json
import os
import pathlib
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
import grpc
from apache_beam.ml.inference.base import (
    KeyedModelHandler,
    ModelHandler,
    PredictionResult,
    RunInference,
)
from apache_beam.options.pipeline_options import PipelineOptions

from keras_transformer.atomic_files import (
    check_is_new,
    empty_for_other_job,
    write_aside,
)
from keras_transformer.data import shards
from keras_transformer.data.corpus import open_corpus
from keras_transformer.data.directions import Languages
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
from keras_transformer.data.text_files import identity_of, stream_lines
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.data.vocabulary import (
    learn_vocabularies,
    vocabulary_sample,
)
from keras_transformer.export.files import check_export
from keras_transformer.export.saved_translator import SavedTranslator
from keras_transformer.inference.lines import translate_lines
from keras_transformer.lock import lock

ATTEMPTS = 4  # to run a pipeline whose workers are killed
CHUNK = 2048  # lines that are sorted by length and translated together
# Beam counts chunks when it makes batches: each is a batch already.
ONE_BY_ONE = {"min_batch_size": 1, "max_batch_size": 1}

Example = str | Sequence[str]


def prepare_on_beam(
    corpora: Corpus | Sequence[Corpus],
    folder: str | os.PathLike,
    settings: Preparation | None = None,
    weights: Sequence[float] | None = None,
    tokenizers: Tokenizers | None = None,
    evaluation: Mapping[str, Any] | None = None,
    languages: Sequence[Languages] | None = None,
    options: Sequence[str] = (),
) -> PreparedCorpus:
    """Prepares corpora as `prepare` does, and writes the same bytes.

    Args:
        corpora, folder, settings, weights, tokenizers, evaluation, languages:
            as for `prepare`.
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
    job = make_job(
        corpora, folder, settings, weights, tokenizers, evaluation, languages
    )
    settings = job.settings
    if job.settings.validation_pairs is not None:
        raise ValueError(
            "On Beam, pairs are not held out for validation. Received: "
            f"{job.corpora[0]!r} without the split "
            f"{settings.validation_split!r}, or `validation_pairs`. Name a "
            "split to validate on."
        )
    # Workers open the corpora by their names: a stream cannot be sent to them.
    sources = list(zip(job.corpora, job.languages, job.prefixes, strict=True))
    read = functools.partial(_read, sources, settings)
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


def _read(sources, settings, number):
    corpus, (source, target), prefix = sources[number]
    stream = open_corpus(
        corpus, settings.train_split, source, target, settings.data_dir
    )
    yield from shards.read_blocks(number, stream, settings, prefix)


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


def translate_file(
    model: str | os.PathLike,
    source: str | os.PathLike,
    target: str | os.PathLike,
    options: Sequence[str] = (),
) -> int:
    """Translates a file of lines; the result has a line for each line.

    Every worker has to see the files, on a file system that all machines share.
    A line that cannot be translated stays empty and is written to
    `TARGET.failed`, with its number and the error. If the pipeline is stopped,
    the same call goes on where it stopped: parts that are complete are not
    translated again.

    Args:
        model: folder `NAME/VERSION` of the export.
        source: file of lines, which may be compressed.
        target: file to write.
        options: of the pipeline, such as `["--runner=FlinkRunner"]`. Defaults
            to those of Beam's DirectRunner.

    Returns:
        The number of lines that failed.

    Raises:
        ValueError: if the file to write exists, the export is missing or
            damaged, or the source cannot be read.
        RuntimeError: if a worker fails as often as the runner allows.
        ChildProcessError: if DirectRunner's workers are killed four times.
    """
    source, target = (pathlib.Path(p).absolute() for p in (source, target))
    model = pathlib.Path(model).absolute()
    check_export(model)
    check_is_new(target, "file to write")
    identity = identity_of([source, model / "saved_model.pb"])
    parts = target.with_name(f".{target.name}.parts")
    parts.mkdir(parents=True, exist_ok=True)
    with lock(parts, "translate a file"):
        empty_for_other_job(parts / "identity", identity)
        _translate_chunks(model, source, parts, options)
        return _join(source, parts, target)


class TranslationHandler(ModelHandler[Example, PredictionResult, Any]):
    """Translates text in Beam's `RunInference` with an exported SavedModel.

    Beam's own handlers for TensorFlow load a model by
    `keras.models.load_model`, which Keras 3 does not do for a SavedModel
    (https://github.com/apache/beam/issues/30616).

    An element is a string, or a list of strings. The result is a
    `PredictionResult` whose `inference` is the translation or the list of
    translations. All strings of a batch are translated in order of length.

    Args:
        path: folder `NAME/VERSION` of the export.
        batch_size: number of strings to translate at a time. Defaults to 64.
        batching: arguments of `beam.BatchElements`. Defaults to batches of up
            to 1,024 elements.
    """

    def __init__(
        self,
        path: str,
        batch_size: int = 64,
        batching: dict[str, Any] | None = None,
    ):
        super().__init__()
        self._path, self._batch_size = str(path), batch_size
        self._batching = batching or {"max_batch_size": 1024}

    def load_model(self) -> SavedTranslator:
        """Loads the export, once in each process."""
        return SavedTranslator(self._path)

    def batch_elements_kwargs(self) -> dict[str, Any]:
        """Returns the arguments of `beam.BatchElements`."""
        return self._batching

    def run_inference(
        self,
        batch: Sequence[Example],
        model: SavedTranslator,
        inference_args: dict[str, Any] | None = None,
    ) -> Iterable[PredictionResult]:
        """Translates the elements of a batch."""
        lists = [[x] if isinstance(x, str) else list(x) for x in batch]
        lines = [line for some in lists for line in some]
        found = iter(translate_lines(model.translate, lines, self._batch_size))
        for example, some in zip(batch, lists, strict=True):
            translations = [next(found) for _ in some]
            result = (
                translations[0] if isinstance(example, str) else translations
            )
            yield PredictionResult(example, result, self._path)


def _translate_chunks(model, source, parts, options):
    """Runs the pipeline that writes the parts that are missing."""
    handler = TranslationHandler(str(model), batching=ONE_BY_ONE)
    inference: RunInference = RunInference(KeyedModelHandler(handler))

    def build(pipeline):
        done, failed = (
            pipeline
            | "File" >> beam.Create([str(source)])
            | "Read chunks" >> beam.FlatMap(_read_chunks, str(parts))
            | "Send to all workers" >> beam.Reshuffle()
            | "Translate" >> inference.with_exception_handling()
        )
        _ = done | "Write parts" >> beam.Map(_write_part, str(parts))
        # Each line of a chunk that failed is tried alone.
        _ = (
            failed.failed_inferences
            | "Chunks of failed batches" >> beam.FlatMap(lambda x: x[0])
            | "Line by line" >> beam.ParDo(_TranslateAlone(handler, str(parts)))
        )

    run_pipeline(build, options)


def _read_chunks(source, parts):
    """Yields the chunks that are not translated yet, with their numbers."""
    for number, lines in _chunks(source):
        if not _part(parts, number).exists():
            yield number, lines


def _chunks(source):
    lines, number = [], 0
    # As `translate` does, which takes any bytes.
    for line in stream_lines(source, errors="replace"):
        lines.append(line)
        if len(lines) == CHUNK:
            yield number, lines
            lines, number = [], number + 1
    if lines:
        yield number, lines


def _part(folder, number):
    return pathlib.Path(folder, f"{number:09}.json")


def _write_part(keyed, folder):
    """Writes the translations of a chunk; twice, it writes the same bytes."""
    number, result = keyed
    _write(folder, number, result.inference, {})


def _write(folder, number, translations, errors):
    part = {"translations": translations, "errors": errors}
    with write_aside(_part(folder, number)) as file:
        file.write(json.dumps(part).encode())


class _TranslateAlone(beam.DoFn):
    """Translates the lines of a chunk one by one, and keeps their errors."""

    def __init__(self, handler, folder):
        self.handler, self.folder = handler, folder

    def setup(self):
        self.model = None

    def process(self, keyed):
        number, lines = keyed
        if self.model is None:  # only where a chunk has failed
            self.model = self.handler.load_model()
        translations, errors = [], {}
        for row, line in enumerate(lines):
            try:
                (found,) = self.handler.run_inference([line], self.model)
                translations.append(found.inference)
            except Exception as error:
                translations.append("")
                errors[row] = f"{type(error).__name__}: {error}"
        _write(self.folder, number, translations, errors)


def _join(source, parts, target):
    """Joins the parts in order; returns the number of failed lines."""
    failed = target.with_name(f"{target.name}.failed")
    count = 0
    with write_aside(target) as file, write_aside(failed) as failures:
        for number, lines in _chunks(source):
            part = json.loads(_part(parts, number).read_bytes())
            for _, line in zip(lines, part["translations"], strict=True):
                file.write(f"{line}\n".encode())
            for row, error in part["errors"].items():
                record = {
                    "line": number * CHUNK + int(row) + 1,
                    "text": lines[int(row)],
                    "error": error,
                }
                failures.write(f"{json.dumps(record)}\n".encode())
                count += 1
    if not count:
        failed.unlink()
    shutil.rmtree(parts)
    return count


class WorkerEndedError(ChildProcessError):
    """A worker process of Beam's DirectRunner was killed."""


def run_pipeline(
    build: Callable[[beam.Pipeline], None], options: Sequence[str]
) -> None:
    """Builds and runs a pipeline, again if a worker of DirectRunner is killed.

    Other runners replace a worker by themselves. The steps of the pipeline have
    to write the same bytes when they are repeated.

    Args:
        build: adds the steps to a pipeline.
        options: of the pipeline.

    Raises:
        WorkerEndedError: if a worker was killed in each of four attempts.
        ValueError: if a step has raised one.
        OSError: if a step has raised one.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with _ended_with_its_workers():
                pipeline = beam.Pipeline(options=PipelineOptions(options))
                build(pipeline)
                pipeline.run().wait_until_finish()
            return
        except WorkerEndedError as error:
            if attempt == ATTEMPTS:
                raise
            print(f"{error} The pipeline is run again.", flush=True)
        except RuntimeError as error:
            # A worker process sends an error as the text of its traceback.
            errors = re.split(r"^(\w+(?:\.\w+)*): ", f"{error}", flags=re.M)
            kind = _known_error(errors[-2]) if len(errors) > 2 else None
            if kind is None:
                raise
            raise kind(errors[-1].split("\n\n")[0].strip()) from error


def _known_error(name):
    """Returns the class of an error, or `None` if it is not the user's."""
    found = getattr(builtins, name, None)
    for kind in (ValueError, OSError):
        if isinstance(found, type) and issubclass(found, kind):
            return kind
    return None


class _EndedError(BaseException):
    """Leaves Beam's code, which catches exceptions of other classes."""


@contextlib.contextmanager
def _ended_with_its_workers() -> Iterator[None]:
    """Raises an error in the main thread if a worker process ends too early.

    DirectRunner itself would wait for it for ever. It notices the end in a
    thread, which fails.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread alone
        return
    ended: list[BaseException] = []
    left = threading.Event()

    def interrupt():
        main = threading.main_thread().ident or 0
        while not left.is_set():
            signal.pthread_kill(main, signal.SIGUSR1)
            left.wait(10)

    def thread_failed(found):
        if "Worker subprocess exited" in str(found.exc_value):
            ended.append(found.exc_value)
            threading.Thread(target=interrupt, daemon=True).start()
        elif not issubclass(found.exc_type, grpc.RpcError):  # of its channel
            hook(found)

    def raise_error(*_):
        raise _EndedError

    hook, threading.excepthook = threading.excepthook, thread_failed
    # Another signal than SIGINT, which the user's program may ignore.
    handler = signal.signal(signal.SIGUSR1, raise_error)
    try:
        yield
    except _EndedError:
        raise WorkerEndedError(f"{ended[0]}.") from ended[0]
    finally:
        left.set()
        signal.signal(signal.SIGUSR1, handler)
        threading.excepthook = hook
