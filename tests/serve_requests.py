"""Requests to TensorFlow Serving's REST API, and its answers: plain data.

The rules are in TensorFlow Serving's `http_rest_api_handler.cc`,
`http_rest_api_util.cc`, `http_server.cc` and `json_tensor.cc`. Values count,
not white space nor the words of errors. The models are those of
`serve_fakes.py`; rows with `served=True` also hold for every export of this
package that is served as `demo`, version 1.
"""

import json
from typing import Any, NamedTuple

INF, NAN = float("inf"), float("nan")


class Row(NamedTuple):
    """A request and its answer.

    Args:
        request: method and path.
        status: status of the answer.
        answer: value of the answer, with types where values depend on the
            model, as `matches` compares it; `None` for an error or no body.
        body: body of the request.
        served: whether it holds for every export of this package.
        origin: the header `Origin`.
    """

    request: str
    status: int
    answer: Any = None
    body: bytes = b""
    served: bool = False
    origin: str = ""


def matches(found: Any, expected: Any) -> bool:
    """Returns whether a value of JSON is as expected."""
    if isinstance(expected, type):
        return isinstance(found, expected)
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            matches(found[key], value) for key, value in expected.items()
        )
    if isinstance(expected, list):
        return len(found) == len(expected) and all(
            map(matches, found, expected)
        )
    return repr(found) == repr(expected)  # NaN, and 1 is not 1.0


def predict(body: str | bytes, model: str = "demo") -> dict[str, Any]:
    body = body.encode() if isinstance(body, str) else body
    path = f"POST /v1/models/{model}:predict"
    return {"request": path, "body": body, "served": model == "demo"}


MALFORMED = """
GET /v1/foo
POST /v1/models
GET /v1/models/
GET /v1/models/demo/
GET /v1/models/demo:predict
GET /v1/models/foo/version/50:predict
POST /v1/models/foo/versions/HELLO:regress
POST /v1/models/foo/metadata
GET /v1/models/foo/versions/50/labels/some_label
POST /v1/models/demo:translate
POST /v1/models/demo:predict/
PUT /v1/models/demo:predict
DELETE /v1/models/demo
POST /v1/models/demo:PREDICT
GET /v1/models
GET /v1/models/versions/1
GET /v1/models/foo/versions/9223372036854775808
POST /v1/models/foo/versions/18446744073709551615:predict
GET /v1/models/demo/labels/no%2Dpe/metadata
""".strip().splitlines()
NOT_FOUND = """
GET /v1/models/metadata
GET /v1/models/demo/versions/9223372036854775807
GET /v1/models/demo/versions/7
GET /v1/models/nope
GET /v1/models/nope/metadata
GET /v1/models/%zz+%41%00
GET /v1/models/%ff%22
POST /v1/models/nope:predict
POST /v1/models/demo/versions/7:predict
POST /v1/models/nope/versions/50:predict
""".strip().splitlines()
PATHS = [Row(request, 400, served=True) for request in MALFORMED]
PATHS += [
    Row(request, 404, body=b'{"instances": ["x"]}', served=True)
    for request in NOT_FOUND
]
PATHS += [
    Row("HEAD /v1/models/demo", 400),  # over HTTP there is no body
    # The body is read before the model is looked for.
    Row("POST /v1/models/nope:predict", 400, body=b"{", served=True),
    Row("POST /v1/models/demo/labels/nope:predict", 400, served=True),
    Row("POST /v1/models/demo:classify", 501, body=b"{}", served=True),
    Row("POST /v1/models/demo:regress", 501, body=b"{", served=True),
    Row("OPTIONS /v1/models/demo:predict", 400, served=True),
    Row("OPTIONS /v1/models/demo:predict", 400, served=True, origin="null"),
    Row("OPTIONS /v1/x", 200, served=True, origin="http://example.com"),
]  # fmt: skip


def status(version, state="AVAILABLE", code="OK", message=""):
    error = {"error_code": code, "error_message": message}
    return {"version": version, "state": state, "status": error}


def float_tensor(name):
    shape = {"dim": [], "unknown_rank": True}
    return {"name": name, "dtype": "DT_FLOAT", "tensor_shape": shape}


