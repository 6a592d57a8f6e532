"""The command `keras-transformer`: train, export, translate, evaluate."""

import dataclasses
import json
import os
import sys

from keras_transformer import chatter
from keras_transformer.arguments import parser


def main(arguments=None) -> int:
    """Runs the command; an expected error is one line and exit status 1."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parser().parse_args(arguments)
    options.given = {a.split("=")[0] for a in arguments if a.startswith("--")}
    try:
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


def train(options):
    from keras_transformer import distribution, training

    if options.deterministic:
        import tensorflow as tf

        tf.config.experimental.enable_op_determinism()
    strategy = distribution.default_strategy()
    worker, _ = distribution.worker_of(strategy)
    run = _run(options, worker)
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

    workers = _workers(options)
    model = _exported(options.path)
    if options.explain:
        _explain(model, options.explain)
        return
    function = _function(model, options)
    shows = sys.stderr.isatty() and not sys.stdout.isatty()
    before = 0

    def progress(done):
        if shows:
            _show(f"{before + done:,} lines")

    # Some thousand lines at a time: enough to sort by length, and memory
    # stays bounded whatever comes.
    for lines in _chunks(sys.stdin.buffer, 4096):
        for line in translate_lines(
            function, lines, options.batch_size, progress, workers
        ):
            sys.stdout.write(line + "\n")
        sys.stdout.flush()
        before += len(lines)
    if shows:
        _show(f"{before:,} lines", end="\n")


def _show(text, end=""):
    """In the place of what was shown before."""
    print(f"\r{text}", end=end, file=sys.stderr, flush=True)


def _explain(model, path):
    from keras_transformer.plots import plot_attention

    lines = [line for some in _chunks(sys.stdin.buffer, 4096) for line in some]
    if len(lines) != 1 or not lines[0].strip():
        raise ValueError(
            f"`--explain` draws one line of text. Received: {len(lines)} lines."
        )
    found = model.explain(lines[0])
    sys.stdout.write(found["translation"] + "\n")
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
            _show(f"{done:,} of {len(sources):,} lines", end)

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
    evaluation.remember(model.path, result)


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


# Where a recipe's field has another name on the command line.
_OPTIONS = {
    "train_split": "train",
    "validation_split": "validation",
    "test_split": "test",
}


# Fields of the model's shape that have an option of their own.
_SHAPE = (
    "num_layers",
    "d_model",
    "num_heads",
    "d_ff",
    "dropout_rate",
    "attention_dropout_rate",
    "activation_dropout_rate",
    "norm_first",
    "initializer_scale",
)
# What is not part of the recipe of a run.
_NOT_KEPT = ("out", "steps", "resume", "deterministic")


def _run(options, worker):
    """The run to train: a new one, or with --resume the one there is."""
    from keras_transformer import run as runs

    if worker > 0:
        runs.wait_for(options.out)  # for the first worker to start it
    settings = options.given - {f"--{name}" for name in _NOT_KEPT}
    exists = os.path.exists(options.out) or not settings
    if worker > 0 or (options.resume and exists):
        run = runs.open_run(options.out)
        _check_agrees(options, run)
        return run
    overrides = {
        name: value
        for name in _SHAPE
        if (value := getattr(options, name)) is not None
    }
    return runs.start_run(
        options.out, options.preset, _recipe(options), **overrides
    )


def _recipe(options):
    from keras_transformer.run import Recipe

    values = {
        field.name: getattr(options, _OPTIONS.get(field.name, field.name))
        for field in dataclasses.fields(Recipe)
        if field.name != "shared_vocabulary"
    }
    return Recipe(**values, shared_vocabulary=not options.separate_vocabularies)


def _check_agrees(options, run):
    """A resumed run keeps its settings; those that are given must be its."""
    kept = dataclasses.asdict(run.recipe) | {
        **{name: getattr(run.config, name) for name in _SHAPE},
        "separate_vocabularies": not run.recipe.shared_vocabulary,
    }
    kept |= {option: kept[field] for field, option in _OPTIONS.items()}
    kept["preset"] = _preset_of(run.config, options)
    for option in sorted(options.given):
        name = option.strip("-").replace("-", "_")
        # "auto" asks for what the run has: it was resolved at its start.
        if name not in _NOT_KEPT and getattr(options, name) not in (
            kept[name],
            "auto",
        ):
            raise ValueError(
                f"A resumed run keeps its settings. Received: {option} "
                f"{getattr(options, name)}, the run has {kept[name]}. Leave it "
                "out, or start a new run."
            )


def _preset_of(config, options):
    """The preset that a shape is of but for dropout and the options given."""
    from keras_transformer.config import PRESETS

    shape = config.to_dict()
    own = {"dropout_rate", *(x for x in _SHAPE if getattr(options, x))}
    for name in sorted(PRESETS, key=lambda name: name != options.preset):
        preset = PRESETS[name]
        if all(shape[x] == preset[x] for x in preset.keys() - own):
            return name
    return "another shape"


def _chunks(file, size):
    """Lists of up to `size` lines; bytes, since input may be no UTF-8."""
    lines = []
    for line in file:
        lines.append(line.removesuffix(b"\n").removesuffix(b"\r"))
        if len(lines) == size:
            yield lines
            lines = []
    if lines:
        yield lines


COMMANDS = {
    function.__name__: function
    for function in (train, average, export, translate, evaluate)
}

if __name__ == "__main__":
    sys.exit(main())
