"""Asks a server for translations of a certain kind, by REST and by gRPC.

    keras-transformer serve saved_models/demo
    python examples/control.py [--http 127.0.0.1:8501] [--grpc 127.0.0.1:8500]
        [--model demo]

The model must have been exported with --control, as that of `make demo` was.
Prints a table: what was asked for, the best translation, and which terms were
not met.

Promise: ten rows within seconds, the same by both protocols.
"""

import argparse
import json
import os
import urllib.request

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import grpc
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

TEXT = "My sister bought a beautiful lamp for €1,249.50."
# An input of strings has one for each text; terms are lines of a string.
STRINGS = {"text": TEXT, "target_prefix": "", "terms": "", "avoid": ""}
# REST needs all inputs; a request by gRPC may leave these out.
NUMBERS = {
    "beam_size": 4,
    "alpha": 0.6,
    "max_length": 60,
    "min_length": 0,
    "no_repeat_ngram_size": 0,
    "repetition_penalty": 1.0,
}
MUSEUM = "On Monday there were forty-seven visitors in the museum."
ASKED = [
    {},
    {"target_prefix": "Eine schöne Lampe"},
    {"terms": "alte"},
    {"terms": "alte\nUhr"},
    {"avoid": "Lampe"},
    {"terms": "Uhr", "avoid": "Uhr"},
    {"min_length": 40},
    {"text": MUSEUM},
    {"text": MUSEUM, "target_prefix": "Im Museum"},
    {"text": "Room 77 is on the third floor.", "no_repeat_ngram_size": 1},
]


def by_rest(address, model, strings, numbers):
    """Returns the outputs of a request in columns, as lists."""
    columns = {name: [value] for name, value in strings.items()}
    body = {"signature_name": "control", "inputs": columns | numbers}
    url = f"http://{address}/v1/models/{model}:predict"
    request = urllib.request.Request(url, json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["outputs"]


def by_grpc(stub, model, strings, numbers):
    """Returns the outputs of a request, as arrays."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = "control"
    inputs = {name: [value] for name, value in strings.items()}
    inputs |= numbers
    for name, value in inputs.items():
        is_float = name in ("alpha", "repetition_penalty")
        dtype = tf.float32 if is_float else tf.int32
        dtype = tf.string if name in strings else dtype
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value, dtype))
    outputs = stub.Predict(request, timeout=60).outputs
    return {name: tf.make_ndarray(x) for name, x in outputs.items()}


def main(http, grpc_address, model):
    """Prints the table; returns its rows."""
    rows = []
    with grpc.insecure_channel(grpc_address) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        for asked in ASKED:
            strings = STRINGS | {n: x for n, x in asked.items() if n in STRINGS}
            numbers = NUMBERS | {n: asked[n] for n in NUMBERS if n in asked}
            found = by_rest(http, model, strings, numbers)
            same = by_grpc(stub, model, strings, numbers)
            answer = found["translation"][0][0], found["unmet"][0][0]
            others = (same[name][0, 0] for name in ("translation", "unmet"))
            if answer != tuple(x.decode() for x in others):
                raise ValueError(f"REST and gRPC differ. Received: {asked}")
            rows.append((asked, *answer))
    print("| asked for | translation | unmet |\n|---|---|---|")
    for asked, translation, unmet in rows:
        asked = json.dumps(asked, ensure_ascii=False)
        unmet = unmet.replace("\n", ", ")
        print(f"| `{asked}` | {translation} | {unmet} |")
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--http", default="127.0.0.1:8501")
    parser.add_argument("--grpc", default="127.0.0.1:8500")
    parser.add_argument("--model", default="demo")
    given = parser.parse_args()
    main(given.http, given.grpc, given.model)
