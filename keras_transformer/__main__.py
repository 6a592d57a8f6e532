"""The command `keras-transformer`: train, export, translate, evaluate."""

import contextlib
import json
import os
import signal
import sys
import warnings

from keras_transformer import chatter
from keras_transformer.arguments import BATCH_SIZE, parser
from keras_transformer.recipe import Recipe
from keras_transformer.standard_streams import (
    chunks_of_lines,
    show,
    standard_input,
    write_line,
)


def run() -> int:
    """Runs the command in a process of its own, which it prepares."""
    chatter.silence()
    # TensorFlow leaves it off on processors without AVX-512.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    return main()


def main(arguments=None) -> int:
    """Runs the command; an expected error is one line and exit status 1."""
    arguments = sys.argv[1:] if arguments is None else arguments
    given = vars(parser().parse_args(arguments))
    command = given.pop("command")
    try:
        if command in ("average", "export"):  # train checks itself
            _require_tensorflow()
        COMMANDS[command](given)
    except ImportError as error:
        if os.environ.get(chatter.DEBUG):
            raise
        extra = "ctranslate2" if error.name == "ctranslate2" else "text"
        message = (
            f"{error}. The command needs more than the layers do: install the "
            f"extra `{extra}`, as in the README."
        )
        print(f"keras-transformer: error: {message}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Whoever reads has read enough. Python's flush at the end of the
        # process must not fail again.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (ValueError, OSError, *_tensorflow_errors()) as error:
        if os.environ.get(chatter.DEBUG):
            raise
        message = " ".join(str(error).split())
        print(f"keras-transformer: error: {message}", file=sys.stderr)
        return 1
    except _interrupted() as error:
        print(
            f"keras-transformer: {error} Go on by the same command and "
            "--resume.",
            file=sys.stderr,
        )
        return 128 + error.signal
    except KeyboardInterrupt:
        print("keras-transformer: interrupted", file=sys.stderr)
        return 130
    return 0


def _tensorflow_errors():
    """TensorFlow's errors, if it has been imported at all."""
    tensorflow = sys.modules.get("tensorflow")
    return (tensorflow.errors.OpError,) if tensorflow else ()


def _interrupted():
    """What training raises after a signal, if it has been imported at all."""
    training = sys.modules.get("keras_transformer.training")
    return (training.TrainingInterrupted,) if training else ()


def _require_tensorflow():
    """Raises a `ValueError` where Keras has another backend."""
    import keras

    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise ValueError(
            "The command needs Keras on TensorFlow. Received: "
            f"KERAS_BACKEND={backend}. Set KERAS_BACKEND=tensorflow."
        )


def train(given):
    from keras_transformer import distribution, training
    from keras_transformer.run_options import run_of

    if "deterministic" in given:
        import tensorflow as tf

        tf.config.experimental.enable_op_determinism()
    strategy = distribution.default_strategy()
    worker, _ = distribution.worker_of(strategy)
    run = run_of(given, worker)
    training.train(run, given.get("steps"), strategy)
    if worker == 0:
        print(
            f"Trained {run.folder}. Next: keras-transformer export "
            f"{run.folder} saved_models/NAME/1"
        )


def average(given):
    from keras_transformer.averaging import choose_weights
    from keras_transformer.run import open_run

    choose_weights(open_run(given["folder"]), given.get("last"))


def export(given):
    from keras_transformer.run import open_run

    name = given.get("format", "saved_model")
    ours = {"beam_size", "alpha", "dtype"}
    foreign = ours if name == "ctranslate2" else {"quantization"}
    _refuse(given, foreign, f"--format {name}")
    if name == "ctranslate2":
        from keras_transformer.interop import ctranslate2

        path = ctranslate2.export(
            open_run(given["folder"]), given["path"], given.get("quantization")
        )
    else:
        from keras_transformer import processor, saved_model
        from keras_transformer.translator import SearchSettings

        settings = SearchSettings(**_search(given))
        dtype = processor.resolve_dtype(given.get("dtype", "auto"))
        path = saved_model.export(
            open_run(given["folder"]), given["path"], settings, dtype
        )
        print(f"The matrices are in {dtype}.")
    print(f"Exported {path}")


def translate(given):
    from keras_transformer.lines import translate_lines

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
    from keras_transformer.plots import plot_attention

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
    from keras_transformer import evaluation
    from keras_transformer.data.corpus import read_lines
    from keras_transformer.lines import translate_lines

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
        "model": model.about["signature"],
        "search": model.about["search"] | _search(given),
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
    from keras_transformer.saved_model import SavedTranslator

    model = SavedTranslator(path)
    # TensorFlow lays out each matrix once, not at every product, which is wrong
    # only in processes that train. In float32 the layout depends on the number
    # of rows, and the one that was kept is the wrong one for other batches.
    if model.about["dtype"] == "bfloat16":
        os.environ.setdefault("TF_ONEDNN_ASSUME_FROZEN_WEIGHTS", "1")
    return model


def _function(model, given):
    search = _search(given)
    return model.searched_with(**search) if search else model.translate


LEAST_SHARE = 16  # lines that are worth a thread


COMMANDS = {
    function.__name__: function
    for function in (train, average, export, translate, evaluate)
}

if __name__ == "__main__":
    sys.exit(run())
