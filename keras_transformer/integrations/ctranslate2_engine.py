"""CTranslate2 computes exports of its format, for `serve` and `translate`.

The folder is what `integrations.ctranslate2.export` wrote. Text is prepared
here as for a SavedModel; the search is CTranslate2's.
"""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import ctranslate2
import numpy as np

from keras_transformer import hardware
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.export.files import (
    METADATA,
    check_export,
    newest_version,
)
from keras_transformer.inference.line_translator import Beams, LineTranslator
from keras_transformer.inference.lines import translate_lines
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.serve.errors import ServingError
from keras_transformer.serve.worker import Function

# CTranslate2's own penalty: as good as none. With none, a search would end with
# its first finished hypothesis. Ours is applied to those that it has found.
NO_PENALTY = 1e-9
# A search ends with 2K finished hypotheses, of which the K best count. On 1,500
# texts of the demo's model it found what ours does in all but one; with K, in
# all but 15.
PATIENCE = 2.0


class CTranslate2Translator(LineTranslator):
    """Loads an export for CTranslate2 and translates with it.

    It has the settings of `SearchSettings`, and finds nearly always what a
    SavedModel of the same run finds in the same dtype. Only the end of a search
    differs, unless `early_stopping` is "filled": it ends with 2K finished
    hypotheses.

    Example:

    >>> from keras_transformer.integrations import ctranslate2
    >>> from keras_transformer.training import open_run
    >>> folder = ctranslate2.export(open_run("runs/demo"), "engines/demo/1")
    >>> translator = CTranslate2Translator("engines/demo")
    >>> translator(["Good morning.", "Room 7 is on the third floor."])
    ['Guten Morgen.', 'Zimmer 7 ist im dritten Stock.']

    Args:
        path: the folder `NAME`, of which the newest version is loaded, or the
            folder of an export.
        threads: number of batches that are computed side by side. Defaults to
            `None`, the number of cores.

    Raises:
        ValueError: if there is no export of this format, or if it is damaged.
    """

    def __init__(self, path: str | os.PathLike, threads: int | None = None):
        self.path = newest_version(path)
        self.metadata = check_export(self.path, "ctranslate2")
        # A batch on several cores takes a hundred times as long where another
        # process has work for them: the threads of OpenMP wait for each other.
        self._engine = ctranslate2.Translator(
            str(self.path),
            inter_threads=threads or hardware.cores(),
            intra_threads=1,
        )
        source, target = (
            Tokenizer((self.path / f"{side}.model").read_bytes())
            for side in ("source", "target")
        )
        settings = SearchSettings(**self.metadata["search"])
        super().__init__(source, target, settings)
        self.longest = (
            self.metadata["max_pieces"] + 1,
            self.metadata["max_length"],
        )
        suppressed = target.suppressed_ids(settings.allow_unknown)
        self._suppressed = [[piece] for piece in target.pieces(suppressed)]

    def __call__(
        self, text: str | Iterable[str], target_language: str | None = None
    ) -> str | list[str]:
        """Translates a string, or each of several; see `SavedTranslator`."""
        lines = [text] if isinstance(text, str) else list(text)
        translate = functools.partial(
            self.translate, target_language=target_language
        )
        found = translate_lines(translate, lines)
        return found[0] if isinstance(text, str) else found

    def searched_with(self, **search: Any) -> functools.partial:
        """Returns `translate` with other settings of the search.

        Args:
            search: arguments of `SearchSettings`.

        Raises:
            ValueError: if a value is out of range.
        """
        settings = dataclasses.replace(self.settings, **search)
        return functools.partial(self.translate, settings=settings)

    def search(
        self,
        ids: list[list[int]],
        limits: list[int],
        settings: SearchSettings,
    ) -> Beams:
        if not ids:
            return []
        most = max(limits)
        found = self._search(ids, most, settings)
        # The limit of a batch is that of its longest source. Translations that
        # are too long for their own are rare, and searched once more.
        for limit in {*limits} - {most}:
            again = [
                i
                for i, beam in enumerate(found)
                if limits[i] == limit and any(len(x) > limit for x, _ in beam)
            ]
            rows = [ids[i] for i in again]
            beams = self._search(rows, limit, settings) if again else []
            for i, beam in zip(again, beams, strict=True):
                found[i] = beam
        return found

    def _search(self, ids, limit, settings):
        """Returns the hypotheses of sources that have the same limit."""
        is_filled = settings.early_stopping == "filled"
        results = self._engine.translate_batch(
            [self.source_tokenizer.pieces(row[:-1]) for row in ids],
            beam_size=settings.beam_size,
            num_hypotheses=settings.beam_size,
            length_penalty=NO_PENALTY,
            patience=1.0 if is_filled else PATIENCE,
            repetition_penalty=settings.repetition_penalty,
            no_repeat_ngram_size=settings.no_repeat_ngram_size,
            # Its own lengths are those without an end token.
            min_decoding_length=max(settings.min_length - 1, 0),
            max_decoding_length=limit,
            max_input_length=0,  # sources are cut before
            suppress_sequences=self._suppressed,
            return_end_token=True,
            return_scores=True,
        )
        beams = []
        for result in results:
            rows = map(self.target_tokenizer.ids, result.hypotheses)
            beam = [
                (row, score / settings.penalty(len(row)))
                for row, score in zip(rows, result.scores, strict=True)
            ]
            beams.append(sorted(beam, key=lambda pair: -pair[1]))
        return beams

    def clean(self, texts: list[str]) -> list[str]:
        settings = self.settings
        language = settings.normalize_punctuation
        if not (settings.replace_punctuation or language):
            return texts
        import tensorflow as tf

        from keras_transformer.inference import punctuation

        text = tf.constant(texts)
        if settings.replace_punctuation:
            text = punctuation.replace_punctuation(text)
        if language:
            text = punctuation.normalize_punctuation(text, language)
        return [x.decode("utf-8", "replace") for x in text.numpy()]


