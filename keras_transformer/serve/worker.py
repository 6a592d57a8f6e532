"""The process of one version of a model: loads the export and computes.

The server starts it as `python -m keras_transformer.serve.worker`, with a
socket. Threads compute side by side, each operation on its share of the cores.
"""

import os
import pathlib
import queue
import signal
import socket
import sys
import threading
from typing import Any

import numpy as np

from keras_transformer.serve import frames

WARMUP = "assets.extra/tf_serving_warmup_requests"


def main(descriptor: int, path: str, threads: int) -> None:
    """Loads an export, warms it up, and answers until the socket ends."""
    # Ctrl-C reaches every process of a terminal; the server decides when a
    # model may end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=descriptor)
    lock = threading.Lock()

    def send(message):
        with lock:
            connection.sendall(frames.packed(message))

    try:
        signatures = _load(path)
        _warm_up(signatures, path)
    except Exception as error:
        send(("failed", f"{error}"))
        return
    send(("ready", None))
    jobs: queue.SimpleQueue = queue.SimpleQueue()
    for _ in range(threads):
        threading.Thread(
            target=_work, args=(jobs, signatures, send), daemon=True
        ).start()
    while (message := frames.receive_from(connection)) is not None:
        jobs.put(message)
    os._exit(0)  # threads may still compute what nobody waits for


def _load(path):
    """Returns the signatures of an export, by name."""
    from keras_transformer.export.saved_model import SUMS
    from keras_transformer.export.saved_translator import SavedTranslator

    if not pathlib.Path(path, SUMS).exists():
        raise ValueError(
            f"An export must have the file {SUMS}. Received: {path!r}, which "
            "has none: it is still being copied, or was written by an earlier "
            "version. Export the run again."
        )
    return SavedTranslator(path).loaded.signatures


def _work(jobs, signatures, send):
    """Computes jobs, one at a time."""
    while True:
        number, name, inputs = jobs.get()
        try:
            outputs = compute(signatures[name], inputs)
        except Exception as error:
            message = getattr(error, "message", None) or f"{error}"
            send((number, "error", (_code(error), message)))
        else:
            send((number, "outputs", outputs))


def compute(signature: Any, inputs: dict[str, np.ndarray]) -> dict:
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
        compute(signatures[name], inputs)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
