"""Checks of the server as a process: clients, versions, failures, load.

Run by `make test-serve`. The environment variable `SERVE_OPTIONS` has options
for every server, such as another engine.
"""

import concurrent.futures
import gzip
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import ssl
import time

import grpc
import numpy as np
import ovmsclient
import pytest
import tensorflow as tf
from serve_requests import ROWS, check_answer
from serving import (
    Load,
    Server,
    make_certificate,
    translations,
    wait_until,
)
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from keras_transformer.export.files import MODEL_FILES
from keras_transformer.integrations import ctranslate2

TEXTS = [
    "Room 7 is on the third floor.",
    "It costs €5.",
    "The train to Vienna leaves at half past six from platform 12.",
    "Yes.",
    "",
]
ON_CTRANSLATE2 = "ctranslate2" in os.environ.get("SERVE_OPTIONS", "")
REFUSED = re.compile(rb'"signature_name": "(score|explain)"')
# TensorFlow Serving shows the last one, too.
SIGNATURES = {"serving_default", "n_best"}
if not ON_CTRANSLATE2:
    SIGNATURES |= {"score", "explain", "__saved_model_init_op"}
SERVED = [row for row in ROWS if row.served]


@pytest.fixture(scope="module")
def exported(run, exported, tmp_path_factory):
    if not ON_CTRANSLATE2:
        return exported
    path = tmp_path_factory.mktemp("engines") / "small" / "1"
    return ctranslate2.export(run, path)


def weights_of(path):
    """Returns the file of an export's weights."""
    (file,) = [*path.glob("model.bin"), *path.glob("variables/*.data*")]
    return file


@pytest.fixture(scope="module")
def expected(exported):
    """Returns the translation of each text, by the export itself."""
    return translations(exported, TEXTS)


@pytest.fixture(scope="module")
def folder(exported, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "demo"
    shutil.copytree(exported, folder / "1")
    return folder


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory):
    log = tmp_path_factory.mktemp("logs") / "server.txt"
    server = Server(folder, log, "--poll-seconds", "0.2")
    yield server
    assert server.stop() == 0
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize("row", SERVED, ids=lambda row: row.request[-60:])
def test_the_table_of_requests_holds_by_http(server, row):
    method, path = row.request.split(" ", 1)
    headers = {"Origin": row.origin} if row.origin else {}
    if not path.isascii() or set(path) & set(" \r\n\0"):
        path = path.encode("latin-1", "replace").decode("latin-1")
    status, _, body = server.request(method, path, row.body, headers)
    if ON_CTRANSLATE2 and REFUSED.search(row.body):
        print(row.body.decode(), body.decode())
        row = row._replace(status=400, answer=None)
    check_answer(row, status, body)


def test_a_request_may_name_its_host_or_ask_for_a_web_socket(server):
    assert server.request("GET", "http://elsewhere/healthz")[0] == 200
    assert server.request("GET", "http://elsewhere/nowhere")[0] == 404
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}
    assert server.request("GET", "/healthz", b"", upgrade)[0] == 200
    assert "websockets" not in server.log.read_text()


def test_answers_are_those_of_the_export(server, expected):
    assert server.translate(*TEXTS) == list(expected.values())
    for text in TEXTS:
        assert server.translate(text) == [expected[text]]