@contextlib.contextmanager
def running_ctranslate2() -> Iterator[functools.partial]:
    """Returns a context manager of what starts an engine, for `serve`.

    The engine is a process of this machine for each version, which loads no
    TensorFlow.
    """
    from keras_transformer.serve.engine import LocalEngine

    yield functools.partial(
        LocalEngine.start, loader=f"{__name__}:load", read=signatures
    )


def load(path: str, threads: int) -> dict[str, Function]:
    """Loads an export in the process of a version and warms it up.

    Args:
        path: folder of the export, `NAME/VERSION`.
        threads: number of threads that will compute.

    Returns:
        A function for each of `signatures`, by name.

    Raises:
        ValueError: if the export is incomplete or damaged.
    """
    translator = CTranslate2Translator(path, threads)
    functions: dict[str, Function] = {
        "serving_default": functools.partial(_best, translator),
        "n_best": functools.partial(_n_best, translator),
    }
    functions["serving_default"]({"text": np.array([b"a"], object)})
    return functions


def _best(translator, inputs):
    """Computes the signature `serving_default`."""
    return _arrays(translator.translate([*inputs["text"]]))


def _n_best(translator, inputs):
    """Computes the signature `n_best`."""
    language = inputs.get("target_language", np.array(b"")).item()
    try:
        settings = dataclasses.replace(
            translator.settings,
            beam_size=int(inputs["beam_size"]),
            alpha=float(inputs["alpha"]),
            max_length=int(inputs["max_length"]),
        )
        found = translator.n_best(
            [*inputs["text"]], language.decode("utf-8", "replace"), settings
        )
    except ValueError as error:
        raise ServingError("INVALID_ARGUMENT", f"{error}") from error
    return _arrays(found, settings.beam_size)


def _arrays(found, *axes):
    """Returns what was found as arrays `(B, *axes)`."""
    texts = np.array(found["translation"], object)
    several = {
        "translation": np.frompyfunc(str.encode, 1, 1)(texts),
        "score": np.array(found["score"], "float32"),
        "incomplete": np.array(found["incomplete"], "bool"),
    }
    shape = len(found["truncated"]), *axes
    outputs = {name: values.reshape(shape) for name, values in several.items()}
    return {**outputs, "truncated": np.array(found["truncated"], bool)}


def signatures(path: str | os.PathLike) -> dict[str, Any]:
    """Returns the `SignatureDef` messages of an export, by name."""
    import tensorflow as tf
    from tensorflow.core.protobuf import meta_graph_pb2

    metadata = json.loads(pathlib.Path(path, METADATA).read_text())
    search = metadata["search"]
    defaults: Mapping[str, Any] = {
        "beam_size": np.int32(search["beam_size"]),
        "alpha": np.float32(search["alpha"]),
        "max_length": np.int32(metadata["max_length"]),
        **({"target_language": b""} if metadata["tags"] else {}),
    }
    found = {}
    for name, options, shape in (
        ("serving_default", {}, [None]),
        ("n_best", defaults, [None, None]),
    ):
        message = meta_graph_pb2.SignatureDef(
            method_name="tensorflow/serving/predict"
        )
        tensors = {key: tf.constant(value) for key, value in options.items()}
        for infos, specs in (
            (
                message.inputs,
                {"text": tf.TensorSpec([None], tf.string)}
                | {k: tf.TensorSpec([], x.dtype) for k, x in tensors.items()},
            ),
            (
                message.outputs,
                {
                    "translation": tf.TensorSpec(shape, tf.string),
                    "score": tf.TensorSpec(shape, tf.float32),
                    "incomplete": tf.TensorSpec(shape, tf.bool),
                    "truncated": tf.TensorSpec([None], tf.bool),
                },
            ),
        ):
            for key, spec in specs.items():
                infos[key].name = f"{name}_{key}:0"
                infos[key].dtype = spec.dtype.as_datatype_enum
                infos[key].tensor_shape.CopyFrom(spec.shape.as_proto())
        for key, tensor in tensors.items():
            message.defaults[key].CopyFrom(tf.make_tensor_proto(tensor))
        found[name] = message
    return found
