"""Translates text of any size on many machines, as an Apache Beam pipeline."""

import json
import os
import pathlib
import shutil
from collections.abc import Iterable, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.ml.inference.base import (
    KeyedModelHandler,
    ModelHandler,
    PredictionResult,
    RunInference,
)

from keras_transformer.atomic_files import (
    check_is_new,
    empty_for_other_job,
    write_aside,
)
from keras_transformer.data.text_files import identity_of, stream_lines
from keras_transformer.export.saved_translator import (
    SavedTranslator,
    check_export,
)
from keras_transformer.inference.lines import translate_lines
from keras_transformer.integrations.beam.pipeline import run_pipeline
from keras_transformer.lock import lock

CHUNK = 2048  # lines that are sorted by length and translated together
# Beam counts chunks when it makes batches: each is a batch already.
ONE_BY_ONE = {"min_batch_size": 1, "max_batch_size": 1}

Example = str | Sequence[str]


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