DEMO = {"model_version_status": [status("1")]}
HALF = {
    "model_version_status": [
        status("123"),
        status("122", "END", "UNKNOWN", 'no "graph"\n'),
    ]
}
HALF_SIGNATURE = {
    "inputs": {"x": float_tensor("input_x:0")},
    "outputs": {"y": float_tensor("output_y:0")},
    "method_name": "tensorflow/serving/predict",
    "defaults": {},
}
HALF_METADATA = {
    "model_spec": {"name": "half", "version": "123", "signature_name": ""},
    "metadata": {
        "signature_def": {"signature_def": {"serving_default": HALF_SIGNATURE}}
    },
}
DEMO_METADATA = {
    "model_spec": {"name": "demo", "version": "1", "signature_name": ""},
    "metadata": {"signature_def": {"signature_def": dict}},
}
DESCRIPTIONS = [
    Row("GET /v1/models/demo", 200, DEMO, served=True),
    Row("GET /v1/models/demo/versions/1", 200, DEMO, served=True),
    Row("GET /V1/Models/demo/Versions/01", 200, DEMO, served=True),
    Row("GET /v1/models/%64em%6F", 200, DEMO, served=True),
    Row("GET /v1/models/demo?verbose=1", 200, DEMO, served=True),
    Row("GET /v1/models/demo/METADATA", 200, DEMO, served=True),
    Row("GET /v1/models/demo/metadata", 200, DEMO_METADATA, served=True),
    Row("GET /v1/models/demo/labels/stable", 200, DEMO),
    Row("GET /v1/models/a%2Fb%3A%C3%BC", 200, DEMO),
    Row("GET /v1/models/half", 200, HALF),
    Row("GET /v1/models/half/metadata", 200, HALF_METADATA),
    Row("GET /v1/models/half/versions/123/metadata", 200, HALF_METADATA),
    Row("GET /v1/models/half/labels/stable/metadata", 200, HALF_METADATA),
]

DOCUMENTS = r"""
instances = [1, 2]
{
{"a": nul}
{"a": "\x"}
[1, 2]
NaN
{}
{"inputs": "a\ud800"}
{"inputs": [{"b64": "YQ="}]}
{"inputs": [{"b64": "a-_b"}]}
{"inputs": [{"b64": "é"}]}
{"inputs": {"text": {"b64": 1}}}
{"inputs": {"text": [{"b64": "YQ==", "x": 1}]}}
{"inputs": {"text": 1.0}}
{"inputs": ["x", ["y"]]}
{"inputs": {"text": [[], ["y"]]}}
{"inputs": "x"}
{"inputs": "x", "inputs": "x"}
{"instances": ["x"], "inputs": ["x"]}
{"instances": {"text": "x"}}
{"instances": []}
{"instances": ["x", 1]}
{"instances": [null]}
{"instances": [{"text": true}]}
{"instances": ["x", ["x"]]}
{"instances": [["x", "y"], ["x"]]}
{"instances": [[["x"], ["y", "z"]]]}
{"instances": [["x", "y"]]}
{"instances": [{"text": "x"}, "y"]}
{"instances": ["x", {"text": "y"}]}
{"instances": [{"text": "x", "b": 1}]}
{"instances": [{}]}
{"instances": ["x"], "beam_size": 2}
{"inputs": {"text": ["x"]}, "alpha": 0.6}
{"instances": ["x"], "signature_name": 5}
{"instances": ["x"], "signature_name": null}
{"instances": ["x"], "signature_name": "nope"}
{"instances": ["x"], "signature_name": "score"}
{"inputs": {"text": ["x"]}, "signature_name": "score"}
{"inputs": {"text": ["x"]}, "signature_name": "n_best"}
""".strip().splitlines()
N_BEST = '"beam_size": 2, "alpha": 0.6, "max_length": 10'
# In row form, the scalar inputs of `n_best` would be one for each row.
DOCUMENTS += [
    f'{{"signature_name": "n_best", "instances": [{{"text": "x", {N_BEST}}}]}}',
    "",
    " \n",
    "\ufeff{",
    '{"a": "\t"}',
    '{"a": [1e999]}',
    f'{{"a": {"9" * 400}}}',
    f'{{"a": {"9" * 5000}}}',
]
WRONG = [Row(status=400, **predict(body)) for body in DOCUMENTS]
WRONG += [Row(status=400, **predict(b'{"inputs": ["\xff"]}'))]

# Signature of `types`, and the value of `inputs`.
WRONG_VALUES = [
    ("float32", "16777216"),  # TensorFlow Serving wants integers to be exact
    ("float32", "1e39"),
    ("float32", '"x"'),
    ("float32", "false"),
    ("float32", '{"x": {"a": NaN}}'),
    ("float64", "9007199254740993"),
    ("int32", "1.0"),
    ("int32", "2147483648"),
    ("int32", "true"),
    ("int32", "NaN"),
    ("int8", "300"),
    ("int64", "9223372036854775808"),
    ("uint32", "-1"),
    ("uint64", "18446744073709551616"),
    ("bool", "1"),
    ("int64", '{"b64": "YQ=="}'),
    ("no_inputs", "1"),
    ("two_columns", "[[1, 2, 3]]"),
]
WRONG += [
    Row(
        status=400,
        **predict(
            f'{{"signature_name": "{name}", "inputs": {value}}}', "types"
        ),
    )
    for name, value in WRONG_VALUES
]
WRONG += [
    Row(
        status=400,
        **predict(
            f'{{"signature_name": "{name}", "instances": [1, 2]}}', "types"
        ),
    )
    for name in ("scalar", "uneven", "no_outputs")
]
WRONG += [
    Row(
        status=501,
        **predict('{"signature_name": "complex64", "inputs": 1}', "types"),
    )
]

