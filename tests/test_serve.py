"""Tests of parts of the server: config files, batches by length."""

import asyncio
import json
import re
import socket
import time

import numpy as np
import pytest
import tensorflow as tf
from serve_fakes import FakeRegistry
from serving import make_certificate
from tensorflow.core.framework.tensor_pb2 import TensorProto

from keras_transformer.cli.main import main
from keras_transformer.integrations.ray import RaySettings
from keras_transformer.serve import engine as engine_module
from keras_transformer.serve import grpc_services, rest, server, worker
from keras_transformer.serve import served_model as served_model_module
from keras_transformer.serve.access import Tokens
from keras_transformer.serve.batching import MOST_PATIENCE, QueuedRows, RowQueue
from keras_transformer.serve.errors import (
    ProcessEndedError,
    ServingError,
    VersionEndedError,
)
from keras_transformer.serve.http_app import Application
from keras_transformer.serve.metrics import Metrics
from keras_transformer.serve.model_config import (
    config_of_path,
    read_config_file,
)
from keras_transformer.serve.model_registry import ModelRegistry
from keras_transformer.serve.served_model import ServedModel
from keras_transformer.serve.settings import ServeSettings
from keras_transformer.serve.signatures import read_signatures


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "No export in"),
        ([], "either MODEL or --config"),
        (["--config", "missing.txt"], "missing.txt"),
        (["--ray-replicas", "2", "."], "`--ray-replicas` needs `--engine ray`"),
    ],
)
def test_errors_of_the_command(arguments, message, capsys):
    assert main(["serve", *arguments]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.parametrize("option", ["--port", "--grpc-port"])
def test_a_port_that_is_in_use(option, exported, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        other = {"--port": "0", "--grpc-port": "0"} | {option: port}
        arguments = [word for pair in other.items() for word in pair]
        assert main(["serve", str(exported), *arguments]) == 1
    assert f"Choose another with {option}" in capsys.readouterr().err


CONFIG = """
model_config_list {
  config { name: "a" base_path: "models/a" model_platform: "tensorflow" }
  config {
    name: "b" base_path: "/models/b"
    model_version_policy { specific { versions: 2 versions: 5 } }
    version_labels { key: "stable" value: 2 }
  }
  config { name: "c" base_path: "/c" model_version_policy { all {} } }
  config {
    name: "d" base_path: "/d"
    model_version_policy { latest { num_versions: 2 } }
  }
}
"""


def test_config_files_of_tensorflow_serving(tmp_path):
    file = tmp_path / "models.txt"
    file.write_text(CONFIG)
    a, b, c, d = read_config_file(file)
    assert a.base_path == tmp_path / "models" / "a"
    found = [1, 2, 3, 5, 10]
    assert a.wanted(found) == [10]
    assert b.wanted(found) == [5, 2]
    assert b.labels == {"stable": 2}
    assert c.wanted(found) == [10, 5, 3, 2, 1]
    assert d.wanted(found) == [10, 5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "lists none"),
        ("model_config_list {", "no config file"),
        ('model_config_list { config { name: "a" } }', "`base_path`"),
        (
            'model_config_list { config { name: "a" base_path: "b" '
            'model_platform: "torch" } }',
            "`model_platform`",
        ),
        (
            'model_config_list { config { name: "a" base_path: "b" } '
            'config { name: "a" base_path: "c" } }',
            "more than once",
        ),
    ],
)
def test_wrong_config_files(text, message, tmp_path):
    file = tmp_path / "models.txt"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_config_file(file)


def test_a_path_of_a_model_or_of_a_version(exported):
    model = config_of_path(exported.parent)
    assert (model.name, model.base_path) == ("small", exported.parent)
    assert model.wanted([1, 2]) == [2]
    version = config_of_path(exported)
    assert version.name == "small"
    assert version.wanted([1, 2]) == [1]


def items(lengths, key="k"):
    loop = asyncio.new_event_loop()
    made = [
        QueuedRows(key, {}, 1, length, length, loop.create_future(), float(i))
        for i, length in enumerate(lengths)
    ]
    loop.close()
    return made


