"""Files that an export has for TensorFlow Serving, and the check that a server
knows its operations.

The files are requests to warm up with, a proposal for batching, and a page that
says how to call the model.
"""

import importlib.resources
import os
import pathlib
import re

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import (
    model_pb2,
    predict_pb2,
    prediction_log_pb2,
)

BATCHING = "batching_parameters.txt"
# `num_batch_threads` should be the number of the server's cores.
BATCHING_PARAMETERS = """max_batch_size { value: 64 }
enable_large_batch_splitting { value: true }
batch_timeout_micros { value: 5000 }
num_batch_threads { value: 4 }
max_enqueued_batches { value: 1000 }
"""


def check_operations(path: str | os.PathLike):
    """Checks that servers know all of a SavedModel: TensorFlow Serving 2.19 and
    later, by the list `serving_ops.txt`.

    Raises:
        ValueError: names the operation, or the attribute of one, that is not
            in the list.
    """
    known = _known_operations()
    for node in _nodes(pathlib.Path(path, "saved_model.pb").read_bytes()):
        names = {name for name in node.attr if not name.startswith("_")}
        if node.op not in known:
            problem = f"the operation {node.op!r}"
        elif names - known[node.op]:
            name = min(names - known[node.op])
            problem = f"attribute {name!r} of the operation {node.op!r}"
        else:
            continue
        raise ValueError(
            f"TensorFlow Serving does not know {problem}. Received: node "
            f"{node.name!r}. Compute the same by operations that are in "
            "serving_ops.txt."
        )


def _known_operations():
    """Returns the attributes of each operation, by its name."""
    lines = _package_file("serving_ops.txt").splitlines()
    entries = [line.split() for line in lines if not line.startswith("#")]
    return {name: set(attributes) for name, *attributes in entries}


def _package_file(name):
    return (
        importlib.resources.files("keras_transformer.export") / name
    ).read_text("utf-8")


def _nodes(data):
    message = saved_model_pb2.SavedModel.FromString(data)
    for graph in message.meta_graphs:
        yield from graph.graph_def.node
        for function in graph.graph_def.library.function:
            yield from function.node_def


# How the page of an export writes the formulas of the length penalty.
PENALTIES = {"gnmt": "((5 + pieces) / 6)^α", "power": "pieces^α"}


def write_extras(
    path: str | os.PathLike,
    name: str,
    version: str,
    metadata: dict,
    lines: list[str],
):
    """Writes what goes beside the model into an export's folder.

    Args:
        path: the folder of the export.
        name, version: that it will be served by.
        metadata: what `keras_transformer.json` holds.
        lines: to warm up with, the first one short.
    """
    extra = pathlib.Path(path, "assets.extra")
    extra.mkdir()
    _write_warmup(extra / "tf_serving_warmup_requests", name, lines)
    (extra / BATCHING).write_text(BATCHING_PARAMETERS)
    language = ""
    if tags := ", ".join(metadata["tags"]):
        language = f", `target_language` string[]: {tags}, or that of the text"
    text = _package_file("export_readme.md").format(
        language=language,
        name=name,
        version=version,
        signature=metadata["signature"],
        beam_size=metadata["search"]["beam_size"],
        max_beam_size=metadata["search"]["max_beam_size"],
        alpha=metadata["search"]["alpha"],
        penalty=PENALTIES[metadata["search"]["length_penalty"]],
        most=metadata["max_pieces"],
        dtype=metadata["dtype"],
        batching=BATCHING,
    )
    if not metadata["control"]:
        text = re.sub(r"\| `control` .*\n", "", text)
    pathlib.Path(path, "README.md").write_text(text, "utf-8")


def _write_warmup(path, name, lines):
    """Writes the requests that a server makes before it says that it is ready.

    They are a single line, a batch with an empty one, and every signature that
    it can batch.
    """
    batch = [*lines, ""]
    requests = [
        ("serving_default", {"text": lines[:1]}),
        ("serving_default", {"text": batch}),
        ("score", {"text": batch, "translation": batch}),
        ("explain", {"text": batch}),
    ]
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, inputs in requests:
            request = predict_pb2.PredictRequest(
                model_spec=model_pb2.ModelSpec(
                    name=name, signature_name=signature
                ),
                inputs={
                    key: tf.make_tensor_proto(value, tf.string)
                    for key, value in inputs.items()
                },
            )
            log = prediction_log_pb2.PredictionLog(
                predict_log=prediction_log_pb2.PredictLog(request=request)
            )
            writer.write(log.SerializeToString())
