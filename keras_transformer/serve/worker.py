"""The process of one version of a model: loads the export and computes.

The server starts it as `python -m keras_transformer.serve.worker`, with a
socket. Threads compute side by side, each operation on its share of the cores.
"""

import os
import pathlib
import queue
import re
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_transformer.serve import ipc
from keras_transformer.stop_signals import stop_signals

WARMUP = "assets.extra/tf_serving_warmup_requests"
# The call in Python surrounds the errors of a graph with these.
_FROM_PYTHON = re.compile(
    r"\AGraph execution error:\n\n"
    r"(?:Detected at node .*\n<stack traces unavailable>\n)*"
    r"| \[Op:\w+\]\Z"
)


def main(descriptor: int, path: str, threads: int) -> None:
    """Loads an export, warms it up, and answers until the socket ends."""
    # Ctrl-C and a hang-up reach every process of a terminal, SIGTERM often all
    # processes of a service; the server decides when a model may end.
    for number in stop_signals():
        signal.signal(number, signal.SIG_IGN)
    connection = socket.socket(fileno=descriptor)
    lock = threading.Lock()

    def send(message):
        with lock:
            connection.sendall(ipc.packed(message))

    try:
        signatures = load(path)
    except Exception as error:
        send(("failed", f"{error}"))
        return
    send(("ready", None))
    jobs: queue.SimpleQueue = queue.SimpleQueue()
    for _ in range(threads):
        threading.Thread(
            target=_work, args=(jobs, signatures, send), daemon=True
        ).start()
    while (message := ipc.receive_from(connection)) is not None:
        jobs.put(message)
    os._exit(0)  # threads may still compute what nobody waits for


def load(path: str) -> dict[str, Any]:
    """Loads an export and warms it up.

    Returns:
        The signatures, by name.

    Raises:
        ValueError: if the export is incomplete or damaged.
    """
    import tensorflow as tf

    from keras_transformer.export.saved_translator import SavedTranslator

    translator = SavedTranslator(path)
    signatures = translator.loaded.signatures
    _warm_up(signatures, path)
    # Exports have no request to warm up `n_best` with, because TensorFlow
    # Serving refuses it where it batches.
    translator.searched_with()(tf.constant(["a"]))
    return signatures


def _work(jobs, signatures, send):
    """Computes jobs, one at a time."""
    while True:
        number, name, inputs = jobs.get()
        send((number, *answer(signatures, name, inputs)))


def answer(
    signatures: Mapping[str, Any], name: str, inputs: Mapping[str, np.ndarray]
) -> tuple[str, Any]:
    """Computes a signature.

    Args:
        signatures: the signatures of `load`.
        name: name of the signature.
        inputs: arrays by name; strings are arrays of `bytes` objects.

    Returns:
        "outputs" and a dictionary of arrays, or "error" and a pair of the name
        of a gRPC code and a text.
    """
    try:
        return "outputs", _compute(signatures[name], inputs)
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


def _warm_up(signatures, path):
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
        _compute(signatures[name], inputs)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