def test_the_official_grpc_stubs(server, expected):
    with grpc.insecure_channel(server.grpc_address) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        request = predict_pb2.PredictRequest(output_filter=["translation"])
        request.model_spec.name = "demo"
        request.inputs["text"].CopyFrom(tf.make_tensor_proto(TEXTS))
        response = stub.Predict(request, timeout=60)
        (output,) = response.outputs.values()
        assert [text.decode() for text in output.string_val] == list(
            expected.values()
        )
        assert response.model_spec.version.value == 1

        # The scalars of `n_best` have defaults; the alternatives differ.
        request = predict_pb2.PredictRequest()
        request.model_spec.name = "demo"
        request.model_spec.signature_name = "n_best"
        request.inputs["text"].CopyFrom(tf.make_tensor_proto(TEXTS[:2]))
        request.inputs["beam_size"].CopyFrom(tf.make_tensor_proto(3))
        response = stub.Predict(request, timeout=60)
        scores = tf.make_ndarray(response.outputs["score"])
        assert scores.shape == (2, 3)
        assert (np.diff(scores) <= 0).all()

        metadata = get_model_metadata_pb2.GetModelMetadataRequest(
            metadata_field=["signature_def"]
        )
        metadata.model_spec.name = "demo"
        signatures = get_model_metadata_pb2.SignatureDefMap()
        answer = stub.GetModelMetadata(metadata, timeout=60)
        assert answer.metadata["signature_def"].Unpack(signatures)
        assert set(signatures.signature_def) == SIGNATURES

        status = get_model_status_pb2.GetModelStatusRequest()
        status.model_spec.name = "demo"
        models = model_service_pb2_grpc.ModelServiceStub(channel)
        (state,) = models.GetModelStatus(status).model_version_status
        assert (state.version, state.state) == (1, 30)  # AVAILABLE


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"name": "other"}, "NOT_FOUND", '"other" is not served'),
        ({"version": 7}, "NOT_FOUND", 'Version 7 of model "demo"'),
        ({"version_label": "x"}, "INVALID_ARGUMENT", 'label "x"'),
        ({"signature_name": "x"}, "FAILED_PRECONDITION", 'Received: .*"x"'),
        ({"dtype": tf.int32}, "INVALID_ARGUMENT", "string. Received: int32"),
        ({"input": "txt"}, "INVALID_ARGUMENT", r'Received: \["txt"\]'),
        ({"timeout": 0.0001}, "DEADLINE_EXCEEDED", ""),
    ],
    ids=lambda value: str(value)[:30],
)
def test_errors_by_grpc(server, change, code, message):
    request = predict_pb2.PredictRequest()
    request.model_spec.name = change.get("name", "demo")
    request.model_spec.signature_name = change.get("signature_name", "")
    if "version" in change:
        request.model_spec.version.value = change["version"]
    if "version_label" in change:
        request.model_spec.version_label = change["version_label"]
    values = [1] if "dtype" in change else TEXTS
    request.inputs[change.get("input", "text")].CopyFrom(
        tf.make_tensor_proto(values)
    )
    with grpc.insecure_channel(server.grpc_address) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.Predict(request, timeout=change.get("timeout", 60))
    assert caught.value.code().name == code
    assert re.search(message, caught.value.details())


def test_ovmsclient_by_grpc_and_by_rest(server, expected):
    """It is another implementation of the protocols, without TensorFlow."""
    clients = (
        ovmsclient.make_grpc_client(server.grpc_address),
        ovmsclient.make_http_client(f"127.0.0.1:{server.port}"),
    )
    for client in clients:
        found = client.predict({"text": TEXTS[:3]}, "demo", 1)
        translations = [bytes_of(text) for text in found["translation"]]
        assert translations == [expected[t].encode() for t in TEXTS[:3]]
        assert found["score"].shape == (3,)
        # Each client gives these in a form of its own.
        assert "DT_STRING" in f"{client.get_model_metadata('demo', 1)}"
        assert "AVAILABLE" in f"{client.get_model_status('demo', 1)}"


def bytes_of(text):
    return text.encode() if isinstance(text, str) else bytes(text)


def test_https_and_secure_grpc(folder, tmp_path, expected):
    certificate, key = make_certificate(tmp_path, "localhost")
    options = "--tls-certificate", certificate, "--tls-key", key
    server = Server(folder, tmp_path / "log.txt", *options)
    context = ssl.create_default_context(cafile=certificate)
    connection = http.client.HTTPSConnection(
        "localhost", server.port, context=context
    )
    connection.request("GET", "/readyz")
    assert connection.getresponse().read() == b"ready\n"
    connection.close()
    credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
    address = f"localhost:{server.grpc_address.rsplit(':')[-1]}"
    with grpc.secure_channel(address, credentials) as channel:
        stub = model_service_pb2_grpc.ModelServiceStub(channel)
        request = get_model_status_pb2.GetModelStatusRequest()
        request.model_spec.name = "demo"
        assert stub.GetModelStatus(request, timeout=60).model_version_status
    assert server.stop() == 0


def test_a_request_that_offers_http2_is_answered(server, expected):
    """Java's client sends such ones."""
    headers = {
        "Connection": "Upgrade, HTTP2-Settings",
        "Upgrade": "h2c",
        "HTTP2-Settings": "AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
    }
    body = json.dumps({"instances": TEXTS[:1]})
    path = "/v1/models/demo:predict"
    status, _, answer = server.request("POST", path, body, headers)
    assert (status, expected[TEXTS[0]] in answer.decode()) == (200, True)


