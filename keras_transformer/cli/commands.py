"""The commands of `keras-transformer`; TensorFlow is imported when one runs.

The argument of each command is a dictionary of the options that were given.
The functions that a command calls have the defaults.
"""

import dataclasses
import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

from keras_transformer.cli.arguments import BATCH_SIZE, options_of, settings_of
from keras_transformer.cli.serve import serve
from keras_transformer.cli.stdio import (
    Progress,
    chunks_of_lines,
    show,
    standard_input,
    write_line,
)
from keras_transformer.inference.search_settings import SearchSettings
from keras_transformer.training.recipe import Recipe

LINES_PER_THREAD = 16  # fewer lines of a batch are not worth a thread
# `translate --explain` and `--runner` have no place for these.
STREAM_OPTIONS = {"beam_size", "alpha", "batch_size", "document", "language"}


def train(given: dict[str, Any]) -> None:
    """Trains a new or a resumed run."""
    from keras_transformer.cli.run_options import run_of
    from keras_transformer.training import distribution, train_run

    if "deterministic" in given:
        import tensorflow as tf

        tf.config.experimental.enable_op_determinism()
    strategy = distribution.default_strategy()
    worker, _ = distribution.worker_of(strategy)
    run = run_of(given, worker)
    train_run.train(run, given.get("steps"), strategy)
    if worker == 0:
        print(
            f"Trained {run.folder}. Next: keras-transformer export "
            f"{run.folder} saved_models/NAME/1"
        )


def prepare(given: dict[str, Any]) -> None:
    """Prepares corpora for training."""
    from keras_transformer.data.options import Preparation
    from keras_transformer.data.preparation import total_left_out
    from keras_transformer.training.run import open_run

    tokenizers = None
    if "vocabulary_of" in given:
        refused = {"vocab_size", "shared_vocabulary", "vocabulary_pairs"}
        _refuse(given, refused, "--vocabulary-of")
        run = open_run(given["vocabulary_of"])
        tokenizers = run.source_tokenizer, run.target_tokenizer
    arguments = {
        "corpora": given["corpora"],
        "folder": given["folder"],
        "settings": Preparation(**settings_of(Preparation, given)),
        "weights": given.get("weights"),
        "tokenizers": tokenizers,
    }
    if "runner" in given:
        from keras_transformer.integrations.beam.prepare import prepare_on_beam

        found = prepare_on_beam(**arguments, options=_runner_options(given))
    else:
        from keras_transformer.data.preparation import prepare

        found = prepare(**arguments)
    print(
        f"Prepared {len(found):,} pairs with {found.target_tokens:,} target "
        f"tokens in {found.folder}; left out: "
        f"{total_left_out(found.manifest)}. Next: keras-transformer train "
        f"--corpus {found.folder} --out runs/NAME"
    )


def import_model(given: dict[str, Any]) -> None:
    """Imports a model of others as a run."""
    from keras_transformer.integrations.marian.importer import import_marian

    run = import_marian(given["source"], given["folder"])
    print(
        f"Imported {run.folder}. Next: keras-transformer export {run.folder} "
        "saved_models/NAME/1"
    )


def average(given: dict[str, Any]) -> None:
    """Chooses the weights of a run."""
    from keras_transformer.cli.run_options import with_moved_paths
    from keras_transformer.training.checkpoint_averaging import choose_weights
    from keras_transformer.training.run import open_run

    run = with_moved_paths(open_run(given["folder"]), given)
    choose_weights(run, given.get("last"))


def export(given: dict[str, Any]) -> None:
    """Exports a run."""
    from keras_transformer.cli.run_options import with_moved_paths
    from keras_transformer.training.run import open_run

    export_format = given.get("format", "saved_model")
    search = {field.name for field in options_of(SearchSettings)}
    own = {"dtype", "shortlist", "block_size"}
    inapplicable = {
        "saved_model": {"quantization"},
        "ctranslate2": {*own, *search},
        "marian": {*own, "quantization", *search},
    }
    _refuse(given, inapplicable[export_format], f"--format {export_format}")
    run = open_run(given["folder"])
    if "corpus" in given:
        run = with_moved_paths(run, given)
    if export_format == "ctranslate2":
        from keras_transformer.integrations import ctranslate2

        path = ctranslate2.export(run, given["path"], given.get("quantization"))
    elif export_format == "marian":
        from keras_transformer.integrations.marian import exporter

        path = exporter.export(run, given["path"])
    else:
        from keras_transformer import hardware
        from keras_transformer.export import saved_model

        asked = settings_of(SearchSettings, given)
        settings = dataclasses.replace(run.search, **asked)
        dtype = hardware.resolve_dtype(given.get("dtype", "auto"))
        path = saved_model.export(
            run,
            given["path"],
            settings,
            dtype,
            given.get("shortlist"),
            given.get("block_size"),
        )
        print(f"The matrices are in {dtype}.")
    print(f"Exported {path}")


