"""The REST API has the paths, statuses and values of TensorFlow Serving's."""

import asyncio
import contextlib
import json

import hypothesis
import hypothesis.extra.numpy as arrays
import hypothesis.strategies as some
import numpy as np
import pytest
from serve_fakes import DEMO, DTYPES, TYPES, FakeRegistry
from serve_requests import ROWS, check_answer
from tensorflow.core.framework import types_pb2

from keras_transformer.serve import rest, rest_json
from keras_transformer.serve.errors import ServingError, quoted
from keras_transformer.serve.rest_json import (
    parse_object,
    read_predict_request,
    write_predictions,
)
from keras_transformer.serve.signatures import (
    check_dtypes,
    check_names,
    choose_outputs,
    find_signature,
)

EXAMPLES = hypothesis.settings(deadline=None, max_examples=60, database=None)


def ask(method, path, body=b"", origin="", models=None):
    models = models or FakeRegistry()
    try:
        answering = rest.answer(method, path, body, models, None, origin)
        return asyncio.run(answering)
    except ServingError as error:
        return rest.error_answer(error)


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_a_request_has_the_answer_of_tensorflow_serving(row):
    method, path = row.request.split(" ")
    found = ask(method, path, row.body, row.origin)
    check_answer(row, found.status, found.body)
    json_type = [("Content-Type", "application/json")]
    assert found.headers == (json_type if found.body else [])


def test_a_busy_model_says_when_to_try_again():
    class Busy(FakeRegistry):
        def find(self, *_):
            raise ServingError("UNAVAILABLE", "busy", retry_after=3)

    found = ask("GET", "/v1/models/demo/metadata", models=Busy())
    assert found.status == 503
    assert ("Retry-After", "3") in found.headers


@pytest.mark.parametrize("form", ["instances", "inputs"])
@pytest.mark.parametrize("depth", [100, 400, 100_000])
def test_deep_nesting_is_the_clients_fault(form, depth):
    nested = "[" * depth + "0.5" + "]" * depth
    body = f'{{"{form}": {nested}}}'.encode()
    assert ask("POST", "/v1/models/half:predict", body).status == 400


LONG = "é\\u0000\\ud800" * 10**5


@pytest.mark.parametrize(
    "fields",
    [
        f'"inputs": {{"{LONG}": 1}}',
        f'"inputs": {{"{LONG}": 1, "{LONG}": 1}}',
        f'"inputs": "x", "signature_name": "{LONG}"',
        f'"instances": "{LONG}"',
        f'"instances": [[{"NaN, " * 10**5}1]]',
    ],
    ids=range(5),
)
def test_errors_quote_little_of_a_request(fields):
    found = ask("POST", "/v1/models/demo:predict", f"{{{fields}}}".encode())
    assert found.status == 400
    assert len(json.loads(found.body)["error"]) < 400
    path = f"/v1/models/{'x' * 10**5}"
    assert len(ask("GET", path).body) < 400
    assert len(ask("GET", path + "/").body) < 400


def test_a_quotation_is_the_value_unless_it_is_long():
    value = {"text": ["é", None, True, 1.5]}
    assert quoted(value) == '{"text": ["é", null, true, 1.5]}'
    assert quoted("x" * 198) == f'"{"x" * 198}"'
    assert quoted("x" * 199) == f'"{"x" * 199}…'


SHAPES = arrays.array_shapes(min_dims=1, max_dims=3, max_side=3)
NUMBERS = some.sampled_from(
    [x for x in DTYPES if x not in ("string", "complex64")]
).flatmap(lambda dtype: arrays.arrays(dtype, SHAPES))
STRINGS = arrays.arrays(
    object, SHAPES, elements=some.text().map(str.encode), fill=some.nothing()
)


def read(document, signature_name):
    body = json.dumps({"signature_name": signature_name, **document}).encode()
    return read_predict_request(parse_object(body), TYPES).inputs


def written(outputs, is_row_form):
    """Returns the answer that is written, as JSON has it."""
    return json.loads(b"".join(write_predictions(outputs, is_row_form)))


EXTREMES = [3.4028235e38, 1e-45, 0.1, np.nan, -np.inf, -0.0]


@EXAMPLES
@hypothesis.example(np.array(EXTREMES, np.float32), True)
@hypothesis.given(some.one_of(NUMBERS, STRINGS), some.booleans())
def test_arrays_that_are_written_are_read_again(array, is_row_form):
    """Another program reads the same numbers, and so does this one."""
    document = written({"x": array}, is_row_form)
    (value,) = document.values()
    if array.dtype == object:
        plain = np.array([x.decode() for x in array.flat], object)
        np.testing.assert_array_equal(
            np.array(value, object), plain.reshape(array.shape)
        )
    else:
        again = np.array(value, array.dtype)
        np.testing.assert_array_equal(again, array)
        signs = [np.signbit(np.nan_to_num(x)) for x in (again, array)]
        np.testing.assert_array_equal(*signs)  # JSON has one NaN
    dtype = "string" if array.dtype == object else array.dtype.name
    for form in ("instances", "inputs"):
        again = read({form: value}, dtype)["x"]
        assert again.dtype == array.dtype
        np.testing.assert_array_equal(again, array)
        again = read({"inputs": {"x": value}}, dtype)["x"]
        np.testing.assert_array_equal(again, array)