def test_compressed_bodies_and_limits(server, expected):
    path = "/v1/models/demo:predict"
    parts = b'{"instances": [', json.dumps(TEXTS[0]).encode() + b"]}"
    body = b"".join(map(gzip.compress, parts))
    headers = {"Content-Encoding": "gzip"}
    status, _, answer = server.request("POST", path, body, headers)
    assert status == 200
    assert expected[TEXTS[0]] in answer.decode()
    bomb = gzip.compress(b" " * 50_000_000)
    status, _, answer = server.request("POST", path, bomb, headers)
    assert status == 413
    assert "error" in json.loads(answer)
    padded = server.request("POST", path, body + bytes(9), headers)
    assert padded[0] == 200
    for wrong in (b"no gzip", body[:-9], gzip.compress(b"") * 200):
        status, _, answer = server.request("POST", path, wrong, headers)
        assert status == 400
        assert "gzip" in json.loads(answer)["error"]
    with socket.create_connection(("127.0.0.1", server.port), 30) as client:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\n"
        client.sendall(f"{head}Content-Length: 50000000\r\n\r\n".encode())
        assert client.recv(100).startswith(b"HTTP/1.1 413")
    # More than may wait, which is accepted while nothing waits.
    large = json.dumps({"instances": ["a", "b"] * 1_250})
    status, _, answer = server.request("POST", path, large)
    assert status == 200
    found = [row["translation"] for row in json.loads(answer)["predictions"]]
    assert found == server.translate("a", "b") * 1_250
    many = json.dumps({"instances": ["a"] * 10_001})
    status, _, answer = server.request("POST", path, many)
    assert status == 400
    assert "10,000 rows" in json.loads(answer)["error"]


def test_health_metrics_and_the_page(server):
    server.translate("Yes.")
    assert server.request("GET", "/healthz")[0] == 200
    assert server.request("GET", "/readyz")[0] == 200
    status, _, metrics = server.request("GET", "/metrics")
    assert status == 200
    for name in ("requests_total", "rows_total", "queue_rows", "batch_rows"):
        assert f"keras_transformer_{name}" in metrics.decode()
    status, headers, page = server.request("GET", "/")
    assert status == 200
    assert "default-src 'none'" in headers["content-security-policy"]
    for name in re.findall(r'(?:src|href)="([a-z]+\.(?:js|css))"', f"{page}"):
        assert server.request("GET", f"/{name}")[0] == 200
    status, _, models = server.request("GET", "/api/models")
    (model,) = json.loads(models)["models"]
    assert (model["name"], model["version"]) == ("demo", "1")
    assert (model["source"], model["target"]) == ("en", "de")
    status, _, split = server.request(
        "POST",
        "/api/split",
        json.dumps({"text": "Yes.\n\nNo.", "language": "en"}),
    )
    assert json.loads(split)["sentences"] == ["Yes.", "No."]
    assert server.request("GET", "/nowhere")[0] == 404
    assert server.request("POST", "/api/models")[0] == 405
    assert server.request("POST", "/api/split", "{")[0] == 400


def malformed_bodies(count):
    """Yields values of any dtype and shape, which the graph may refuse."""
    draw = random.Random(7)
    for _ in range(count):
        name = draw.choice(["n_best", "score", "explain", "nothing"])
        inputs = {
            key: draw.choice([["a"], "a", 1, [1.5], None, -1, []])
            for key in draw.sample(
                ["text", "beam_size", "alpha", "max_length", "translation"],
                draw.randint(0, 5),
            )
        }
        document = {"signature_name": name, "inputs": inputs}
        yield json.dumps(document).encode()


def test_malformed_bodies_get_an_answer(server, expected):
    path = "/v1/models/demo:predict"

    def answer(body):
        return server.request("POST", path, body)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for status, _, body in pool.map(answer, malformed_bodies(500)):
            assert status == 200 or 400 <= status < 500, body
            assert isinstance(json.loads(body), dict)
    assert server.translate(TEXTS[0]) == [expected[TEXTS[0]]]


def test_broken_connections_do_no_harm(server, expected):
    head = b"POST /v1/models/demo:predict HTTP/1.1\r\nHost: x\r\n"
    body = json.dumps({"instances": TEXTS[:1]}).encode()
    whole = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    for data, wait in (
        (b"GARBAGE\r\n\r\n", True),
        (head, False),  # goes away within the header
        (head + b"Content-Length: 100\r\n\r\nabc", False),  # within the body
        (head + b"Content-Length: -5\r\n\r\n", True),
        (head + b"Content-Length: abc\r\n\r\n", True),
        (whole, False),  # does not wait for the answer
        (b"\x16\x03\x01" + bytes(200), True),  # TLS
    ):
        with socket.create_connection(("127.0.0.1", server.port), 30) as client:
            client.sendall(data)
            if wait:
                assert client.recv(100).startswith(b"HTTP/1.1 4")
    # A slow client is served, since each of its bytes comes in time.
    with socket.create_connection(("127.0.0.1", server.port), 30) as client:
        for i in range(0, len(whole), 40):
            client.sendall(whole[i : i + 40])
            time.sleep(0.01)
        assert client.recv(100).startswith(b"HTTP/1.1 200")
    assert server.translate(TEXTS[0]) == [expected[TEXTS[0]]]


def versions(server):
    """Returns the state of each version."""
    answer = json.loads(server.request("GET", "/v1/models/demo")[2])
    return {
        int(status["version"]): status["state"]
        for status in answer["model_version_status"]
    }