def test_batches_have_rows_of_similar_length():
    queue = RowQueue(max_batch_rows=64)
    queue.put(items([500, 20, 510, 25, 480, 30] * 3))
    batches = []
    while batch := queue.take(threads=1):
        batches.append(sorted(item.length for item in batch))
    assert sorted(batches) == [
        [20, 20, 20, 25, 25, 25, 30, 30, 30],
        [480, 480, 480, 500, 500, 500, 510, 510, 510],
    ]
    assert queue.rows == 0


def test_short_rows_go_first_and_long_ones_do_not_starve():
    queue = RowQueue(max_batch_rows=64)
    waiting = items([1000, 10])
    queue.put(waiting)
    assert queue.take(1) == [waiting[1]]
    (late,) = items([10])
    late.arrival = MOST_PATIENCE
    queue.put([late])
    assert queue.take(1) == [waiting[0]]


def test_batches_have_one_key_a_limit_and_no_abandoned_rows():
    queue = RowQueue(max_batch_rows=16)
    queue.put(items([10] * 40) + items([10] * 5, key="other"))
    abandoned = items([10] * 3)
    for item in abandoned:
        item.answer.cancel()
    queue.put(abandoned)
    sizes = []
    while batch := queue.take(threads=2):
        assert len({item.key for item in batch}) == 1
        sizes.append(len(batch))
    assert sum(sizes) == 45
    assert max(sizes) == 16


def test_without_lengths_rows_are_taken_as_they_arrive():
    queue = RowQueue(max_batch_rows=4, by_length=False)
    waiting = items([500, 20, 510, 25, 480, 30])
    queue.put(waiting)
    assert queue.take(1) == waiting[:4]
    assert queue.take(1) == waiting[4:]


class FakeEngine:
    """Translates by upper case, one batch at a time, when it is allowed to."""

    slots = 1
    is_running = True

    def __init__(self, errors=()):
        self.errors = list(errors)
        self.batches = []
        self.may_compute = asyncio.Event()
        self.may_compute.set()

    async def compute(self, signature_name, inputs):
        await self.may_compute.wait()
        texts = inputs["text"].tolist()
        self.batches.append(texts)
        if self.errors:
            raise self.errors.pop(0)
        return {
            "translation": np.array([text.upper() for text in texts], object)
        }

    async def stop(self):
        self.batches.append("stopped")


def with_version(exported, engine, use, metrics=None, **settings):
    """Runs the coroutine function `use` with a version that has the engine."""
    engine.signatures = read_signatures(exported)

    async def run():
        version = ServedModel(
            "demo",
            exported,
            engine,
            ServeSettings(**settings),
            metrics or Metrics(),
        )
        return await use(version)

    return asyncio.run(run())


def texts(*strings):
    return {"text": np.array([s.encode() for s in strings], object)}


def test_rows_of_a_request_come_back_in_their_order(exported):
    engine = FakeEngine()
    strings = ["b" * 300, "a", "c" * 290, "", "d" * 3]

    async def use(version):
        return await version.predict("serving_default", texts(*strings))

    outputs = with_version(exported, engine, use)
    assert outputs["translation"].tolist() == [
        string.upper().encode() for string in strings
    ]
    assert len(engine.batches) == 2  # short and long ones


class SearchingEngine(FakeEngine):
    async def compute(self, signature_name, inputs):
        self.batches.append((signature_name, inputs))
        count = len(inputs["text"])
        return {
            "translation": np.array([[b"best", b"other"]] * count, object),
            "truncated": np.zeros(count, bool),
        }


def test_a_server_may_have_a_search_of_its_own(exported):
    engine = SearchingEngine()

    async def use(version):
        return await version.predict("serving_default", texts("a", "b"))

    outputs = with_version(exported, engine, use, beam_size=2, alpha=1.5)
    assert outputs["translation"].tolist() == [b"best", b"best"]
    assert outputs["truncated"].shape == (2,)
    [(signature, inputs), *_] = engine.batches
    assert signature == "n_best"
    assert (inputs["beam_size"], inputs["alpha"]) == (2, 1.5)
    with pytest.raises(ValueError, match=r"keeps at most .* beam_size=999"):
        with_version(exported, engine, use, beam_size=999)


