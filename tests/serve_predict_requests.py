"""Requests for predictions and their answers: plain data, as `Row` has it."""

import re

from serve_requests import (
    HANDLER,
    JSON,
    RAPIDJSON,
    Row,
    error,
    failed,
    predict,
)

PARSE = "JSON Parse error: "
# Document, RapidJSON's text, and offset.
DOCUMENTS = [
    ("instances = [1, 2]", "Invalid value.", 0),
    (" \n", "The document is empty.", 2),
    ("}", "The document is empty.", 0),
    ("{", "Missing a name for object member.", 1),
    ('{"a": 1,}', "Missing a name for object member.", 8),
    ("{a: 1}", "Missing a name for object member.", 1),
    ('{"a" 1}', "Missing a colon after a name of object member.", 5),
    ('{"a":', "Invalid value.", 5),
    ('{"a": nul}', "Invalid value.", 9),
    ('{"a": -}', "Invalid value.", 7),
    ('{"a": [1,]}', "Invalid value.", 9),
    ('{"a": 1 "b"}', "Missing a comma or '}' after an object member.", 8),
    ('{"a": {"]": 1', "Missing a comma or '}' after an object member.", 13),
    (
        '{"a": [{}, "}" 1]}',
        "Missing a comma or ']' after an array element.",
        15,
    ),
    ('{"a": [01]}', "Missing a comma or ']' after an array element.", 8),
    ('{"a": 1.}', "Miss fraction part in number.", 8),
    ('{"a": 1.5e+}', "Miss exponent in number.", 11),
    ('{"a": [1e999]}', "Number too big to be stored in double.", 7),
    ('{"a": ' + "9" * 400 + "}", "Number too big to be stored in double.", 6),
    ('{"a": "', "Missing a closing quotation mark in string.", 7),
    ('{"é": "\t"}', "Invalid escape character in string.", 8),
    ('{"é": "\\x"}', "Invalid escape character in string.", 8),
    ('{"a": "\\u00g0"}', "Incorrect hex digit after \\u escape in string.", 7),
    ('{"a": "\\\\\\ud800"}', "The surrogate pair in string is invalid.", 9),
    ('{"a": "\\ud800\\u0041"}', "The surrogate pair in string is invalid.", 7),
    ("\ufeff{", "Missing a name for object member.", 4),
]
PARSING = [
    failed(RAPIDJSON, body, f"{PARSE}{text} at offset: {offset}")
    for body, text, offset in DOCUMENTS
]
PARSING += [
    failed(JSON, "", PARSE + "The document is empty"),
    failed(JSON, "[1, 2]", "JSON Value: [\n    1,\n    2\n] Is not object"),
    failed(JSON, '"x"', 'JSON Value: "x" Is not object'),
    failed(JSON, "1e2", "JSON Value: 100.0 Is not object"),
    failed(JSON, "NaN", "JSON Value: NaN Is not object"),
    failed(JSON, "{}", "Missing 'inputs' or 'instances' key"),
    failed(JSON, '{"signature_name": 5, "instances": ["x"]}',
           'JSON Value: {\n    "signature_name": 5,\n    "instances": [\n'
           '        "x"\n    ]\n} not formatted correctly. '
           "'signature_name' key must be a string value."),
    failed(HANDLER, '{"signature_name": "nope", "instances": ["x"]}',
           'Serving signature name: "nope" not found in signature def'),
    failed(JSON, '{"instances": ["x"], "inputs": ["x"]}',
           'JSON Value: {\n    "instances": [\n        "x"\n    ],\n'
           '    "inputs": [\n        "x"\n    ]\n} Not formatted correctly '
           "expecting only one of 'inputs' or 'instances' keys to exist "),
    failed(JSON, '{"instances": {"b": [0.25, 1e30, true, null]}}',
           'JSON Value: {\n    "instances": {\n        "b": [\n'
           "            0.25,\n            1e30,\n            true,\n"
           "            null\n        ]\n    }\n} Excepting 'instances' to be "
           "an list/array"),
    failed(JSON, '{"instances": []}',
           'JSON Value: {\n    "instances": []\n} '
           "No values in 'instances' array"),
    failed(JSON, '{"signature_name": "no_inputs", "inputs": 1}',
           "Failed to get input map for signature: no_inputs", model="types"),
]  # fmt: skip

