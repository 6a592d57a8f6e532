"""Requests to TensorFlow Serving's REST API, and its answers: plain data.

Each row names the file of TensorFlow Serving that has the rule. Rows with
`served=True` hold for every export of this package that is served as `demo`,
version 1; what depends on the model is a pattern there. The other rows need the
models of `serve_fakes.py`.
"""

import json
import re
from typing import NamedTuple

UTIL = "model_servers/http_rest_api_util.cc"
HANDLER = "model_servers/http_rest_api_handler.cc"
SERVER = "model_servers/http_server.cc"
CORE = "model_servers/server_core.cc"
MANAGER = "core/basic_manager.cc"
STATUS = "model_servers/get_model_status_impl.cc"
CLASSIFIER = "servables/tensorflow/classifier.cc"
REGRESSOR = "servables/tensorflow/regressor.cc"
JSON = "util/json_tensor.cc"
RAPIDJSON = "rapidjson 1.1.0, reader.h"


class Row(NamedTuple):
    """A request and its answer.

    Args:
        source: the file of TensorFlow Serving that says so.
        request: method and path.
        body: body of the request.
        status: status of the answer.
        answer: body of the answer; a pattern if it depends on the model.
        served: whether it holds for every export of this package.
        origin: the header `Origin`.
    """

    source: str
    request: str
    body: bytes
    status: int
    answer: bytes | re.Pattern
    served: bool = False
    origin: str = ""


def error(message: str) -> bytes:
    text = json.dumps(message, ensure_ascii=False)
    return f'{{\n    "error": {text}\n}}'.encode()


def predict(body: str, model: str = "demo") -> tuple[str, bytes]:
    return f"POST /v1/models/{model}:predict", body.encode()


def failed(source, body, message, status=400, model="demo", served=None):
    served = model == "demo" if served is None else served
    return Row(source, *predict(body, model), status, error(message), served)


def malformed(request, source=HANDLER):
    return Row(
        source,
        request,
        b"{}",
        400,
        error(f"Malformed request: {request}"),
        True,
    )


# fmt: off
PATHS = [
    malformed("GET /v1/foo"),
    malformed("POST /v1/foo"),
    malformed("POST /v1/models"),
    malformed("GET /v1/models/"),
    malformed("GET /v1/models/demo/"),
    malformed("GET /v1/models/foo:predict"),
    malformed("GET /v1/models/debug/model_name"),
    malformed("GET /v1/models/foo/version/50:predict"),
    malformed("POST /v1/models/foo/version/50:regress"),
    malformed("POST /v1/models/foo/versions/HELLO:regress"),
    malformed("POST /v1/models/foo/label/some_label:regress"),
    malformed("POST /v1/models/foo/metadata"),
    malformed("POST /v1/models/foo/versions/50/labels/some_label:regress"),
    malformed("GET /v1/models/foo/versions/50/labels/some_label"),
    malformed("POST /v1/models/demo:translate"),
    malformed("POST /v1/models/demo:predict/"),
    malformed("PUT /v1/models/demo:predict"),
    # Over HTTP there would be no body.
    malformed("HEAD /v1/models/demo")._replace(served=False),
    malformed("DELETE /v1/models/demo"),
    # The expression ignores case, the comparison after it does not.
    malformed("POST /v1/models/demo:PREDICT"),
    Row(HANDLER, "GET /v1/models", b"", 400,
        error("Missing model name in request."), True),
    Row(HANDLER, "GET /v1/models/versions/1", b"", 400,
        error("Missing model name in request."), True),
    Row(HANDLER, "GET /v1/models/labels/x/metadata", b"", 400,
        error("Missing model name in request."), True),
    Row(STATUS, "GET /v1/models/metadata", b"", 404,
        error("Could not find any versions of model metadata"), True),
    # The handler returns before it has written a body.
    Row(UTIL, "POST /v1/models/foo/versions/18446744073709551615:regress", b"",
        400, b"", True),
    Row(UTIL, "GET /v1/models/foo/versions/9223372036854775808", b"", 400, b"",
        True),
    Row(STATUS, "GET /v1/models/demo/versions/9223372036854775807", b"", 404,
        error("Could not find version 9223372036854775807 of model demo"),
        True),
    Row(SERVER, "OPTIONS /v1/models/demo:predict", b"", 400, b"", True),
    Row(SERVER, "OPTIONS /v1/models/demo:predict", b"", 400, b"", True,
        "null"),
    Row(SERVER, "OPTIONS /v1/models/demo:predict", b"", 200, b"", True,
        "https://example.com"),
    Row(SERVER, "OPTIONS /v1/x", b"", 200, b"", True, "http://example.com"),
]

# fmt: on

