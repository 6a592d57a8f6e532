"""The commands of `keras-transformer`; TensorFlow is imported when one runs.

Each takes the options that were given, by name; defaults are those of the
functions that a command calls.
"""

import json
import os
import sys
import warnings

from keras_transformer.cli.arguments import BATCH_SIZE
from keras_transformer.cli.standard_streams import (
    chunks_of_lines,
    show,
    standard_input,
    write_line,
)
from keras_transformer.training.recipe import Recipe

LEAST_SHARE = 16  # lines that are worth a thread


def train(given):
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


def average(given):
    from keras_transformer.training.run import open_run
    from keras_transformer.training.weights_choice import choose_weights

    choose_weights(open_run(given["folder"]), given.get("last"))


def export(given):
    from keras_transformer.training.run import open_run

    name = given.get("format", "saved_model")
    ours = {"beam_size", "alpha", "dtype"}
    foreign = ours if name == "ctranslate2" else {"quantization"}
    _refuse(given, foreign, f"--format {name}")
    if name == "ctranslate2":
        from keras_transformer.export import ctranslate2

        path = ctranslate2.export(
            open_run(given["folder"]), given["path"], given.get("quantization")
        )
    else:
        from keras_transformer import processor
        from keras_transformer.export import saved_model
        from keras_transformer.inference.search_settings import SearchSettings

        settings = SearchSettings(**_search(given))
        dtype = processor.resolve_dtype(given.get("dtype", "auto"))
        path = saved_model.export(
            open_run(given["folder"]), given["path"], settings, dtype
        )
        print(f"The matrices are in {dtype}.")
    print(f"Exported {path}")


def translate(given):
    from keras_transformer.inference.text_lines import translate_lines

    if "explain" in given:
        _refuse(given, {"beam_size", "alpha", "batch_size"}, "--explain")
        _explain(_exported(given["path"]), given["explain"])
        return
    batch_size = given.get("batch_size", BATCH_SIZE)
    workers = _workers(batch_size)
    model = _exported(given["path"])
    function = _function(model, given)
    shows = sys.stderr.isatty() and not sys.stdout.isatty()
    before = 0

    def progress(done):
        if shows:
            show(f"{before + done:,} lines")

    # Enough lines to sort by length, and memory stays bounded.
    for lines in chunks_of_lines(standard_input(), 4096):
        for line in translate_lines(
            function, lines, batch_size, progress, workers
        ):
            write_line(line)
        sys.stdout.flush()
        before += len(lines)
    if shows:
        show(f"{before:,} lines", end="\n")


def _search(given):
    """The settings of the search that were given."""
    return {k: given[k] for k in ("beam_size", "alpha") if k in given}


def _refuse(given, names, where):
    """Raises a `ValueError` if an option was given that does not apply."""
    if refused := sorted(given.keys() & names):
        options = [f"--{name.replace('_', '-')}" for name in refused]
        raise ValueError(
            f"`{where}` has no use for some options. Received: "
            f"{', '.join(options)}. Leave them out."
        )


def _explain(model, path):
    from keras_transformer.inference.attention_plot import plot_attention

    chunks = chunks_of_lines(standard_input(), 4096)
    lines = [line for chunk in chunks for line in chunk]
    if len(lines) != 1 or not lines[0].strip():
        raise ValueError(
            f"`--explain` draws one line of text. Received: {len(lines)} lines."
        )
    found = model.explain(lines[0])
    write_line(found["translation"])
    plot_attention(
        found["source_pieces"],
        found["target_pieces"],
        found["attention"],
        path,
    )


def evaluate(given):
    from keras_transformer.data.corpus import read_lines
    from keras_transformer.inference import evaluation
    from keras_transformer.inference.text_lines import translate_lines

    tokenizer = given.get("tokenize", Recipe.bleu_tokenizer)
    evaluation.check_tokenizer(tokenizer)
    sources = read_lines(given["source"])
    references = read_lines(given["reference"])
    if len(sources) != len(references) or not sources:
        raise ValueError(
            "Source and reference must have the same number of lines. "
            f"Received: {len(sources)} in {given['source']!r}, "
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
        "search": model.metadata["search"] | _search(given),
    }
    print(json.dumps(result), flush=True)
    try:
        evaluation.remember(model.path, result)
    except OSError as error:
        warnings.warn(f"The result is not stored: {error}", stacklevel=2)


def _workers(batch_size):
    """Chooses the number of translation threads and caps TensorFlow's threads
    per operation: two threads that use one core each take two thirds of the
    time of one that uses both. To be called before a model is loaded, since
    TensorFlow makes its threads then."""
    import tensorflow as tf

    cores = os.cpu_count() or 1
    on_gpu = bool(tf.config.list_physical_devices("GPU"))
    workers = 1 if on_gpu else min(cores, batch_size // LEAST_SHARE)
    workers = max(workers, 1)
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(cores // workers))
    return workers


def _exported(path):
    from keras_transformer.export.saved_translator import SavedTranslator

    model = SavedTranslator(path)
    # TensorFlow lays out each matrix once, not at every product, which is wrong
    # only in processes that train. In float32 the layout depends on the number
    # of rows, and the one that was kept is the wrong one for other batches.
    if model.metadata["dtype"] == "bfloat16":
        os.environ.setdefault("TF_ONEDNN_ASSUME_FROZEN_WEIGHTS", "1")
    return model


def _function(model, given):
    search = _search(given)
    return model.searched_with(**search) if search else model.translate


COMMANDS = {
    function.__name__: function
    for function in (train, average, export, translate, evaluate)
}