ELEMENT = "Failed to process element: "
OF_LIST = " of 'instances' list. Error: INVALID_ARGUMENT: "
AS_OBJECTS = "as multiple input tensors required as per tensorinfo_map"
STRING = " Type: {} is not of expected type: string"
# Fields of the request, and the message; of `demo`.
WRONG = [
    ('"instances": ["x", 1]',
     ELEMENT + "1" + OF_LIST + "JSON Value: 1" + STRING.format("Number")),
    ('"instances": [null]',
     ELEMENT + "0" + OF_LIST + "JSON Value: null" + STRING.format("Null")),
    ('"instances": [{"text": true}]',
     ELEMENT + "0 key: text" + OF_LIST + "JSON Value: true"
     + STRING.format("True")),
    ('"instances": ["x", ["x"]]',
     ELEMENT + "1" + OF_LIST + "Expecting shape [] but got: [1]"),
    ('"instances": [["x", "y"], ["x"]]',
     ELEMENT + "1" + OF_LIST + "Expecting tensor size: 2 but got: 1"),
    ('"instances": [["x", "y"], [["x", "y"]]]',
     ELEMENT + "1" + OF_LIST + "Expecting shape [2] but got: [1,2]"),
    ('"instances": [["x", ["y"]]]',
     ELEMENT + "0" + OF_LIST
     + "Encountered list at unexpected level: 1 expected < 1"),
    ('"instances": [[["x"], "y"]]',
     ELEMENT + "0" + OF_LIST + 'JSON Value: "y" found at incorrect level: 2 in '
     "the JSON DOM. Expected at level: 2"),
    ('"instances": [[["x"], ["y", "z"]]]',
     ELEMENT + "0" + OF_LIST
     + "Encountered list at unexpected size: 2 at level: 1 expected size: 1"),
    ('"instances": [{"text": "x"}, "y"]',
     "Expecting object but got list at item 1 of input list"),
    ('"instances": ["x", {"text": "y"}]',
     "Expecting value/list but got object at item 1 of input list"),
    ('"instances": [{"text": "x", "b": 1}]',
     ELEMENT + "0 key: b" + OF_LIST
     + "JSON object: does not have named input: b"),
    ('"instances": [{}]',
     ELEMENT + "0 of 'instances' list. JSON object: {} keys must be equal to: "
     "text"),
    ('"signature_name": "score", "instances": [{"text": "x"}]',
     ELEMENT + "0 of 'instances' list. JSON object: {\n    \"text\": \"x\"\n} "
     "keys must be equal to: text,translation"),
    ('"signature_name": "score", "instances": ["x"]',
     "instances is a plain list, but expecting list of objects " + AS_OBJECTS),
    ('"signature_name": "score", "inputs": ["x"]',
     "inputs is a plain value/list, but expecting an object " + AS_OBJECTS),
    ('"signature_name": "score", "inputs": {"text": ["x"]}',
     "Missing named input: translation in 'inputs' object."),
    # Defaults are of no use here.
    ('"signature_name": "n_best", "inputs": {"text": ["x"]}',
     "Missing named input: alpha in 'inputs' object."),
    ('"inputs": {"text": 1.0}',
     "JSON Value: 1.0" + STRING.format("Number")),
    ('"inputs": {"text": {"b64": 1}}',
     'JSON Value: {\n    "b64": 1\n} not formatted correctly for base64 data'),
    ('"inputs": {"text": [{"b64": "YQ==", "x": 1}]}',
     'JSON Value: {\n    "b64": "YQ==",\n    "x": 1\n} not formatted correctly '
     "for base64 data"),
    ('"inputs": [{"b64": "YQ="}]', "Unable to base64 decode"),
    ('"inputs": [{"b64": "a-_b"}]', "Unable to base64 decode"),
    ('"inputs": ["x", ["y"]]',
     "Encountered list at unexpected level: 1 expected < 1"),
    ('"inputs": {"text": [[], ["y"]]}',
     "Encountered list at unexpected size: 1 at level: 1 expected size: 0"),
]  # fmt: skip
WRONG_INPUTS = [failed(JSON, f"{{{body}}}", text) for body, text in WRONG]