ONE = b'{"instances": ["x"]}'
DEMO_STATUS = b"""{
 "model_version_status": [
  {
   "version": "1",
   "state": "AVAILABLE",
   "status": {
    "error_code": "OK",
    "error_message": ""
   }
  }
 ]
}
"""
HALF_STATUS = b"""{
 "model_version_status": [
  {
   "version": "123",
   "state": "AVAILABLE",
   "status": {
    "error_code": "OK",
    "error_message": ""
   }
  },
  {
   "version": "122",
   "state": "END",
   "status": {
    "error_code": "UNKNOWN",
    "error_message": "no \\"graph\\"\\n"
   }
  }
 ]
}
"""
HALF_METADATA = b"""{
"model_spec":{
 "name": "half",
 "version": "123",
 "signature_name": ""
}
,
"metadata": {"signature_def": {
 "signature_def": {
  "serving_default": {
   "inputs": {
    "x": {
     "name": "input_x:0",
     "dtype": "DT_FLOAT",
     "tensor_shape": {
      "dim": [],
      "unknown_rank": true
     }
    }
   },
   "outputs": {
    "y": {
     "name": "output_y:0",
     "dtype": "DT_FLOAT",
     "tensor_shape": {
      "dim": [],
      "unknown_rank": true
     }
    }
   },
   "method_name": "tensorflow/serving/predict",
   "defaults": {}
  }
 }
}
}
}
"""
DEMO_METADATA = re.compile(
    rb'\{\n"model_spec":\{\n "name": "demo",\n "version": "1",\n'
    rb' "signature_name": ""\n\}\n,\n"metadata": \{"signature_def": \{\n'
    rb' "signature_def": \{.*\n  "n_best": \{\n   "inputs": \{\n'
    rb'    "alpha": \{.*\n   "defaults": \{\n    "alpha": \{.*\n  "score": .*'
    rb'"size": "-1".*"method_name": "tensorflow/serving/predict",\n'
    rb'   "defaults": \{\}\n  \}\n \}\n\}\n\}\n\}\n',
    re.DOTALL,
)
HALF = b'{\n    "predictions": [2.5, 3.0\n    ]\n}'

# fmt: off
MODELS = [
    Row(STATUS, "GET /v1/models/demo", b"", 200, DEMO_STATUS, True),
    Row(STATUS, "GET /v1/models/demo/versions/1", b"", 200, DEMO_STATUS, True),
    Row(UTIL, "GET /V1/Models/demo/Versions/01", b"", 200, DEMO_STATUS, True),
    Row(UTIL, "GET /v1/models/%64em%6F", b"", 200, DEMO_STATUS, True),
    Row(UTIL, "GET /v1/models/demo?verbose=1", b"", 200, DEMO_STATUS, True),
    Row(HANDLER, "GET /v1/models/demo/METADATA", b"", 200, DEMO_STATUS, True),
    Row(STATUS, "GET /v1/models/demo/labels/stable", b"", 200, DEMO_STATUS),
    Row(STATUS, "GET /v1/models/half", b"", 200, HALF_STATUS),
    Row(STATUS, "GET /v1/models/nope", b"", 404,
        error("Could not find any versions of model nope"), True),
    Row(STATUS, "GET /v1/models/demo/versions/7", b"", 404,
        error("Could not find version 7 of model demo"), True),
    Row(STATUS, "GET /v1/models/a%2Fb%3A%C3%BC", b"", 200, DEMO_STATUS),
    Row(STATUS, "GET /v1/models/%zz+%41%00", b"", 404,
        b'{\n    "error": "Could not find any versions of model '
        b'%zz+A\\u0000"\n}', True),
    Row(STATUS, "GET /v1/models/%ff%22", b"", 404,
        b'{\n    "error": "Could not find any versions of model '
        b'\xff\\""\n}', True),
    Row(UTIL, "GET /v1/models/half/metadata", b"", 200, HALF_METADATA),
    Row(UTIL, "GET /v1/models/half/versions/123/metadata", b"", 200,
        HALF_METADATA),
    Row(UTIL, "GET /v1/models/half/labels/stable/metadata", b"", 200,
        HALF_METADATA),
    Row(UTIL, "GET /v1/models/demo/metadata", b"", 200, DEMO_METADATA, True),
    Row(MANAGER, "GET /v1/models/nope/metadata", b"", 404,
        error("Servable not found for request: Latest(nope)"), True),
    Row(MANAGER, "POST /v1/models/nope:predict", ONE, 404,
        error("Servable not found for request: Latest(nope)"), True),
    Row(MANAGER, "POST /v1/models/demo/versions/7:predict", ONE, 404,
        error("Servable not found for request: Specific(demo, 7)"), True),
    Row(MANAGER, "POST /v1/models/nope/versions/50:predict", ONE, 404,
        error("Servable not found for request: Specific(nope, 50)"), True),
    Row(MANAGER, "POST /v1/models/nope:classify", b'{"examples": [{}]}', 404,
        error("Servable not found for request: Latest(nope)"), True),
    Row(CORE, "POST /v1/models/demo/labels/nope:predict", ONE, 400,
        error("Unrecognized servable version label: nope"), True),
    Row(CORE, "GET /v1/models/demo/labels/no%2Dpe/metadata", b"", 400,
        error("Unrecognized servable version label: no-pe"), True),
    # The document is read before the model is looked for.
    Row(HANDLER, "POST /v1/models/nope:predict", b"", 400,
        error("JSON Parse error: The document is empty"), True),
    Row(HANDLER, "POST /v1/models/nope:regress", b"{", 400,
        error("JSON Parse error: Missing a name for object member. "
              "at offset: 1"), True),
    Row(HANDLER, "POST /v1/models/half/versions/123:predict",
        b'{"instances": [1.0, 2.0]}', 200, HALF),
    Row(HANDLER, "POST /v1/models/half/labels/stable:predict",
        b'{"instances": [1.0, 2.0]}', 200, HALF),
    Row(HANDLER, "POST /v1/models/half:predict",
        b'{"signature_name": "serving_default", "instances": [1.0, 2.0]}',
        200, HALF),
    Row(HANDLER, "POST /v1/models/half:predict",
        b'{"instances": [[1.0, 2.0], [3.0, 4.0]]}', 200,
        b'{\n    "predictions": [[2.5, 3.0], [3.5, 4.0]\n    ]\n}'),
    Row(HANDLER, "POST /v1/models/half:predict", b'{"inputs": [3.0, 4.0]}', 200,
        b'{\n    "outputs": [\n        3.5,\n        4.0\n    ]\n}'),
    Row(JSON, "POST /v1/models/half:predict", b'{"inputs": 3.0}', 200,
        b'{\n    "outputs": 3.5\n}'),
]