def test_versions_change_under_load(server, folder, expected):
    """A new version, damaged ones, a killed process, and the way back."""
    expected = {text: {answer} for text, answer in expected.items()}
    with Load(server, expected) as load:
        # Half of a version, and one with a damaged file, are passed over.
        half = folder / "3"
        half.mkdir()
        (name,) = {*MODEL_FILES.values()} & {*os.listdir(folder / "1")}
        shutil.copy(folder / "1" / name, half)
        wait_until(lambda: versions(server).get(3) == "END")
        damaged = folder / "4"
        shutil.copytree(folder / "1", folder / ".4")
        file = weights_of(folder / ".4")
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        os.rename(folder / ".4", damaged)
        wait_until(lambda: versions(server).get(4) == "END")
        assert versions(server)[1] == "AVAILABLE"
        log = server.log.read_text()
        assert "Version 3 of model demo is not served" in log
        assert "is not what was exported" in log
        shutil.rmtree(half)
        shutil.rmtree(damaged)

        shutil.copytree(folder / "1", folder / ".2")
        os.rename(folder / ".2", folder / "2")
        wait_until(lambda: versions(server).get(2) == "AVAILABLE")
        wait_until(lambda: versions(server)[1] == "END")

        before = load.answers
        for worker in server.workers():
            os.kill(worker, signal.SIGKILL)
        wait_until(lambda: load.answers > before + 20)

        shutil.rmtree(folder / "2")  # back to the first version
        wait_until(lambda: versions(server)[1] == "AVAILABLE")
        wait_until(lambda: versions(server)[2] == "END")
    assert load.failures == []
    assert load.answers > 100


@pytest.mark.skipif(
    "ray" in os.environ.get("SERVE_OPTIONS", ""),
    reason="Ray itself starts replicas again.",
)
def test_a_process_that_cannot_be_started_again_is_not_ready(
    exported, tmp_path
):
    folder = tmp_path / "demo"
    shutil.copytree(exported, folder / "1")
    server = Server(folder, tmp_path / "log.txt", "--timeout", "1")
    file = weights_of(folder / "1")
    data = file.read_bytes()
    file.write_bytes(data[:-1])
    (worker,) = server.workers()
    os.kill(worker, signal.SIGKILL)
    path, body = "/v1/models/demo:predict", json.dumps({"instances": ["a"]})
    wait_until(lambda: server.request("POST", path, body)[0] != 200)
    wait_until(lambda: server.request("GET", "/readyz")[0] == 503)
    assert server.request("GET", "/healthz")[0] == 200
    file.write_bytes(data)
    wait_until(lambda: server.request("GET", "/readyz")[0] == 200)
    assert server.request("POST", path, body)[0] == 200
    assert server.stop() == 0


@pytest.mark.parametrize("stop", [Server.stop, Server.interrupt, Server.end])
def test_signals_end_the_server_after_what_it_accepted(folder, tmp_path, stop):
    texts = [" ".join(TEXTS[:3])] * 40
    server = Server(folder, tmp_path / "log.txt", "--threads", "1")
    body = json.dumps({"inputs": {"text": texts}})
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        answers = [
            pool.submit(server.request, "POST", "/v1/models/demo:predict", body)
            for _ in range(5)
        ]
        wait_until(
            lambda: b"batch_rows_count" in server.request("GET", "/metrics")[2]
        )
        assert stop(server) == 0
        # The processes that compute were not ended by the signal.
        assert "is started again" not in server.log.read_text()
        for answer in answers:
            status, _, body = answer.result()
            assert status == 200
            assert len(json.loads(body)["outputs"]["translation"]) == 40


def test_a_token_and_a_full_queue(folder, tmp_path, expected):
    token = tmp_path / "token"
    token.write_text("secret\n")
    server = Server(
        folder,
        tmp_path / "log.txt",
        *("--token-file", token, "--max-queue-rows", "50", "--threads", "1"),
    )
    path = "/v1/models/demo:predict"
    body = json.dumps({"instances": [" ".join(TEXTS[:3])] * 40})
    status, headers, answer = server.request("POST", path, body)
    assert (status, headers["www-authenticate"]) == (401, "Bearer")
    assert "error" in json.loads(answer)
    assert server.request("GET", "/readyz")[0] == 200
    with grpc.insecure_channel(server.grpc_address) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.Predict(predict_pb2.PredictRequest(), timeout=60)
        assert caught.value.code().name == "UNAUTHENTICATED"

    headers = {"Authorization": "bearer secret"}

    def ask(_):
        return server.request("POST", path, body, headers)

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(ask, range(24)))
    found = {status for status, _, _ in answers}
    assert found == {200, 429}
    refused = next(answer for answer in answers if answer[0] == 429)
    assert int(refused[1]["retry-after"]) >= 1
    assert "is full" in json.loads(refused[2])["error"]
    assert server.stop(signal.SIGINT) == 0