EXACT = "Cannot convert JSON value: {} to {} without loss of precision."
OF = "JSON Value: {} Type: {} is not of expected type: {}"
# Signature of `types`, the value of `inputs`, and the message.
WRONG_DTYPES = [
    ("float32", "16777216", EXACT.format("16777216", "float")),
    ("float32", "1e39", EXACT.format("1e+39", "float")),
    ("float32", "-16777216", EXACT.format("-16777216", "float")),
    ("float32", "18446744073709551615",
     EXACT.format("18446744073709551615", "float")),
    ("float32", '"x"', OF.format('"x"', "String", "float")),
    ("float32", "false", OF.format("false", "False", "float")),
    # RapidJSON does not write NaN, and stops.
    ("float32", '{"x": {"a": NaN}}',
     OF.format('{\n    "a": ', "Object", "float")),
    ("float64", "9007199254740993", EXACT.format("9007199254740993", "double")),
    ("int32", "1.0", OF.format("1.0", "Number", "int32")),
    ("int32", "0.1", OF.format("0.1", "Number", "int32")),
    ("int32", "2147483648", OF.format("2147483648", "Number", "int32")),
    ("int32", "true", OF.format("true", "True", "int32")),
    ("int32", "NaN", OF.format("NaN", "Number", "int32")),
    ("uint8", "-2147483649", OF.format("-2147483649", "Number", "uint8")),
    ("int64", "9223372036854775808",
     OF.format("9223372036854775808", "Number", "int64")),
    ("uint32", "-1", OF.format("-1", "Number", "uint32")),
    ("uint64", "18446744073709551616",
     OF.format("1.84467441e+19", "Number", "uint64")),
    ("bool", "1", OF.format("1", "Number", "bool")),
    ("int64", '{"b64": "YQ=="}',
     OF.format('{\n    "b64": "YQ=="\n}', "Object", "int64")),
]  # fmt: skip
UNKNOWN_DTYPES = [
    Row(JSON, *predict(f'{{"signature_name": "{name}", "inputs": 1}}', "types"),
        501, error(f"Conversion of JSON Value: 1 to type: {kind}"))
    for name, kind in [("float16", "half"), ("uint16", "uint16")]
]  # fmt: skip
DTYPE_ERRORS = UNKNOWN_DTYPES + [
    failed(JSON, f'{{"signature_name": "{name}", "inputs": {value}}}', message,
           model="types")
    for name, value, message in WRONG_DTYPES
]  # fmt: skip