# Signature of `types`, field of the request, and value of the answer.
VALUES = [
    ("float32", '"instances": [1, 2.0, 0.1, 3e-5, 16777215, 9e6, 555557.5]',
     [1.0, 2.0, 0.1, 3e-05, 16777215.0, 9e6, 555557.5]),
    ("float32", '"instances": [NaN, Infinity, -Infinity, -0.0, 1e-60]',
     [NAN, INF, -INF, -0.0, 0.0]),
    ("float32", '"instances": [0.3333333333, 123456789.0]',
     [0.333333343, 123456792.0]),
    ("float64", '"instances": [1, 0.1, 0.3333333333333333, -0, 1e300]',
     [1.0, 0.1, 0.3333333333333333, 0.0, 1e300]),
    ("float16", '"inputs": 0.5', 0.5),
    ("int32", '"instances": [-2147483648, -0]', [-2147483648, 0]),
    ("int32", '"instances": [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]',
     [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]),
    ("int32", '"instances": [[], []]', [[], []]),
    ("int32", '"inputs": []', []),
    ("int32", '"inputs": [[1], [2]]', [[1], [2]]),
    ("uint8", '"inputs": 255', 255),
    ("int64", '"inputs": -9223372036854775808', -(2**63)),
    ("uint64", '"inputs": 18446744073709551615', 2**64 - 1),
    ("bool", '"instances": [true, false]', [True, False]),
    ("string", '"instances": ["\\u00e9\\ud83d\\ude00\\/\\u0000\\u001f\x7f\\n"]',
     ["é😀/\0\x1f\x7f\n"]),
    ("string", '"instances": [{"b64": "aGVsbG8="}, "x", {"b64": " d29 ybGQ"}]',
     ["hello", "x", "world"]),
    ("string", '"instances": [{"x": {"b64": "YQ=="}}]', ["a"]),
    ("string", '"inputs": {"b64": "/w=="}', "\ufffd"),  # 0xff is no UTF-8
    ("string", '"inputs": {"x": ["a"], "other": 1}', ["a"]),
    ("to_bytes", '"instances": ["hello"]', [{"b64": "aGVsbG8="}]),
    ("to_bytes", '"inputs": [{"b64": "/w=="}]', [{"b64": "/w=="}]),
    ("to_pair", '"instances": [["tf"]]',
     [{"y_bytes": [{"b64": "dGY="}], "z": ["tf"]}]),
    ("pair", '"instances": [{"a": 1, "b": ["x"]}, {"b": ["y"], "a": 2}]',
     [{"a": 1, "b": ["x"]}, {"a": 2, "b": ["y"]}]),
    ("pair", '"inputs": {"a": [1, 2, 3], "b": "x"}',
     {"a": [1, 2, 3], "b": "x"}),
    ("empty", '"instances": [1.0]', []),
    ("scalar", '"inputs": [1, 2]', 3.0),
]  # fmt: skip
LINE = {
    "translation": str,
    "score": float,
    "truncated": False,
    "incomplete": bool,
}
# Fields of a request to an export, and value of the answer.
SERVED_VALUES = [
    ('"instances": ["x"]', [LINE]),
    ('"instances": [{"text": "x"}, {"text": {"b64": "eQ=="}}]', [LINE, LINE]),
    ('"inputs": ["x"]',
     {"translation": [str], "score": [float], "truncated": [False],
      "incomplete": [bool]}),
    ('"signature_name": "n_best", "inputs": {"text": ["x"], ' + N_BEST + "}",
     {"translation": [[str, str]], "score": [[float, float]],
      "truncated": [False], "incomplete": [[bool, bool]]}),
    ('"signature_name": "score", "instances": [{"text": "x", "translation": '
     '"y"}]', [{"alignment": str, "pieces": int, "score": float,
      "truncated": False}]),
    ('"signature_name": "explain", "instances": ["x"]',
     [{**LINE, "alignment": str, "attention": list,
       "encoder_attention": list, "log_probs": list, "mean_log_prob": float,
       "source_pieces": list, "target_pieces": list}]),
]  # fmt: skip


def _answered(fields, value, model):
    key = "predictions" if '"instances"' in fields else "outputs"
    # What follows the document is ignored.
    request = predict(f"{{{fields}}} trailing bytes", model)
    return Row(status=200, answer={key: value}, **request)


ANSWERS = [
    _answered(f'"signature_name": "{name}", {field}', value, "types")
    for name, field, value in VALUES
]
ANSWERS += [_answered(*row, "demo") for row in SERVED_VALUES]
ANSWERS += [
    Row(f"POST /v1/models/half{place}:predict", 200,
        {"predictions": [2.5, 3.0]}, b'{"instances": [1.0, 2.0]}')
    for place in ("", "/versions/123", "/labels/stable")
]  # fmt: skip

ROWS = [*PATHS, *DESCRIPTIONS, *WRONG, *ANSWERS]


def check_answer(row: Row, status: int, body: bytes) -> None:
    """Asserts that an answer is that of a row."""
    assert status == row.status, body
    if status == 200:
        assert matches(json.loads(body) if body else None, row.answer), body
    else:
        error = json.loads(body)["error"]
        assert 0 < len(error) < 500
