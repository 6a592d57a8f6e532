"""Models in memory, for tests of the server's protocols."""

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

from keras_transformer.serve.errors import no_label, not_served
from keras_transformer.serve.model_registry import VersionStatus

PREDICT = "tensorflow/serving/predict"


def signature(inputs, outputs, defaults=(), method=PREDICT):
    """Returns a `SignatureDef` of dtypes and shapes by name."""
    message = meta_graph_pb2.SignatureDef(method_name=method)
    for infos, specs, kind in [
        (message.inputs, inputs, "input"),
        (message.outputs, outputs, "output"),
    ]:
        for name, (dtype, shape) in specs.items():
            infos[name].name = f"{kind}_{name}:0"
            infos[name].dtype = tf.as_dtype(dtype).as_datatype_enum
            infos[name].tensor_shape.CopyFrom(tf.TensorShape(shape).as_proto())
    for name, value in dict(defaults).items():
        message.defaults[name].CopyFrom(tf.make_tensor_proto(value))
    return message


def _shapes(**specs):
    return {name: tuple(spec) for name, spec in specs.items()}


TEXT = _shapes(text=("string", [None]))
LINES = _shapes(
    translation=("string", [None]),
    score=("float32", [None]),
    truncated=("bool", [None]),
    incomplete=("bool", [None]),
)
# As exports of this package have them.
DEMO = {
    "serving_default": signature(TEXT, LINES),
    "n_best": signature(
        TEXT
        | _shapes(
            beam_size=("int32", []),
            alpha=("float32", []),
            max_length=("int32", []),
        ),
        _shapes(
            translation=("string", [None, None]),
            score=("float32", [None, None]),
            truncated=("bool", [None]),
            incomplete=("bool", [None, None]),
        ),
        {"beam_size": 4, "alpha": np.float32(0.6), "max_length": 300},
    ),
    "score": signature(
        _shapes(text=("string", [None]), translation=("string", [None])),
        _shapes(
            score=("float32", [None]),
            pieces=("int32", [None]),
            alignment=("string", [None]),
            truncated=("bool", [None]),
        ),
    ),
    "explain": signature(
        TEXT,
        LINES
        | _shapes(
            source_pieces=("string", [None, None]),
            target_pieces=("string", [None, None]),
            log_probs=("float32", [None, None]),
            mean_log_prob=("float32", [None]),
            alignment=("string", [None]),
            attention=("float32", [None] * 5),
            encoder_attention=("float32", [None] * 5),
        ),
    ),
}
DTYPES = [
    "float32",
    "float64",
    "float16",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "bool",
    "complex64",
    "string",
]
ECHOES = {
    dtype: signature(_shapes(x=(dtype, None)), _shapes(y=(dtype, None)))
    for dtype in DTYPES
}
X = _shapes(x=("float32", None))
TYPES = {
    **ECHOES,
    "pair": signature(
        _shapes(a=("int32", None), b=("string", None)),
        _shapes(a=("int32", None), b=("string", None)),
    ),
    "two_columns": signature(
        _shapes(x=("float32", [None, 2])), _shapes(y=("float32", None))
    ),
    "no_inputs": signature({}, X),
    "no_outputs": signature(X, {}),
    "to_bytes": signature(
        _shapes(x=("string", None)), _shapes(y_bytes=("string", None))
    ),
    "to_pair": signature(
        _shapes(x=("string", None)),
        _shapes(y_bytes=("string", None), z=("string", None)),
    ),
    "scalar": signature(X, _shapes(y=("float32", []))),
    "uneven": signature(X, _shapes(y=("float32", None), z=("int32", None))),
    "empty": signature(X, _shapes(y=("float32", None), z=("int32", None))),
}


def _demo(name, x):
    text = x["text"]
    count = len(text)
    cut = np.zeros(count, bool)
    if name == "score":
        ones = np.ones(count)
        return {
            "score": -ones.astype(np.float32),
            "pieces": ones.astype(np.int32),
            "alignment": np.full(count, b"0-0", object),
            "truncated": cut,
        }
    upper = np.array([line.upper() for line in text], object)
    score = np.full(count, -0.1, np.float32)
    if name == "n_best":
        size = int(np.clip(x.get("beam_size", 4), 1, 32))
        return {
            "translation": upper[:, None].repeat(size, 1),
            "score": score[:, None].repeat(size, 1),
            "truncated": cut,
            "incomplete": cut[:, None].repeat(size, 1),
        }
    outputs = {
        "translation": upper,
        "score": score,
        "truncated": cut,
        "incomplete": cut,
    }
    if name == "explain":
        outputs["source_pieces"] = text[:, None]
        outputs["target_pieces"] = upper[:, None]
        outputs["log_probs"] = np.zeros((count, 1), np.float32)
        outputs["mean_log_prob"] = np.zeros(count, np.float32)
        outputs["alignment"] = np.full(count, b"0-0", object)
        outputs["attention"] = np.ones((count, 1, 1, 1, 1), np.float32)
        outputs["encoder_attention"] = outputs["attention"]
    return outputs


def _types(name, x):
    if name == "no_outputs":
        return {}
    if name == "pair":
        return x
    x = x["x"]
    if name == "to_bytes":
        return {"y_bytes": x}
    if name == "to_pair":
        return {"y_bytes": x, "z": x}
    if name == "scalar":
        return {"y": x.sum()}
    if name == "uneven":
        return {"y": x, "z": np.zeros(len(x) + 1, np.int32)}
    if name == "empty":
        return {"y": x[:0], "z": np.zeros((0, 3), np.int32)}
    return {"y": x}


class FakeModel:
    """A version whose signatures are computed in NumPy."""

    metadata: dict = {}

    def __init__(self, name, number, signatures, compute):
        self.name = name
        self.number = number
        self.signatures = signatures
        self.compute = compute

    async def predict(self, signature_name, inputs, timeout=None):
        return self.compute(signature_name, inputs)


class FakeRegistry:
    """Three models: as ours, as TensorFlow Serving's tests have, and others."""

    labels = {("half", "stable"): 123, ("demo", "stable"): 1}
    are_ready = True
    names = "demo", "half", "types", "a/b:ü"

    def __init__(self):
        half = {"serving_default": signature(X, _shapes(y=("float32", None)))}
        versions = [
            FakeModel("demo", 1, DEMO, _demo),
            FakeModel("half", 123, half, lambda _, x: {"y": x["x"] / 2 + 2}),
            FakeModel("types", 7, TYPES, _types),
            FakeModel("a/b:ü", 1, half, lambda _, x: {"y": x["x"]}),
        ]
        self.versions = {(x.name, x.number): x for x in versions}

    def _number(self, name, version, label):
        if label is None:
            return version
        if (name, label) not in self.labels:
            raise no_label(label)
        return self.labels[name, label]

    def find(self, name, version=None, label=None):
        version = self._number(name, version, label)
        found = [
            served
            for key, served in sorted(self.versions.items())
            if key[0] == name and version in (None, key[1])
        ]
        if not found:
            raise not_served(name, version)
        return found[-1]

    async def predict(self, served, wanted, name, inputs, timeout=None):
        return await served.predict(name, inputs, timeout)

    def statuses(self, name, version=None, label=None):
        version = self._number(name, version, label)
        known = [
            VersionStatus(n, "AVAILABLE") for m, n in self.versions if m == name
        ]
        if name == "half":
            known.append(VersionStatus(122, "END", "UNKNOWN", 'no "graph"\n'))
        found = [x for x in known if version in (None, x.version)]
        if not found:
            raise not_served(name, version)
        return found
