"""The entry point of the command: its process, its errors, its exit status."""

import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Sequence
from importlib.util import find_spec

from keras_transformer.cli import silence
from keras_transformer.cli.arguments import command_line
from keras_transformer.cli.command_line import integrated
from keras_transformer.stop_signals import stop_signals

# The extra that brings a package; integrations have their own, and all other
# packages are in `text`.
EXTRAS = {
    "prometheus_client": "serve",
    "sentencex": "serve",
    "uvicorn": "serve",
}
ON_JAX = ("train", "prepare", "average")  # they run there, too
OTHER_BACKEND = (
    "This command needs Keras on TensorFlow; `train`, `prepare` and `average` "
    "also run on JAX. Received: KERAS_BACKEND={}. Set KERAS_BACKEND=tensorflow."
)


def run() -> int:
    """Prepares the process, runs the command and returns its exit status."""
    if sys.stderr is None:  # closed; errors would go to standard output
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if isinstance(sys.stdout, io.TextIOWrapper):  # like standard error
        sys.stdout.reconfigure(errors="backslashreplace")
    silence.silence()
    # TensorFlow disables oneDNN on processors without AVX-512.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    for number in stop_signals():
        if number != signal.SIGINT:  # Python's own handler raises an error
            signal.signal(number, _end)
    try:
        status = main()
    except SystemExit as error:  # the parser and `_end` raise it
        status = int(error.code or 0)
    _leave_threads(status)
    return status


def _end(number, frame):
    """Ends the process as Ctrl-C does, so that temporary files are removed."""
    sys.exit(128 + number)


def _leave_threads(status):
    """Ends the process if other threads would keep it for ever.

    Apache Beam leaves such threads when a worker of DirectRunner was killed.
    """
    threads = set(threading.enumerate()) - {threading.current_thread()}
    if any(not thread.daemon for thread in threads):
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        os._exit(status)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status.

    An expected error is printed as one line, with exit status 1.

    Args:
        arguments: arguments of the command. Defaults to those of the process.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    line = command_line()
    given = line.parse(arguments)
    name = given.pop("command")
    command = line.commands[name]
    try:
        if command.needs_keras:
            _require_tensorflow()
        command.function(given)
    except ImportError as error:
        if os.environ.get(silence.DEBUG):
            raise
        print(
            f"keras-transformer: error: {_missing(error, name, command)}",
            file=sys.stderr,
        )
        return 1
    except BrokenPipeError:
        # The reader of the pipe has closed it. Python's flush at the end of
        # the process must not fail again.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (ValueError, OSError, *_tensorflow_errors()) as error:
        if os.environ.get(silence.DEBUG):
            raise
        print(f"keras-transformer: error: {_line(error)}", file=sys.stderr)
        return 1
    except _interrupted() as error:
        print(
            f"keras-transformer: {error} To continue, run the same command "
            "with --resume.",
            file=sys.stderr,
        )
        return 128 + error.signal
    except KeyboardInterrupt:
        print("keras-transformer: interrupted", file=sys.stderr)
        return 130
    return 0


def _line(error):
    """Returns an error as one line that a terminal only shows, whatever the
    files hold that it quotes."""
    text = " ".join(str(error).split())
    return "".join(
        x if x.isprintable() else x.encode("unicode_escape").decode()
        for x in text
    )


def _missing(error, name, command):
    """Returns what to do about a package that cannot be imported."""
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    if backend == "jax" and error.name == backend:
        return f"{error}. Training on JAX needs it: pip install '.[jax]'."
    if backend != "tensorflow" and error.name in (None, backend):
        return OTHER_BACKEND.format(backend)
    instead = ""
    if error.name == backend and name in ON_JAX and find_spec("jax"):
        instead = " Or set KERAS_BACKEND=jax: JAX is installed."
    extra_of = EXTRAS | integrated("EXTRAS")
    extras = {"text", extra_of.get(error.name, "text"), command.extra or "text"}
    return (
        f"{str(error).rstrip('.')}. `{name}` needs more packages than the "
        "layers: in a clone of the repository, pip install "
        f"'.[{','.join(sorted(extras))}]'.{instead}"
    )


def _tensorflow_errors():
    """Returns TensorFlow's error classes, if TensorFlow is imported."""
    tensorflow = sys.modules.get("tensorflow")
    return (tensorflow.errors.OpError,) if tensorflow else ()


def _interrupted():
    """Returns `TrainingInterrupted`, if its module is imported."""
    loop = sys.modules.get("keras_transformer.training.loop")
    return (loop.TrainingInterrupted,) if loop else ()


def _require_tensorflow():
    """Raises a `ValueError` if the backend of Keras is not TensorFlow."""
    import keras

    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise ValueError(OTHER_BACKEND.format(backend))