# Signature of `types`, the rest of the request, and the fields of the answer.
ANSWERS = [
    ("float32", '"instances": [1, 2.0, 0.1, 3e-5, 16777215, 9e6, 555557.5]',
     '"predictions": [1.0, 2.0, 0.1, 3e-05, 16777215.0, 9e+06, 555557.5\n'
     "    ]"),
    ("float32", '"instances": [NaN, Infinity, -Infinity, -0.0, 1e-60]',
     '"predictions": [NaN, Infinity, -Infinity, -0.0, 0.0\n    ]'),
    ("float32", '"instances": [0.3333333333, 3.4028234663852886e38, 123456789.0'
     "]", '"predictions": [0.333333343, 3.40282347e+38, 123456792.0\n    ]'),
    ("float64", '"instances": [1, 0.1, 0.3333333333333333, -0, 1e300]',
     '"predictions": [1.0, 0.1, 0.33333333333333331, 0.0, 1e+300\n    ]'),
    ("int32", '"instances": [-2147483648, -0]',
     '"predictions": [-2147483648, 0\n    ]'),
    ("int32", '"instances": [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]',
     '"predictions": [[[1, 2], [3, 4]], [[5, 6], [7, 8]]\n    ]'),
    ("int32", '"instances": [[], []]', '"predictions": [[], []\n    ]'),
    ("int32", '"inputs": []', '"outputs": []'),
    ("int32", '"inputs": [[], []]',
     '"outputs": [\n        [],\n        []\n    ]'),
    ("int32", '"inputs": [[1], [2]]',
     '"outputs": [\n        [\n            1\n        ],\n        [\n'
     "            2\n        ]\n    ]"),
    ("int8", '"instances": [300]', '"predictions": [44\n    ]'),
    ("uint8", '"inputs": 255', '"outputs": 255'),
    ("int64", '"inputs": -9223372036854775808',
     '"outputs": -9223372036854775808'),
    ("uint64", '"inputs": 18446744073709551615',
     '"outputs": 18446744073709551615'),
    ("uint32", '"inputs": 4294967295', '"outputs": 4294967295'),
    ("bool", '"instances": [true, false]',
     '"predictions": [true, false\n    ]'),
    ("string", '"instances": ["\\u00e9\\ud83d\\ude00\\/\\u0000\\u001f\x7f\\n"]',
     '"predictions": ["é😀/\\u0000\\u001F\x7f\\n"\n    ]'),
    ("string", '"instances": [{"b64": "aGVsbG8="}, "x", {"b64": " d29 ybGQ"}]',
     '"predictions": ["hello", "x", "world"\n    ]'),
    ("string", '"instances": [{"x": {"b64": "YQ.."}}]',
     '"predictions": ["a"\n    ]'),
    ("string", '"inputs": {"b64": "aGVsbG8="}', '"outputs": "hello"'),
    ("string", '"inputs": {"x": ["a"], "other": 1}',
     '"outputs": [\n        "a"\n    ]'),
    # The first of members with one name.
    ("string", '"inputs": "a", "inputs": 1', '"outputs": "a"'),
    ("string", '"inputs": {"x": "a", "x": 1}', '"outputs": "a"'),
    ("to_bytes", '"instances": ["hello"]',
     '"predictions": [{\n            "b64": "aGVsbG8="\n        }\n    ]'),
    ("to_bytes", '"inputs": ["tf"]',
     '"outputs": [\n        {\n            "b64": "dGY="\n        }\n    ]'),
    ("to_pair", '"instances": [["tf"]]',
     '"predictions": [\n        {\n            "y_bytes": [{\n'
     '                    "b64": "dGY="\n                }],\n'
     '            "z": ["tf"]\n        }\n    ]'),
    ("pair", '"instances": [{"a": 1, "b": ["x"]}, {"b": ["y"], "a": 2}]',
     '"predictions": [\n        {\n            "a": 1,\n'
     '            "b": ["x"]\n        },\n        {\n            "a": 2,\n'
     '            "b": ["y"]\n        }\n    ]'),
    ("pair", '"inputs": {"a": [1, 2, 3], "b": "x"}',
     '"outputs": {\n        "a": [\n            1,\n            2,\n'
     '            3\n        ],\n        "b": "x"\n    }'),
    ("empty", '"instances": [1.0]', '"predictions": []'),
    ("scalar", '"inputs": [1, 2]', '"outputs": 3.0'),
]  # fmt: skip
ANSWER_ROWS = [
    Row(JSON, *predict(f'{{"signature_name": "{name}", {request}}}', "types"),
        200, f"{{\n    {answer}\n}}".encode())
    for name, request, answer in ANSWERS
]  # fmt: skip
ANSWER_ERRORS = [
    failed(JSON, f'{{"signature_name": "{name}", "instances": [1, 2]}}', text,
           model="types")
    for name, text in [
        ("scalar", "Tensor name: y has no shape information "),
        ("uneven",
         "Tensor name: z has inconsistent batch size: 3 expecting: 2"),
        ("no_outputs", "Cannot convert empty tensor map to JSON"),
    ]
]  # fmt: skip
# These shapes are refused in our words; TensorFlow's operations would fail.
SHAPES = [
    failed("ours", '{"inputs": "x"}', "Input text has shape []. Expected "
           "shape: [-1], where -1 is any size."),
    failed("ours", '{"instances": [["x", "y"]]}', "Input text has shape [1,2]. "
           "Expected shape: [-1], where -1 is any size."),
    failed("ours",
           '{"signature_name": "two_columns", "instances": [[1, 2, 3]]}',
           "Input x has shape [1,3]. Expected shape: [-1,2], where -1 is any "
           "size.", model="types"),
]  # fmt: skip

