"""Tests of the limits of connections of HTTP, with models in memory."""

import asyncio
import concurrent.futures
import contextlib
import json
import resource
import socket
import time

import pytest
from serve_fakes import DEMO, FakeModel, FakeRegistry

from keras_transformer.serve import connections, server
from keras_transformer.serve.http_app import Application
from keras_transformer.serve.metrics import Metrics
from keras_transformer.serve.settings import ServeSettings

BODY = json.dumps({"instances": ["a"]}).encode()
REQUEST = (
    b"POST /v1/models/demo:predict HTTP/1.1\r\nHost: x\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
)
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


class SlowModel(FakeModel):
    """A version that takes a second; `ended` has how its requests ended."""

    def __init__(self, seconds=1.0):
        super().__init__("demo", 1, DEMO, FakeRegistry().find("demo").compute)
        self.seconds = seconds
        self.ended = []

    async def predict(self, signature_name, inputs, timeout=None):
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        self.ended.append("answered")
        return self.compute(signature_name, inputs)


def with_server(use, model=None, most=1000):
    """Calls `use(connect)` in a thread while a server answers."""

    async def run():
        settings = ServeSettings(
            access_log=False, max_connections=most, port=0, timeout=5
        )
        models = FakeRegistry()
        if model is not None:
            models.versions["demo", 1] = model
        listening = server._listen("127.0.0.1", 0)
        address = listening.getsockname()
        http_server = server._HttpServer(
            Application(models, settings, Metrics()), settings
        )
        answering = asyncio.create_task(http_server.serve([listening]))
        with contextlib.ExitStack() as stack:

            def connect(data=b""):
                client = socket.create_connection(address, 20)
                stack.enter_context(client)
                client.sendall(data)
                return client

            try:
                await asyncio.to_thread(use, connect)
            finally:
                http_server.should_exit = True
                await answering  # which closes the socket

    asyncio.run(run())


def answer_of(client):
    """Returns what a client is sent until its connection is closed."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while part := client.recv(10_000):
            data += part
    return data


def is_healthy(client):
    """Returns whether a client gets the next answer to `HEALTH`."""
    data = b""
    while not data.endswith(b"\r\n\r\nalive\n"):
        part = client.recv(1)
        if not part:
            return False
        data += part
    return data.startswith(b"HTTP/1.1 200")


def error_of(answer):
    """Returns status and text of an answer that is an error."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/json" in head
    return int(head.split()[1]), json.loads(body)["error"]


def test_the_head_of_a_request_must_arrive_in_time(monkeypatch):
    monkeypatch.setattr(connections, "SECONDS_FOR_HEAD", 0.5)

    def use(connect):
        start = time.monotonic()
        silent, slow, second = connect(), connect(b"GET /hea"), connect(HEALTH)
        assert is_healthy(second)
        second.sendall(b"GET ")
        for client in (slow, second):
            status, text = error_of(answer_of(client))
            assert (status, "head has not arrived" in text) == (408, True)
        assert answer_of(silent) == b""
        # A byte now and then gains no time.
        dripping = connect()
        with contextlib.suppress(OSError):
            for byte in b"GET /healthz HTTP/1.1 \r\n" * 9:
                dripping.sendall(bytes([byte]))
                time.sleep(0.05)
        assert time.monotonic() - start < 10
        # Between requests there is more time.
        idle = connect(HEALTH)
        assert is_healthy(idle)
        time.sleep(1)
        idle.sendall(HEALTH)
        assert is_healthy(idle)

    with_server(use)


def test_a_slow_answer_is_not_a_slow_head(monkeypatch):
    monkeypatch.setattr(connections, "SECONDS_FOR_HEAD", 0.3)

    def use(connect):
        assert b"200 OK" in connect(REQUEST).recv(10_000)

    with_server(use, SlowModel())


def test_the_connection_that_waits_longest_makes_room():
    def use(connect):
        waiting = [connect() for _ in range(7)]
        for _ in range(20):
            assert is_healthy(connect(HEALTH))
        assert [answer_of(client) for client in waiting] == [b""] * 7

    with_server(use, most=7)


def test_where_all_connections_are_at_work_a_new_one_is_refused():
    def use(connect):
        busy = [connect(REQUEST) for _ in range(3)]
        time.sleep(0.3)
        status, text = error_of(answer_of(connect()))
        assert (status, text) == (503, "Too many connections.")
        for client in busy:
            assert b"200 OK" in client.recv(10_000)

    with_server(use, SlowModel(), most=3)


def test_a_client_that_ends_its_side_is_answered():
    def use(connect):
        client = connect(REQUEST)
        client.shutdown(socket.SHUT_WR)
        *interim, head, body = answer_of(client).split(b"\r\n\r\n")
        assert {*interim} == {b"HTTP/1.1 102 "}
        assert head.startswith(b"HTTP/1.1 200 OK")
        (row,) = json.loads(body)["predictions"]
        assert row["translation"] == "A"
        # Before its request is whole, it has gone.
        client = connect(REQUEST[:-2])
        client.shutdown(socket.SHUT_WR)
        assert answer_of(client) == b""

    model = SlowModel()
    with_server(use, model)
    assert model.ended == ["answered"]


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
def test_a_client_that_has_gone_is_not_waited_for(version):
    def use(connect):
        connect(REQUEST.replace(b"/1.1", b"/" + version)).close()
        time.sleep(1)

    model = SlowModel(seconds=30)
    with_server(use, model)
    assert model.ended == ["cancelled"]


@pytest.mark.parametrize(
    "data", [b"GARBAGE\r\n\r\n", b"\x16\x03\x01" + bytes(200), b"\r\n" * 90_000]
)
def test_garbage_gets_an_error_in_json(data, caplog):
    def use(connect):
        status, text = error_of(answer_of(connect(data)))
        assert (status, text) == (400, "This is no request of HTTP.")
        # In the middle of a body, whose request is being answered.
        client = connect(REQUEST.replace(b"Content-Length: ", b"X: "))
        assert b"HTTP/1.1 400" in client.recv(1000)
        head = REQUEST.replace(b"Content-Length:", b"Transfer-Encoding:")
        head = head.replace(b"%d\r\n\r\n" % len(BODY), b"chunked\r\n\r\n")
        assert b"HTTP/1.1 400" in answer_of(connect(head + b"\r\nno length"))

    with_server(use)
    assert all(record.exc_info is None for record in caplog.records)


def test_the_soft_limit_of_files_is_raised(caplog):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = 600
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
        connections.allow_files(150)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (low, hard)
        connections.allow_files(250)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (756, hard)
        assert caplog.text == ""
        if hard != resource.RLIM_INFINITY:
            connections.allow_files(hard)
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
            assert "lower --max-connections" in caplog.text
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_many_connections_that_do_nothing_stop_no_request():
    def use(connect):
        idle = [connect(b"GET /") for _ in range(300)]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            answers = pool.map(lambda _: connect(REQUEST).recv(9999), range(40))
            assert all(b"200 OK" in answer for answer in answers)
        assert len(idle) == 300

    with_server(use, most=100)
