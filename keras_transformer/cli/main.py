"""The entry point of the command: its process, its errors, its exit status."""

import contextlib
import os
import signal
import sys

from keras_transformer.cli import quiet_stderr
from keras_transformer.cli.arguments import parser
from keras_transformer.cli.commands import COMMANDS


def run() -> int:
    """Runs the command in a process of its own, which it prepares."""
    quiet_stderr.silence()
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
        if os.environ.get(quiet_stderr.DEBUG):
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
        if os.environ.get(quiet_stderr.DEBUG):
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
    loop = sys.modules.get("keras_transformer.training.loop")
    return (loop.TrainingInterrupted,) if loop else ()


def _require_tensorflow():
    """Raises a `ValueError` where Keras has another backend."""
    import keras

    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise ValueError(
            "The command needs Keras on TensorFlow. Received: "
            f"KERAS_BACKEND={backend}. Set KERAS_BACKEND=tensorflow."
        )