@EXAMPLES
@hypothesis.given(some.lists(some.tuples(some.integers(-9, 9), some.text())))
def test_rows_and_columns_have_the_same_inputs(rows):
    hypothesis.assume(rows)
    rows = [{"a": a, "b": b} for a, b in rows]
    columns = {name: [row[name] for row in rows] for name in "ab"}
    by_row, by_column = (
        read({"instances": rows}, "pair"),
        read({"inputs": columns}, "pair"),
    )
    for name in "ab":
        np.testing.assert_array_equal(by_row[name], by_column[name])
    outputs = {name: by_row[name] for name in "ab"}
    answer = written(outputs, True)["predictions"]
    assert answer == rows
    assert written(outputs, False)["outputs"] == columns


@EXAMPLES
@hypothesis.given(some.binary(max_size=40))
def test_bytes_of_strings_stay_as_they_are(value):
    array = np.array([value], object)
    (found,) = written({"x_bytes": array}, False).values()
    assert read({"inputs": found}, "string")["x"].tolist() == [value]
    (text,) = written({"x": array}, False).values()
    assert text == [value.decode(errors="replace")]


@pytest.mark.parametrize("piece", [1, 2, 7, 64])
@pytest.mark.parametrize("is_row_form", [False, True])
@pytest.mark.parametrize("names", ["a", "abc"])
def test_an_answer_in_pieces_is_the_same(
    monkeypatch, piece, is_row_form, names
):
    rng = np.random.default_rng(piece)
    texts = np.array([b"x", b"\xc3\xbc", b'"', b"", b"\\"], object)
    outputs = {
        "a": rng.normal(size=(5, 2, 3, 7)).astype(np.float32),
        "b": np.tile(texts[:, None], (1, 3)),
        "c": np.zeros((5, 0, 2), np.int64),
    }
    outputs = {name: outputs[name] for name in names}
    monkeypatch.setattr(rest_json, "PIECE", 10**9)
    whole = written(outputs, is_row_form)
    monkeypatch.setattr(rest_json, "PIECE", piece)
    pieces = list(write_predictions(outputs, is_row_form))
    assert len(pieces) > 1
    assert all(pieces)
    assert json.loads(b"".join(pieces)) == whole
    # Large arrays are never values of Python as a whole.
    sizes = []
    values = rest_json._values
    monkeypatch.setattr(
        rest_json,
        "_values",
        lambda name, array: sizes.append(array.size) or values(name, array),
    )
    list(write_predictions({"a": outputs["a"]}, is_row_form))
    assert max(sizes) <= piece


JSON = some.recursive(
    some.none()
    | some.booleans()
    | some.integers()
    | some.floats()
    | some.text(max_size=5),
    lambda inner: (
        some.lists(inner, max_size=3)
        | some.dictionaries(
            some.sampled_from(["x", "b64", "a", "b"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)
DOCUMENTS = some.builds(
    lambda key, name, value: json.dumps(
        {key: value, "signature_name": name}
    ).encode(),
    some.sampled_from(["instances", "inputs"]),
    some.sampled_from(["float32", "float16", "int8", "string", "pair", "bool"]),
    JSON,
)
PIECES = some.lists(
    some.sampled_from(
        b'{ } [ ] : , " "instances": \\ u 1 . e - NaN nu \\ud800 \xff'.split()
    ),
    max_size=12,
).map(b"".join)


@EXAMPLES
@hypothesis.given(some.one_of(some.binary(), DOCUMENTS, PIECES))
def test_any_body_is_read_or_refused(body):
    with contextlib.suppress(ServingError):
        read_predict_request(parse_object(body), TYPES)


def test_a_signature_says_what_a_call_may_give_and_ask():
    n_best, score = DEMO["n_best"], DEMO["score"]
    check_names(n_best, {"text"})  # the others have defaults
    for names in ({"alpha"}, {"text", "x"}, set()):
        with pytest.raises(ServingError, match="alpha, beam_size, max_length"):
            check_names(n_best, names)
    wrong = {"text": types_pb2.DT_STRING, "beam_size": types_pb2.DT_BOOL}
    with pytest.raises(
        ServingError, match=r"beam_size .* int32\. Received: bool"
    ):
        check_dtypes(n_best, wrong)
    assert choose_outputs(score, ["truncated"]) == ["truncated"]
    assert choose_outputs(score, []) == [
        *("alignment", "pieces", "score", "truncated")
    ]
    for names in (["x"], ["score", "score"]):
        with pytest.raises(
            ServingError, match="alignment, pieces, score, truncated"
        ):
            choose_outputs(score, names)
    assert find_signature(DEMO, "score") is score
    with pytest.raises(ServingError, match='signature_name="x"') as error:
        find_signature(DEMO, "x")
    assert error.value.code == "FAILED_PRECONDITION"