def translate(given: dict[str, Any]) -> None:
    """Translates standard input."""
    from keras_transformer.inference import sentences
    from keras_transformer.inference.lines import translate_lines

    if "explain" in given:
        refused = STREAM_OPTIONS | {"runner", "source", "target"}
        _refuse(given, refused, "--explain")
        _explain(_exported(given["path"]), given["explain"])
        return
    if "runner" in given:
        _translate_on_beam(given)
        return
    _refuse(given, {"source", "target"}, "translate without --runner")
    if "document" in given:
        sentences.load_splitter()  # fails before the model is loaded, not after
    else:
        _refuse(given, {"language"}, "translate without --document")
    batch_size = given.get("batch_size", BATCH_SIZE)
    workers = _workers(batch_size)
    model = _exported(given["path"])
    function = _function(model, given)
    if "document" in given:
        from keras_transformer.cli.document import translate_document

        # Earlier exports do not name their languages.
        language = given.get("language", model.metadata.get("source", ""))
        has_tags = model.metadata.get("has_tags", False)
        translate_document(function, language, batch_size, workers, has_tags)
        return
    progress = Progress("lines")
    # Enough lines to sort by length, and few enough to bound the memory.
    for lines in chunks_of_lines(standard_input(), 4096):
        for line in translate_lines(
            function, lines, batch_size, progress, workers
        ):
            write_line(line)
        sys.stdout.flush()
        progress.begin_after(len(lines))
    progress.end()


def _translate_on_beam(given):
    """Translates a file by a pipeline of Apache Beam."""
    from keras_transformer.integrations.beam.translate import translate_file

    _refuse(given, STREAM_OPTIONS, "--runner")
    if not {"source", "target"} <= given.keys():
        raise ValueError(
            "`--runner` needs the files to read and to write. Give --source "
            "and --target."
        )
    failed = translate_file(
        given["path"],
        given["source"],
        given["target"],
        _runner_options(given),
    )
    print(
        f"Translated {given['source']} to {given['target']}; "
        f"{failed:,} lines failed."
    )


def _runner_options(given):
    """Returns the options of a pipeline of Apache Beam."""
    return [f"--runner={given['runner']}", *given.get("runner_options", [])]


def _refuse(given, names, context):
    """Raises a `ValueError` if one of the options `names` was given."""
    if refused := sorted(given.keys() & names):
        options = [f"--{name.replace('_', '-')}" for name in refused]
        raise ValueError(
            f"`{context}` does not support some options. Received: "
            f"{', '.join(options)}. Leave them out."
        )


def _explain(model, path):
    from keras_transformer.inference.attention_plot import plot_attention

    chunks = chunks_of_lines(standard_input(), 4096)
    lines = [line for chunk in chunks for line in chunk]
    if len(lines) != 1:
        raise ValueError(
            f"`--explain` draws one line of text. Received: {len(lines)} lines."
        )
    found = model.explain(lines[0])
    if not found["source_pieces"]:
        raise ValueError(
            "`--explain` draws the pieces of a line. Received: a blank line."
        )
    plot_attention(
        found["source_pieces"],
        found["target_pieces"],
        found["attention"],
        path,
    )
    write_line(found["translation"])


def evaluate(given: dict[str, Any]) -> None:
    """Scores a SavedModel and stores the result."""
    from keras_transformer.data.text_files import read_lines
    from keras_transformer.inference import evaluation
    from keras_transformer.inference.lines import translate_lines

    tokenizer = given.get("tokenize", Recipe.bleu_tokenizer)
    evaluation.check_tokenizer(tokenizer)
    sources = read_lines(given["source"])
    references = read_lines(given["reference"])
    if len(sources) != len(references) or not sources:
        raise ValueError(
            "Source and reference must have the same number of lines, at least "
            f"one. Received: {len(sources)} in {given['source']!r}, "
            f"{len(references)} in {given['reference']!r}."
        )
    batch_size = given.get("batch_size", BATCH_SIZE)
    workers = _workers(batch_size)
    model = _exported(given["path"])
    progress = None
    if sys.stderr.isatty():

        def progress(done):
            end = "\n" if done == len(sources) else ""
            show(f"{done:,} of {len(sources):,} lines", end)

    hypotheses = translate_lines(
        _function(model, given),
        sources,
        batch_size,
        progress,
        workers,
    )
    result = {
        **evaluation.score(hypotheses, references, tokenizer),
        "source": os.path.basename(given["source"]),
        "reference": os.path.basename(given["reference"]),
        "model": model.metadata["signature"],
        "search": model.metadata["search"] | settings_of(SearchSettings, given),
    }
    print(json.dumps(result), flush=True)
    try:
        evaluation.remember(model.path, result)
    except OSError as error:
        warnings.warn(f"The result is not stored: {error}", stacklevel=2)


def _workers(batch_size):
    """Chooses the number of translation threads.

    It also limits TensorFlow's threads per operation, so that all threads
    together use each core once: two threads that use one core each take two
    thirds of the time of one thread that uses both. Call it before a model is
    loaded, since TensorFlow starts its threads then.
    """
    import tensorflow as tf

    cores = os.cpu_count() or 1
    on_gpu = bool(tf.config.list_physical_devices("GPU"))
    workers = 1 if on_gpu else min(cores, batch_size // LINES_PER_THREAD)
    workers = max(workers, 1)
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(cores // workers))
    return workers


def _exported(path):
    from keras_transformer.export.saved_translator import SavedTranslator

    model = SavedTranslator(path)
    # With this setting TensorFlow rearranges each matrix once instead of at
    # every product, which is wrong only in processes that train. In float32 the
    # arrangement depends on the number of rows, so one that is kept is wrong
    # for other batches.
    if model.metadata["dtype"] == "bfloat16":
        os.environ.setdefault("TF_ONEDNN_ASSUME_FROZEN_WEIGHTS", "1")
    return model


def _function(model, given):
    search = settings_of(SearchSettings, given)
    return model.searched_with(**search) if search else model.translate


COMMANDS: dict[str, Callable[[dict[str, Any]], None]] = {
    "train": train,
    "prepare": prepare,
    "import": import_model,
    "average": average,
    "export": export,
    "translate": translate,
    "serve": serve,
    "evaluate": evaluate,
}