def test_what_nobody_waits_for_is_not_computed(exported):
    engine, metrics = FakeEngine(), Metrics()

    def waiting(version):
        labels = {"model": version.name, "version": str(version.number)}
        return metrics.registry.get_sample_value(
            "keras_transformer_queue_rows", labels
        )

    async def use(version):
        engine.may_compute.clear()
        first = asyncio.create_task(
            version.predict("serving_default", texts("first"))
        )
        await asyncio.sleep(0.01)  # it is being computed now
        gone = asyncio.create_task(
            version.predict("serving_default", texts("gone"))
        )
        with pytest.raises(ServingError) as caught:
            await version.predict("serving_default", texts("late"), 0.01)
        assert caught.value.code == "DEADLINE_EXCEEDED"
        assert waiting(version) == 1
        gone.cancel()
        await asyncio.sleep(0.01)
        assert waiting(version) == 0
        engine.may_compute.set()
        await first
        await version.predict("serving_default", texts("last"))
        await version.stop()

    with_version(exported, engine, use, metrics)
    assert engine.batches == [[b"first"], [b"last"], "stopped"]


def test_a_batch_is_computed_again_when_its_process_ends(exported):
    async def use(version):
        return await version.predict("serving_default", texts("a"))

    engine = FakeEngine([ProcessEndedError()] * 2)
    outputs = with_version(exported, engine, use)
    assert outputs["translation"].tolist() == [b"A"]
    assert len(engine.batches) == 3

    engine = FakeEngine([ProcessEndedError()] * 3)
    with pytest.raises(ServingError, match="ended 3 times") as caught:
        with_version(exported, engine, use)
    assert caught.value.code == "INTERNAL"


def test_requests_are_refused_when_the_queue_is_full(exported):
    engine = FakeEngine()

    async def use(version):
        engine.may_compute.clear()
        waiting = [
            asyncio.create_task(
                version.predict("serving_default", texts(*"abcd"))
            )
            for _ in range(2)
        ]
        await asyncio.sleep(0.01)
        with pytest.raises(ServingError, match="is full") as caught:
            await version.predict("serving_default", texts(*"abcdef"))
        assert caught.value.http_status == 429
        assert caught.value.retry_after >= 1
        engine.may_compute.set()
        await asyncio.gather(*waiting)

    with_version(exported, engine, use, max_queue_rows=8, max_batch_rows=2)


def test_a_request_that_is_too_large_is_refused_at_once(exported, monkeypatch):
    engine = FakeEngine()

    async def use(version):
        with monkeypatch.context() as patch:
            patch.setattr(served_model_module, "_items", None)  # takes long
            with pytest.raises(ServingError, match=r"have 5 rows.*: 6"):
                await version.predict("serving_default", texts(*"abcdef"))
        # The rows of `explain` are computed at once.
        with pytest.raises(ServingError, match=r"have 2 rows.* at once.*: 3"):
            await version.predict("explain", texts(*"abc"))
        await version.predict("explain", texts(*"ab"))
        with pytest.raises(ServingError, match=r"have 7 bytes of text.*: 8"):
            await version.predict("serving_default", texts("four", "4444"))
        await version.predict("serving_default", texts(*"abcde"))
        # Each text counts with its own length.
        await version.predict("explain", texts("a", "666666"))
        # Columns of unequal length do not get this error.
        columns = {"text": texts(*"abc")["text"], "other": np.zeros(2)}
        await version.predict("score", columns)

    limits = {"max_request_rows": 5, "max_batch_rows": 2, "max_request_text": 7}
    with_version(exported, engine, use, **limits)


def test_a_large_answer_is_refused_before_it_is_computed(exported):
    engine = FakeEngine()

    async def use(version):
        outputs = version.signatures["explain"].outputs
        sizes = [d.size for d in outputs["attention"].tensor_shape.dim]
        assert sizes[0] == sizes[3] == sizes[4] == -1
        layers, heads = sizes[1:3]
        source, target = 91, 91 + 50  # with its end; extra_length is 50
        encoder = outputs["encoder_attention"].tensor_shape.dim
        assert [d.size for d in encoder] == sizes
        attention = layers * heads * source * (target + source)
        pieces = 3 * target  # of both sides, and their log-probabilities
        others = 6  # translation, score, two booleans, mean, alignment
        most = 2 * (attention + pieces + others)
        version._settings = ServeSettings(max_answer_elements=most)
        await version.predict("explain", texts("9" * 90, "a"))
        assert engine.batches
        version._settings = ServeSettings(max_answer_elements=most - 1)
        engine.batches.clear()
        message = rf"{most - 1:,} elements.*may have {most:,}"
        with pytest.raises(ServingError, match=message) as caught:
            await version.predict("explain", texts("9" * 90, "a"))
        assert caught.value.http_status == 400
        assert not engine.batches
        await version.predict("serving_default", texts("9" * 9000))

    with_version(exported, engine, use)