# fmt: on

FOUND_3 = "Expected one or two output Tensors, found 3"
NOT_CLASSIFY = (
    "Expected classification signature method_name to be "
    "tensorflow/serving/classify. Was: tensorflow/serving/predict"
)
# Method, body, message; all at the model `demo` or `types`.
EXAMPLES = [
    (CLASSIFIER, "demo:classify", '{"examples": [{"x": 1}]}', FOUND_3),
    (REGRESSOR, "demo:regress", '{"examples": [{"x": [1.5]}]}',
     "Expected one output Tensor."),
    (CLASSIFIER, "demo:classify",
     '{"signature_name": "n_best", "examples": [{}]}',
     "Expected one input Tensor."),
    (CLASSIFIER, "demo:classify",
     '{"signature_name": "nope", "examples": [{}]}',
     "No signature was found with the name: nope"),
    (CLASSIFIER, "types:classify",
     '{"signature_name": "classes", "examples": [{}]}', NOT_CLASSIFY),
    (JSON, "demo:classify", '{"examples": [{"a": {"b64": "YQ"}, "b": true}], '
     '"context": {"c": NaN}}', FOUND_3),
    (JSON, "demo:regress", "{}",
     "JSON Value: {} When method is classify, key 'examples' is expected and "
     "was not found"),
    (JSON, "demo:classify", '{"examples": 1}',
     'JSON Value: {\n    "examples": 1\n} Expecting \'examples\' '
     "value to be an list/array"),
    (JSON, "demo:classify", '{"examples": []}',
     'JSON Value: {\n    "examples": []\n} \'examples\' value is '
     "an empty array"),
    (JSON, "demo:classify", '{"signature_name": ["x"], "examples": [{}]}',
     'JSON Value: {\n    "signature_name": [\n        "x"\n    ],\n'
     '    "examples": [\n        {}\n    ]\n} not formatted correctly. '
     "'signature_name' key must be a string value."),
    (JSON, "demo:classify", '{"context": [], "examples": [{}]}',
     "Example must be JSON object but got JSON Array"),
    (JSON, "demo:classify", '{"examples": [3]}',
     "Example must be JSON object but got JSON Number"),
    (JSON, "demo:classify", '{"examples": [{"names": [10, null]}]}',
     "Feature: names has element with unexpected JSON type: Null"),
    (JSON, "demo:classify", '{"examples": [{"names": [10, {"test": 1}]}]}',
     "Feature: names has element with unexpected JSON type: Object"),
    (JSON, "demo:classify", '{"examples": [{"names": [[10], 20]}]}',
     "Feature: names has element with unexpected JSON type: Array"),
    (JSON, "demo:classify", '{"examples": [{"names": [10, 10.0]}]}',
     "Unexpected element type in feature: names expecting type: int64"),
    (JSON, "demo:classify", '{"examples": [{"names": ["x", true]}]}',
     "Unexpected element type in feature: names expecting type: bytes"),
    (JSON, "demo:regress", '{"examples": [{"n": 18446744073709551603}]}',
     "Feature: n has uint64 element. Only int64 is supported."),
    (JSON, "demo:regress", '{"examples": [{"n": 1e300}]}',
     "Cannot convert JSON value: 1e+300 to float without loss of precision."),
    (JSON, "demo:regress", '{"examples": [{"n": {"b64": "?"}}]}',
     "Unable to base64 decode"),
]  # fmt: skip

ROWS = PATHS + MODELS
ROWS += [
    Row(source, f"POST /v1/models/{target}", body.encode(), 400,
        error(message), target.startswith("demo"))
    for source, target, body, message in EXAMPLES
]  # fmt: skip
