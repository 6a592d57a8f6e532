"""Fixtures that several test files share: seeds, a corpus and a small run."""

import contextlib
import dataclasses
import gc
import os
import signal
import sys
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
    # Importing TensorFlow fails, as if it were not installed.
    sys.modules.update(tensorflow=None, tensorflow_text=None)

import keras
import pytest

from keras_transformer.hardware import aborts_in_half_precision

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    # Two logical devices can hold two replicas, like a machine with two GPUs.
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * 2,
    )
    # Each test process has a core of its own, see `make test`.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.random.set_seed(1706)
    # Keras makes the variables of an optimizer while TensorFlow traces the
    # first step, which it then has to trace twice.
    make_train_function = keras.Model.make_train_function

    def build_first(model, *args, **kwargs):
        if model.built:
            model.optimizer.build(model.trainable_variables)
        return make_train_function(model, *args, **kwargs)

    keras.Model.make_train_function = build_first


def optimize_graphs(value):
    name = "disable_meta_optimizer"
    tf.config.optimizer.set_experimental_options({name: not value})


def share_one_stack():
    """Gives all operations of TensorFlow's graphs the same Python stack.

    TensorFlow keeps the stack of each, for the messages of errors. To collect
    them took a seventh of the time of three files of tests.
    """
    from tensorflow.python.util import tf_stack

    stack = tf_stack.extract_stack()
    tf_stack.extract_stack = lambda *_, **__: stack


# Each of these files takes long. They start first, so that at the end no test
# process waits for another.
SLOWEST_FILES = (
    "test_training.py",
    "test_examples.py",
    "test_saved_model.py",
    "test_command.py",
    "test_blockwise.py",
    "test_lora.py",
    "test_beam.py",
    "test_training_loop.py",
    "test_shortlist.py",
    "test_windowed_attention.py",
)


def pytest_collection_finish():
    # The search for garbage need not look at what was imported, nor as often:
    # tracing a graph makes very many objects that live.
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    if keras.backend.backend() == "tensorflow":
        optimize_graphs(False)
        share_one_stack()


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.name not in SLOWEST_FILES)
    if keras.backend.backend() == "tensorflow" and aborts_in_half_precision():
        skip = pytest.mark.skip(
            reason="half precision ends the process under ONEDNN_MAX_CPU_ISA"
        )
        for item in items:
            if "float16" in item.name:  # such tests multiply in it
                item.add_marker(skip)


def pytest_configure():
    """Has programs end by these signals, which a background job of a shell, or
    `nohup`, ignores."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def optimized_graphs():
    """Turns on TensorFlow's graph optimizer: for what is exported and served.

    Other graphs are so small that to optimize them takes longer than to run
    them.
    """
    optimize_graphs(True)
    yield
    optimize_graphs(False)


@contextlib.contextmanager
def all_of_one_bleu():
    """Gives all weights the same BLEU: tracing the search takes seconds."""
    from keras_transformer.training import callbacks

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            callbacks, "translate_lines", lambda _, lines, **__: list(lines)
        )
        result = {"bleu": 1.0, "chrf": 1.0, "sentences": 1}
        result |= {"bleu_signature": "none", "chrf_signature": "none"}
        patch.setattr(callbacks.evaluation, "score", lambda *_: result)
        yield


@pytest.fixture
def unscored():
    """For tests of training in which the BLEU does not matter."""
    with all_of_one_bleu():
        yield


def keep_kernels():
    """Returns a context in which Keras does not seed TensorFlow.

    TensorFlow drops all its kernels when it is seeded. To make them again in
    each test takes a fifth of the time of all tests.
    """
    if keras.backend.backend() == "tensorflow":
        return mock.patch.object(tf.random, "set_seed")
    return contextlib.nullcontext()


@pytest.fixture(autouse=True)
def seeded():
    """Seeds each test and resets the dtype policy after it."""
    with keep_kernels():
        keras.utils.set_random_seed(1706)
    yield
    keras.config.set_dtype_policy("float32")


@pytest.fixture(autouse=True)
def restored_environment():
    """Undoes the changes that a test makes to the environment variables."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Returns a folder of parallel files.

    There are 700 training pairs, gzipped, and 61 plain pairs each for
    validation and test.
    """
    import gzip

    from keras_transformer.data.builtin.phrases import pairs_of_split

    folder = tmp_path_factory.mktemp("corpus")
    sizes = {"train": 700, "validation": 61, "test": 61}
    for split, size in sizes.items():
        pairs = list(pairs_of_split(split, size))
        for side, language in enumerate(("en", "de")):
            text = "".join(pair[side] + "\n" for pair in pairs).encode()
            if split == "train":
                path = folder / f"{split}.{language}.gz"
                path.write_bytes(gzip.compress(text))
            else:
                (folder / f"{split}.{language}").write_bytes(text)
    return folder


@pytest.fixture(scope="session")
def recipe(corpus):
    """Returns settings for runs that take seconds."""
    from keras_transformer.training.recipe import Recipe

    return Recipe(
        corpus=str(corpus),
        vocab_size=400,
        tokens_per_batch=300,
        warmup_steps=20,
        validate_every=4,
        keep_checkpoints=3,
        dtype_policy="float32",
    )


def folder_bytes(folder):
    """Returns the content of all files of a folder, by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


SMALL = {"num_layers": 1, "d_model": 22, "num_heads": 2, "d_ff": 31}


@pytest.fixture(scope="session")
def run(recipe, tmp_path_factory):
    """Returns a run after eight steps: complete, but it translates badly."""
    from keras_transformer.training.new_run import start_run
    from keras_transformer.training.train_run import train

    folder = tmp_path_factory.mktemp("runs") / "small"
    recipe = dataclasses.replace(recipe, test_split="test")
    run = start_run(folder, "tiny", recipe, **SMALL | {"num_layers": 2})
    with all_of_one_bleu():
        train(run, 8, verbose=0)
    return run


def translator_of(run, settings=None, decoding=None):
    """Returns a translator in Python, with the weights of a run."""
    from keras_transformer.inference import Translator
    from keras_transformer.training import load_model

    tokenizers = run.source_tokenizer, run.target_tokenizer
    return Translator(load_model(run), *tokenizers, settings, decoding)


@pytest.fixture(scope="session")
def exported(run, tmp_path_factory):
    """Returns the folder of the exported run."""
    from keras_transformer.export import saved_model

    path = tmp_path_factory.mktemp("saved_models") / "small" / "1"
    return saved_model.export(run, path, dtype="float32")
