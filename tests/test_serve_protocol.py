"""The REST API answers byte for byte as TensorFlow Serving does."""

import asyncio
import contextlib
import json
import re

import hypothesis
import hypothesis.extra.numpy as arrays
import hypothesis.strategies as some
import numpy as np
import pytest
from serve_fakes import DEMO, TYPES, Models, signature
from serve_predict_requests import PREDICT_ROWS
from serve_requests import ROWS
from tensorflow.core.framework import types_pb2

from keras_transformer.serve import rest, tensors
from keras_transformer.serve.errors import ServingError
from keras_transformer.serve.rest import answer
from keras_transformer.serve.rest_answers import write_predictions
from keras_transformer.serve.rest_examples import read_examples
from keras_transformer.serve.rest_json import read_predict_request
from keras_transformer.serve.signatures import (
    check_dtypes,
    check_inputs,
    choose_outputs,
    find_signature,
)

TABLE = ROWS + PREDICT_ROWS
EXAMPLES = hypothesis.settings(deadline=None, max_examples=60, database=None)


def ask(method, path, body=b"", **options):
    return asyncio.run(answer(method, path, body, Models(), None, **options))


def test_the_table_is_large():
    assert len(TABLE) >= 100
    assert sum(row.served for row in TABLE) >= 50


@pytest.mark.parametrize("row", TABLE, ids=range(len(TABLE)))
def test_a_request_has_the_answer_of_tensorflow_serving(row):
    method, path = row.request.split(" ")
    result = ask(method, path, row.body, origin=row.origin)
    if isinstance(row.answer, re.Pattern):
        assert row.answer.fullmatch(result.body), result.body.decode()
    else:
        assert result.body == row.answer
    assert result.status == row.status
    json_type = [("Content-Type", "application/json")]
    assert result.headers == ([] if method == "OPTIONS" else json_type)


def test_pages_of_other_sites_may_ask_if_they_are_let():
    for method in ("GET", "OPTIONS"):
        headers = rest.cors_headers(has_token=False)
        result = ask(method, "/v1/models/demo", extra_headers=headers)
        assert result.headers[-3:] == [
            ("Access-Control-Allow-Origin", "*"),
            ("Access-Control-Allow-Methods", "POST, GET"),
            ("Access-Control-Allow-Headers", "Content-Type"),
        ]


def test_a_busy_model_says_when_to_try_again():
    class Busy(Models):
        def find(self, *_):
            raise ServingError("UNAVAILABLE", "busy", retry_after=3)

    path = "/v1/models/demo/metadata"
    result = asyncio.run(answer("GET", path, b"", Busy()))
    assert result.status == 503
    assert ("Retry-After", "3") in result.headers


@pytest.mark.parametrize("form", ["instances", "inputs", "examples"])
@pytest.mark.parametrize("depth", [100, 400, 100_000])
def test_deep_nesting_is_the_clients_fault(form, depth):
    nested = "[" * depth + "0.5" + "]" * depth
    method = "classify" if form == "examples" else "predict"
    path = f"/v1/models/half:{method}"
    body = f'{{"{form}": {nested}}}'.encode()
    assert ask("POST", path, body).status == 400


def infos_of(dtype):
    return lambda name: TYPES[dtype].inputs


def read(body, dtype):
    return read_predict_request(body, infos_of(dtype)).inputs["x"]


SHAPES = arrays.array_shapes(min_dims=1, max_dims=3, max_side=3)
NUMBERS = some.sampled_from(
    [np.float32, np.float64, np.int32, np.int64, np.uint32, np.uint64, np.bool_]
).flatmap(lambda dtype: arrays.arrays(dtype, SHAPES))
STRINGS = arrays.arrays(
    object, SHAPES, elements=some.text().map(str.encode), fill=some.nothing()
)


@EXAMPLES
@hypothesis.given(some.one_of(NUMBERS, STRINGS), some.booleans())
def test_arrays_that_are_written_are_read_again(array, is_row_form):
    # Nine digits of the largest float are larger than it, and are refused.
    largest = np.array(3.4028234e38, np.float32)
    if array.dtype == np.float32:
        hypothesis.assume(not np.any(np.abs(array) == largest))
    text = write_predictions({"x": array}, is_row_form)
    key, other = (
        ("predictions", "instances") if is_row_form else ("outputs",) * 2
    )
    body = text.replace(b'"%s"' % key.encode(), b'"%s"' % other.encode(), 1)
    body = body.replace(b'"outputs"', b'"inputs"', 1)
    dtype = "string" if array.dtype == object else array.dtype.name
    again = read(body, dtype)
    assert again.dtype == array.dtype
    np.testing.assert_array_equal(again, array)