FLOAT = rb"-?[0-9]+(\.[0-9]+(e-[0-9]+)?|e-[0-9]+)"
STRINGS = rb'"([^"\\\n]|\\.)*"'
LINE = (
    rb'        \{\n            "score": ' + FLOAT + rb",\n"
    rb'            "translation": ' + STRINGS + rb",\n"
    rb'            "truncated": false\n        \}'
)
N_BEST = '"beam_size": 2, "alpha": 0.6, "max_length": 10'
SERVED = [
    ('"instances": ["x"]', rb'"predictions": \[\n' + LINE + rb"\n    \]"),
    ('"instances": [{"text": "x"}, {"text": {"b64": "eQ=="}}]',
     rb'"predictions": \[\n' + LINE + rb",\n" + LINE + rb"\n    \]"),
    ('"inputs": ["x"]',
     rb'"outputs": \{\n        "score": \[\n            ' + FLOAT
     + rb'\n        \],\n        "translation": \[\n            ' + STRINGS
     + rb'\n        \],\n        "truncated": \[\n            false\n'
     rb"        \]\n    \}"),
    ('"signature_name": "n_best", "inputs": {"text": ["x"], ' + N_BEST + "}",
     rb'"outputs": \{\n        "score": \[\n            \[\n(                '
     + FLOAT + rb',?\n){2}            \]\n        \],\n'
     rb'        "translation": \[\n            \[\n(                '
     + STRINGS + rb",?\n){2}"
     rb'            \]\n        \],\n        "truncated": \[\n'
     rb"            false\n        \]\n    \}"),
    ('"signature_name": "score", "instances": [{"text": "x", "translation": '
     '"y"}]',
     rb'"predictions": \[\n        \{\n            "pieces": [0-9]+,\n'
     rb'            "score": ' + FLOAT + rb',\n            "truncated": false\n'
     rb"        \}\n    \]"),
    ('"signature_name": "explain", "instances": ["x"]',
     rb'"predictions": \[\n        \{\n            "attention": \[\[\[\[?.*'
     rb'\]\],\n            "score": ' + FLOAT
     + rb',\n            "source_pieces": \[.*\],\n'
     rb'            "target_pieces": \[.*\],\n            "translation": '
     + STRINGS + rb',\n            "truncated": false\n        \}\n    \]'),
]  # fmt: skip
SERVED_ROWS = [
    Row(JSON, *predict(f"{{{body}}}trailing bytes"), 200,
        re.compile(rb"\{\n    " + answer + rb"\n\}"), True)
    for body, answer in SERVED
]  # fmt: skip
# In row form, the scalar inputs of `n_best` would be one for each row.
SERVED_ROWS += [
    failed("ours", '{"signature_name": "n_best", "instances": [{"text": "x", '
           + N_BEST + "}]}", "Input alpha has shape [1]. Expected shape: [], "
           "where -1 is any size."),
]  # fmt: skip
NOT_UTF8 = [
    Row(JSON, "POST /v1/models/types:predict",
        b'{"signature_name": "string", "instances": ["\xff\xc3", '
        b'"\xed\xa0\x80"]}',
        200, b'{\n    "predictions": ["\xff\xc3", "\xed\xa0\x80"\n    ]\n}'),
    Row(JSON, "POST /v1/models/types:predict",
        b'{"signature_name": "int32", "inputs": "\xff"}', 400,
        b'{\n    "error": "JSON Value: \\"\xff\\" Type: String is not of '
        b'expected type: int32"\n}'),
]  # fmt: skip

PREDICT_ROWS = [
    *PARSING,
    *WRONG_INPUTS,
    *DTYPE_ERRORS,
    *ANSWER_ROWS,
    *ANSWER_ERRORS,
    *SHAPES,
    *SERVED_ROWS,
    *NOT_UTF8,
]