def test_a_few_bytes_do_not_become_a_large_array():
    proto = tf.make_tensor_proto(["a", "a"])
    assert grpc_services._array(proto, 2).tolist() == [b"a", b"a"]
    proto = TensorProto(dtype=7, string_val=[b"a"])
    proto.tensor_shape.dim.add(size=10**11)
    with pytest.raises(ServingError, match=r"have 9 rows.*: 100,000,000,000"):
        grpc_services._array(proto, 9)
    proto = TensorProto(dtype=7, string_val=[b"a"])
    for size in (-3, (2**64 - 10**7) // 3):  # whose product overflows
        proto.tensor_shape.dim.add(size=size)
    with pytest.raises(ValueError, match="no length"):
        grpc_services._array(proto, 9)


def test_a_version_ends_when_nobody_waits_for_it(exported):
    """As that of a process which cannot be started again."""
    engine = FakeEngine()

    async def use(version):
        engine.may_compute.clear()
        with pytest.raises(ServingError):
            await version.predict("serving_default", texts("a"), 0.01)
        await asyncio.wait_for(version.stop(), 10)

    with_version(exported, engine, use)
    assert engine.batches == ["stopped"]


def test_a_version_that_has_no_engine_any_more_keeps_nobody_waiting(exported):
    engine = FakeEngine()

    async def use(version):
        engine.may_compute.clear()
        engine.is_running = False
        asking = [
            asyncio.create_task(version.predict("serving_default", texts(x)))
            for x in ("a", "b" * 99)
        ]
        await asyncio.sleep(0.05)
        await asyncio.wait_for(version.stop(), 10)
        for task in asking:
            with pytest.raises(VersionEndedError):
                await task

    with_version(exported, engine, use)


def test_pages_of_other_sites_may_send_a_token(exported, tmp_path):
    (tmp_path / "tokens").write_text("secret")
    tokens = Tokens(tmp_path / "tokens")

    def ask(method, path, tokens=tokens, **settings):
        """Returns status and headers of an answer."""
        sent = []
        request = [{"type": "http.request"}, {"type": "http.disconnect"}]

        async def receive():
            return request.pop(0)

        async def send(message):
            sent.append(message)

        async def use(version):
            models = ModelRegistry(list, None, 1.0)
            options = ServeSettings(access_log=False, **settings)
            serve = Application(models, options, Metrics(), tokens)
            scope = {"type": "http", "method": method}
            scope |= {"raw_path": path.encode(), "headers": []}
            scope["headers"] = [(b"origin", b"https://a.org")]
            await serve(scope, receive, send)

        with_version(exported, FakeEngine(), use)
        return sent[0]["status"], dict(sent[0]["headers"])

    path = "/v1/models/demo:predict"
    allowed = b"access-control-allow-headers"
    status, headers = ask("OPTIONS", path, cors=True)
    assert status == 200
    assert headers[allowed] == b"Content-Type, Authorization"
    assert headers[b"access-control-allow-methods"] == b"POST, GET"
    status, headers = ask("GET", path, None, cors=True)
    assert (status, headers[allowed]) == (400, b"Content-Type")
    # Without the token the page reads why.
    status, headers = ask("POST", path, cors=True)
    assert status == 401
    assert headers[b"access-control-allow-origin"] == b"*"
    for refused in (ask("OPTIONS", path), ask("GET", "/metrics", cors=True)):
        assert refused[0] == 401
        assert allowed not in refused[1]


def messages_of(method, path, body, models=None, timeout=5, **headers):
    """Returns what an `Application` sends."""
    requests = [{"type": "http.request", "body": body}]
    sent = []

    async def receive():
        if requests:
            return requests.pop()
        await asyncio.sleep(60)

    async def send(message):
        sent.append(message)

    async def use():
        options = ServeSettings(access_log=False, timeout=timeout)
        registry = models or ModelRegistry(list, None, 1.0)
        serve = Application(registry, options, Metrics())
        scope = {"type": "http", "method": method, "raw_path": path.encode()}
        named = {n.replace("_", "-"): value for n, value in headers.items()}
        scope["headers"] = [(n.encode(), v.encode()) for n, v in named.items()]
        await serve(scope, receive, send)

    asyncio.run(use())
    return sent


def ask_application(*request, **headers):
    """Returns status and body of the answer of an `Application`."""
    sent = messages_of(*request, **headers)
    assert [m.get("more_body") for m in sent[1:-1]] == [True] * (len(sent) - 2)
    assert not sent[-1].get("more_body")
    return sent[0]["status"], b"".join(m["body"] for m in sent[1:])


@pytest.mark.parametrize(
    ("method", "path", "encoding", "body", "status"),
    [
        ("GET", "/healthz", "gzip", b"", 200),
        ("HEAD", "/healthz", "", b"", 200),
        ("POST", "/healthz", "", b"", 405),
        ("DELETE", "/metrics", "", b"", 405),
        ("POST", "/v1/models/demo:predict", "br", b"x", 415),
        ("POST", "/v1/models/demo:predict", "gzip, gzip", b"x", 415),
        ("POST", "/v1/models/demo:predict", "identity", b"x", 400),
        ("POST", "/v1/models/demo:predict", "gzip", b"x", 400),
    ],
)
def test_encodings_and_methods(method, path, encoding, body, status):
    found, _ = ask_application(method, path, body, content_encoding=encoding)
    assert found == status


def test_a_large_answer_is_sent_in_pieces():
    body = b'{"signature_name": "explain", "instances": %s}'
    lines = json.dumps(["word"] * 3000).encode()
    status, answer = ask_application(
        "POST", "/v1/models/demo:predict", body % lines, FakeRegistry()
    )
    assert status == 200
    rows = json.loads(answer)["predictions"]
    assert [row["translation"] for row in rows] == ["WORD"] * 3000


def test_an_answer_that_takes_too_long_is_cut_off(monkeypatch):
    def endless(*_):
        while True:
            time.sleep(0.01)
            yield b"x"

    monkeypatch.setattr(rest, "write_predictions", endless)
    monkeypatch.setattr(rest, "MOST_TO_WRITE_AT_ONCE", 0)
    path, body = "/v1/models/demo:predict", b'{"instances": ["a"]}'
    sent = messages_of("POST", path, body, FakeRegistry(), timeout=0.3)
    assert len(sent) > 3
    assert sent[-1]["more_body"]  # so that uvicorn closes the connection


def test_a_body_that_has_not_arrived_when_the_server_ends():
    sent = []

    async def receive():
        await asyncio.sleep(60)

    async def send(message):
        sent.append(message)

    async def use():
        options = ServeSettings(access_log=False)
        serve = Application(ModelRegistry(list, None, 1.0), options, Metrics())
        scope = {"type": "http", "method": "POST", "headers": []}
        path = b"/v1/models/demo:predict"
        answering = asyncio.create_task(
            serve({**scope, "raw_path": path}, receive, send)
        )
        await asyncio.sleep(0)
        serve.is_stopping = True
        answering.cancel()  # as uvicorn does it
        await answering

    asyncio.run(use())
    assert sent[0]["status"] == 503


class FakeProcess:
    """A `ModelProcess` that ends when it is told to."""

    def __init__(self):
        self.ended = asyncio.Event()

    async def stop(self):
        self.ended.set()


def test_a_process_is_started_again_while_no_request_comes(monkeypatch):
    processes, errors = [], []

    async def start(path, threads, loader):
        if errors:
            raise errors.pop()
        processes.append(FakeProcess())
        return processes[-1]

    monkeypatch.setattr(engine_module.ModelProcess, "start", start)

    async def use():
        engine = await engine_module.LocalEngine.start(
            "demo/1", 1, read=lambda path: {}
        )
        processes[0].ended.set()
        await asyncio.sleep(0.01)
        assert (len(processes), engine.is_running) == (2, True)
        errors.append(ValueError("damaged"))
        processes[1].ended.set()
        await asyncio.sleep(0.01)
        assert (len(processes), engine.is_running) == (2, False)
        await engine.stop()
        await asyncio.sleep(0.01)
        assert len(processes) == 2

    asyncio.run(use())


def test_errors_of_a_graph_do_not_speak_of_python(exported):
    inputs = {"text": np.array([b"a"], object), "beam_size": np.int32(1000)}
    inputs |= {"alpha": np.float32(0.6), "max_length": np.int32(9)}
    signatures = tf.saved_model.load(str(exported)).signatures
    kind, (code, text) = worker.answer(
        worker.functions_of(signatures), "n_best", inputs
    )
    assert (kind, code) == ("error", "INVALID_ARGUMENT")
    expected = (
        r"assertion failed: \[`beam_size` must be at least 1, at most \d+\.\] "
        r"\[1000\]\n\t \[\[\{\{node \S+\}\}\]\]"
    )
    assert re.fullmatch(expected, text)


def start_server(**settings):
    """Starts a server, which ends with an error at the latest at its models."""

    def read_configs():
        raise RuntimeError("The server has started.")

    settings = ServeSettings(**{"port": 0, "grpc_port": 0} | settings)
    server.serve(read_configs, settings)


def test_errors_of_certificates_name_the_files(tmp_path):
    certificate, _ = make_certificate(tmp_path, "a")
    _, other_key = make_certificate(tmp_path, "b")
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    for pair in (
        (certificate, other_key),
        (junk, other_key),
        (certificate, junk),
        (certificate, tmp_path / "missing.pem"),
    ):
        with pytest.raises(ValueError, match="belong together") as caught:
            start_server(tls_certificate=pair[0], tls_key=pair[1])
        assert all(str(path) in str(caught.value) for path in pair)


def test_the_error_of_an_unknown_host_has_its_reason():
    with pytest.raises(OSError, match=r"nowhere\.invalid") as caught:
        start_server(host="nowhere.invalid", insecure=True)
    assert "may be in use" not in str(caught.value)


def test_a_body_may_be_larger_than_messages_of_grpc(monkeypatch):
    async def use():
        settings = ServeSettings(max_body=3_000_000_000, grpc_port=0)
        made, port = server._grpc_server(None, settings, Metrics(), None)
        assert port
        await made.stop(None)

    asyncio.run(use())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "server.org"])
