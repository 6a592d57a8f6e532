"""The process of one version of a model: loads the export and computes.

The server starts it as `python -m keras_transformer.serve.worker`, with a
socket. Threads compute side by side, each operation on its share of the cores.
"""

import functools
import os
import pathlib
import pkgutil
import queue
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from keras_transformer.serve import ipc
from keras_transformer.serve.errors import ServingError
from keras_transformer.stop_signals import stop_signals

# Computes a signature of arrays by name; strings are arrays of `bytes` objects.
Function = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]
WARMUP = "assets.extra/tf_serving_warmup_requests"
# The call in Python surrounds the errors of a graph with these.
_FROM_PYTHON = re.compile(
    r"\AGraph execution error:\n\n"
    r"(?:Detected at node .*\n<stack traces unavailable>\n)*"
    r"| \[Op:\w+\]\Z"
)


def main(
    descriptor: int, path: str, threads: int, loader: str | None = None
) -> None:
    """Loads an export, warms it up, and answers until the socket ends.

    Args:
        descriptor: of the socket.
        path: folder of the export, `NAME/VERSION`.
        threads: number of threads that compute.
        loader: "module:name" of the function to load with. Defaults to `None`:
            `load`.
    """
    # Ctrl-C and a hang-up reach every process of a terminal, SIGTERM often all
    # processes of a service; the server decides when a model may end.
    for number in stop_signals():
        signal.signal(number, signal.SIG_IGN)
    connection = socket.socket(fileno=descriptor)
    lock = threading.Lock()

    def send(message):
        with lock:
            connection.sendall(ipc.packed(message))

    load_functions = pkgutil.resolve_name(loader) if loader else load
    try:
        functions = load_functions(path, threads)
    except Exception as error:
        send(("failed", f"{error}"))
        return
    send(("ready", None))
    jobs: queue.SimpleQueue = queue.SimpleQueue()
    for _ in range(threads):
        threading.Thread(
            target=_work, args=(jobs, functions, send), daemon=True
        ).start()
    while (message := ipc.receive_from(connection)) is not None:
        jobs.put(message)
    os._exit(0)  # threads may still compute what nobody waits for


def load(path: str, threads: int) -> dict[str, Function]:
    """Loads a SavedModel and warms it up.

    Args:
        path: folder of the export, `NAME/VERSION`.
        threads: number of threads that will compute. TensorFlow reads its own
            number from the environment.

    Returns:
        A function for each signature, by name.

    Raises:
        ValueError: if the export is incomplete or damaged.
    """
    import tensorflow as tf

    from keras_transformer.export.saved_translator import SavedTranslator

    translator = SavedTranslator(path)
    functions = functions_of(translator.loaded.signatures)
    _warm_up(functions, path)
    # Exports have no request to warm up `n_best` with, because TensorFlow
    # Serving refuses it where it batches.
    translator.searched_with()(tf.constant(["a"]))
    return functions


def functions_of(signatures: Mapping[str, Any]) -> dict[str, Function]:
    """Returns functions of arrays for those of TensorFlow."""
    return {
        name: functools.partial(_compute, signature)
        for name, signature in signatures.items()
    }


def _work(jobs, functions, send):
    """Computes jobs, one at a time."""
    while True:
        number, name, inputs = jobs.get()
        send((number, *answer(functions, name, inputs)))


def answer(
    functions: Mapping[str, Function],
    name: str,
    inputs: Mapping[str, np.ndarray],
) -> tuple[str, Any]:
    """Computes a signature.

    Args:
        functions: what `load` returns.
        name: name of the signature.
        inputs: arrays by name; strings are arrays of `bytes` objects.

    Returns:
        "outputs" and a dictionary of arrays, or "error" and a pair of the name
        of a gRPC code and a text.
    """
    try:
        return "outputs", functions[name](inputs)
    except ServingError as error:
        return "error", (error.code, f"{error}")
    except Exception as error:
        message = getattr(error, "message", None) or f"{error}"
        return "error", (_code(error), _FROM_PYTHON.sub("", message))


def _compute(signature, inputs):
    """Calls a signature with arrays and returns arrays."""
    import tensorflow as tf

    dtypes = {
        name: spec.dtype
        for name, spec in signature.structured_input_signature[1].items()
    }
    tensors = {
        name: tf.constant(value, dtypes[name]) for name, value in inputs.items()
    }
    return {name: value.numpy() for name, value in signature(**tensors).items()}


def _code(error):
    """Returns the name of the gRPC code of an error of TensorFlow."""
    import tensorflow as tf

    if isinstance(error, tf.errors.OpError):
        return {
            tf.errors.INVALID_ARGUMENT: "INVALID_ARGUMENT",
            tf.errors.RESOURCE_EXHAUSTED: "RESOURCE_EXHAUSTED",
        }.get(error.error_code, "INTERNAL")
    return "INTERNAL"


def _warm_up(functions, path):
    """Makes the requests that the export has to warm up with."""
    import tensorflow as tf
    from tensorflow_serving.apis import prediction_log_pb2

    file = pathlib.Path(path, WARMUP)
    if not file.exists():
        return
    for record in tf.data.TFRecordDataset(str(file)).as_numpy_iterator():
        log = prediction_log_pb2.PredictionLog.FromString(record)
        request = log.predict_log.request
        name = request.model_spec.signature_name
        inputs = {
            key: tf.make_ndarray(value) for key, value in request.inputs.items()
        }
        functions[name](inputs)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
