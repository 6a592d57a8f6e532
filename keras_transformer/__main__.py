"""The command `keras-transformer`: train, export, translate, evaluate."""

import contextlib
import json
import os
import signal
import sys
import warnings

from keras_transformer import chatter
from keras_transformer.arguments import parser
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
    options = parser().parse_args(arguments)
    options.given = {a.split("=")[0] for a in arguments if a.startswith("--")}
    try:
        if options.command in ("average", "export"):  # train checks itself
            _require_tensorflow()
        COMMANDS[options.command](options)
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


def train(options):
    from keras_transformer import distribution, training
    from keras_transformer.run_options import run_of

    if options.deterministic:
        import tensorflow as tf

        tf.config.experimental.enable_op_determinism()
    strategy = distribution.default_strategy()
    worker, _ = distribution.worker_of(strategy)
    run = run_of(options, worker)
    training.train(
        run, options.steps if "--steps" in options.given else None, strategy
    )
    if worker == 0:
        print(
            f"Trained {options.out}. Next: keras-transformer export "
            f"{options.out} saved_models/NAME/1"
        )


def average(options):
    from keras_transformer.averaging import choose_weights
    from keras_transformer.run import open_run

    choose_weights(open_run(options.folder), options.last)


def export(options):
    from keras_transformer.run import open_run

    ours = {"--beam-size", "--alpha", "--dtype"}
    foreign = ours if options.format == "ctranslate2" else {"--quantization"}
    _refuse(options, foreign, f"--format {options.format}")
    if options.format == "ctranslate2":
        from keras_transformer.interop import ctranslate2

        path = ctranslate2.export(
            open_run(options.folder), options.path, options.quantization
        )
    else:
        from keras_transformer import processor, saved_model
        from keras_transformer.translator import SearchSettings

        settings = SearchSettings(options.beam_size, options.alpha)
        dtype = processor.resolve_dtype(options.dtype)
        path = saved_model.export(
            open_run(options.folder), options.path, settings, dtype
        )
        print(f"The matrices are in {dtype}.")
    print(f"Exported {path}")


def translate(options):
    from keras_transformer.lines import translate_lines

    if options.explain:
        ours = {"--beam-size", "--alpha", "--batch-size"}
        _refuse(options, ours, "--explain")
        _explain(_exported(options.path), options.explain)
        return
    workers = _workers(options)
    model = _exported(options.path)
    function = _function(model, options)
    shows = sys.stderr.isatty() and not sys.stdout.isatty()
    before = 0

    def progress(done):
        if shows:
            show(f"{before + done:,} lines")

    # Enough lines to sort by length, and memory stays bounded.
    for lines in chunks_of_lines(standard_input(), 4096):
        for line in translate_lines(
            function, lines, options.batch_size, progress, workers
        ):
            write_line(line)
        sys.stdout.flush()
        before += len(lines)
    if shows:
        show(f"{before:,} lines", end="\n")


def _refuse(options, names, where):
    """Raises a `ValueError` if an option was given that does not apply."""
    if refused := sorted(options.given & names):
        raise ValueError(
            f"`{where}` has no use for some options. Received: "
            f"{', '.join(refused)}. Leave them out."
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


def evaluate(options):
    from keras_transformer import evaluation
    from keras_transformer.data.corpus import read_lines
    from keras_transformer.lines import translate_lines

    evaluation.check_tokenizer(options.tokenize)
    sources = read_lines(options.source)
    references = read_lines(options.reference)
    if len(sources) != len(references) or not sources:
        raise ValueError(
            "Source and reference must have the same number of lines. "
            f"Received: {len(sources)} in {options.source!r}, "
            f"{len(references)} in {options.reference!r}."
        )
    workers = _workers(options)
    model = _exported(options.path)
    progress = None
    if sys.stderr.isatty():

        def progress(done):
            end = "\n" if done == len(sources) else ""
            show(f"{done:,} of {len(sources):,} lines", end)

    hypotheses = translate_lines(
        _function(model, options),
        sources,
        options.batch_size,
        progress,
        workers,
    )
    search = dict(model.about["search"])
    for name in ("beam_size", "alpha"):
        if getattr(options, name) is not None:
            search[name] = getattr(options, name)
    result = {
        **evaluation.score(hypotheses, references, options.tokenize),
        "source": os.path.basename(options.source),
        "reference": os.path.basename(options.reference),
        "model": model.about["signature"],
        "search": search,
    }
    print(json.dumps(result), flush=True)
    try:
        evaluation.remember(model.path, result)
    except OSError as error:
        warnings.warn(f"The result is not stored: {error}", stacklevel=2)


def _workers(options):
    """How many threads translate, and sets that the operations of each have as
    many threads as there are cores for it: two that have one each take two
    thirds of the time of one that has two. To be called before a model is
    loaded, since TensorFlow makes its threads then."""
    import tensorflow as tf

    cores = os.cpu_count() or 1
    on_gpu = bool(tf.config.list_physical_devices("GPU"))
    workers = 1 if on_gpu else min(cores, options.batch_size // LEAST_SHARE)
    workers = max(workers, 1)
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(cores // workers))
    return workers


def _exported(path):
    from keras_transformer.saved_model import SavedTranslator

    model = SavedTranslator(path)
    # Matrices are laid out once, not at every product: for processes that do
    # not train. In float32 the layout depends on the number of rows, and the
    # one that was kept is the wrong one for other batches.
    if model.about["dtype"] == "bfloat16":
        os.environ.setdefault("TF_ONEDNN_ASSUME_FROZEN_WEIGHTS", "1")
    return model


def _function(model, options):
    if options.beam_size is None and options.alpha is None:
        return model.translate
    return model.searched_with(options.beam_size, options.alpha)


LEAST_SHARE = 16  # lines that are worth a thread


COMMANDS = {
    function.__name__: function
    for function in (train, average, export, translate, evaluate)
}

if __name__ == "__main__":
    sys.exit(run())