@EXAMPLES
@hypothesis.given(some.lists(some.floats(width=32), min_size=1))
def test_floats_are_the_same_as_float32(values):
    array = np.array(values, np.float32)
    texts = json.loads(write_predictions({"x": array}, False))["outputs"]
    np.testing.assert_array_equal(np.array(texts, np.float32), array)
    assert all(isinstance(text, float) for text in texts)


@EXAMPLES
@hypothesis.given(some.binary(max_size=40))
def test_bytes_of_strings_stay_as_they_are(value):
    array = np.array([value], object)
    text = write_predictions({"x_bytes": array}, True)
    body = text.replace(b'"predictions"', b'"instances"')
    assert read(body, "string").tolist() == [value]
    text = write_predictions({"x": array}, True)
    body = text.replace(b'"predictions"', b'"instances"')
    assert read(body, "string").tolist() == [value]


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
    lambda key, value: json.dumps({key: value}).encode(),
    some.sampled_from(["instances", "inputs", "examples", "context"]),
    JSON,
)
PIECES = some.lists(
    some.sampled_from(
        b'{ } [ ] : , " "instances": \\ u 1 . e - NaN nu \\ud800 \xff'.split()
    ),
    max_size=12,
).map(b"".join)


@EXAMPLES
@hypothesis.given(
    some.one_of(some.binary(), DOCUMENTS, PIECES),
    some.sampled_from(["float32", "float16", "int8", "string", "pair"]),
)
def test_any_body_is_read_or_refused(body, dtype):
    for reader in (
        lambda b: read_predict_request(b, infos_of(dtype)),
        read_examples,
    ):
        with contextlib.suppress(ServingError):
            reader(body)


@EXAMPLES
@hypothesis.given(JSON, some.sampled_from(["float32", "int8", "string"]))
def test_arrays_made_at_once_are_those_made_one_by_one(value, dtype):
    number = TYPES[dtype].inputs["x"].dtype
    shape = tensors.shape_of(value)
    try:
        leaves = list(tensors.collect(value, shape, number))
        slow = tensors.make_array(leaves, shape, number)
    except ServingError:
        slow = None
    fast = tensors.try_array(value, number)
    assert (fast is None) == (slow is None)
    if fast is not None:
        assert fast.shape == slow.shape
        np.testing.assert_array_equal(fast, slow)


def text_array(*lines):
    return np.array(lines, object)


def test_inputs_are_checked_in_tensorflow_servings_words():
    n_best = DEMO["n_best"]
    check_inputs(n_best, {"text": text_array(b"x")})
    with pytest.raises(ServingError) as error:
        check_inputs(n_best, {"alpha": np.float32(1), "x": np.float32(1)})
    assert str(error.value) == (
        "input size does not match signature: 2!=4 len({alpha,x}) != "
        "len({alpha,beam_size,max_length,text}). Sent extra: {x}. Missing but "
        "required: {text}."
    )
    with pytest.raises(ServingError) as error:
        check_inputs(DEMO["explain"], {"y": text_array(b"x")})
    assert str(error.value) == (
        "input tensor alias not found in signature: y. Inputs expected to be "
        "in the set {text}."
    )
    wrong = {"text": types_pb2.DT_STRING, "beam_size": types_pb2.DT_BOOL}
    with pytest.raises(ServingError) as error:
        check_dtypes(n_best, wrong)
    # The tensors' names are in the order beam_size, text.
    assert str(error.value) == "Expects arg[0] to be int32 but bool is provided"


def test_outputs_are_chosen_in_tensorflow_servings_words():
    score = DEMO["score"]
    assert choose_outputs(score, ["truncated"]) == ["truncated"]
    assert choose_outputs(score, []) == ["pieces", "score", "truncated"]
    with pytest.raises(ServingError) as error:
        choose_outputs(score, ["x"])
    assert str(error.value) == (
        "output tensor alias not found in signature: x Outputs expected to be "
        "in the set {pieces,score,truncated}."
    )
    with pytest.raises(
        ServingError, match="duplicate output tensor alias: score"
    ):
        choose_outputs(score, ["score", "score"])


def test_signatures_are_found_by_name():
    assert find_signature(DEMO, "") is DEMO["serving_default"]
    with pytest.raises(ServingError) as error:
        find_signature(DEMO, "x")
    assert str(error.value) == 'Serving signature key "x" not found.'
    assert error.value.code == "FAILED_PRECONDITION"
    assert signature({}, {}).method_name == "tensorflow/serving/predict"