def test_other_machines_need_a_token(host, tmp_path):
    with pytest.raises(ValueError, match=r"needs a token.*--insecure"):
        ServeSettings(host=host)
    ServeSettings(host=host, insecure=True)
    ServeSettings(host=host, token_file=str(tmp_path / "tokens"))
    for local in ("127.0.0.1", "127.0.0.53", "::1", "localhost"):
        ServeSettings(host=local)


def test_addresses_of_ipv6_are_in_brackets(caplog):
    caplog.set_level("INFO", "keras_transformer.serve")
    settings = ServeSettings(host="::1")
    server._greet(ModelRegistry(list, None, 1.0), settings, 8501, 8500)
    assert "http://[::1]:8501/ and by gRPC at [::1]:8500." in caplog.text


def test_errors_of_the_engine_reach_the_client(exported):
    engine = FakeEngine([ServingError("INVALID_ARGUMENT", "no"), OSError("x")])

    async def use(version):
        for code in ("INVALID_ARGUMENT", "INTERNAL"):
            with pytest.raises(ServingError) as caught:
                await version.predict("serving_default", texts("a"))
            assert caught.value.code == code
        return await version.predict("serving_default", texts("a"))

    outputs = with_version(exported, engine, use)
    assert outputs["translation"].tolist() == [b"A"]


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (ServeSettings, {"threads": 0}),
        (ServeSettings, {"timeout": float("nan")}),
        (ServeSettings, {"timeout": float("inf")}),
        (ServeSettings, {"max_queue_rows": -1}),
        (ServeSettings, {"tls_key": "key.pem"}),
        (RaySettings, {"ray_replicas": 0}),
        (RaySettings, {"ray_replicas": 3, "ray_max_replicas": 2}),
        (RaySettings, {"ray_cpus": 0}),
    ],
)
def test_wrong_settings(kind, settings):
    with pytest.raises(ValueError, match="Received"):
        kind(**settings)
