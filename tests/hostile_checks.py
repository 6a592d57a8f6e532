"""Checks the server under clients that mean harm, or know no better.

Run by `make test-serve` in small; `make test-hostile` takes 20 minutes and
prints tables. `REQUESTS` is the number of bad requests of each kind,
`SOAK_SECONDS` the time of all kinds of clients together, and `MODEL` an export,
by default one that was hardly trained, whose translations have no end.
"""

import concurrent.futures
import contextlib
import gzip
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import fuzz
import grpc
import pytest
import tensorflow as tf
from serving import Load, Server, translations, wait_until
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

REQUESTS = int(os.environ.get("REQUESTS", "20"))
SOAK_SECONDS = float(os.environ.get("SOAK_SECONDS", "10"))
ROUNDS = 5  # at most, of half of the requests each
TIMEOUT = "30" if REQUESTS > 1000 else "5"
CLIENTS = 32
# Seconds that `/healthz` may take. The test machine has two cores, which the
# clients share, and is sometimes slower than that.
LONGEST_WAIT = 1.0 if REQUESTS > 1000 else 3.0
PREDICT = "/v1/models/demo:predict"
TEXTS = ["Room 7 is on the third floor.", "It costs €5.", "Yes.", ""]
LONG = "Room 7 is on the third floor. " * 13  # 400 bytes


@pytest.fixture(scope="module")
def folder(request, tmp_path_factory):
    given = os.environ.get("MODEL")
    path = f"{given}/1" if given else request.getfixturevalue("exported")
    folder = tmp_path_factory.mktemp("served") / "demo"
    shutil.copytree(path, folder / "1")
    return folder


# In a process of its own: the clients of a test keep its interpreter busy.
ASK_HEALTH = """
import http.client, sys, time
longest = 0
while not print(longest, flush=True) and sys.stdin.readline():
    start = time.monotonic()
    client = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
    client.request("GET", "/healthz")
    assert client.getresponse().status == 200
    client.close()
    longest = max(longest, time.monotonic() - start)
"""


class Watch:
    """Asks `/healthz` and measures memory, until it is left.

    `longest` is the longest answer in seconds, `peak` the most memory in bytes.
    """

    def __init__(self, server):
        self.server = server
        self.longest = self.peak = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._is_over.set()
        self._thread.join()

    def _watch(self):
        command = [sys.executable, "-c", ASK_HEALTH, str(self.server.port)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe) as asking:
            while True:
                answer = asking.stdout.readline()
                # Nothing is printed by a process that has failed.
                self.longest = float(answer or "inf")
                self.peak = max(self.peak, memory(self.server))
                if self._is_over.wait(0.05) or not answer:
                    break
                asking.stdin.write(b"\n")
                asking.stdin.flush()
            asking.stdin.close()


def memory(server):
    """Returns the bytes of memory of a server and of what it has started."""
    pages = 0
    for pid in server.processes():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/statm") as file:
            pages += int(file.read().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def body(signature="serving_default", **inputs):
    return json.dumps({"signature_name": signature, "inputs": inputs}).encode()


def largest():
    """Yields a name, method, path, body and headers of the largest inputs."""
    most = 16_000_000  # bytes of a body
    rows = [LONG] * 64
    beam = {"beam_size": 32, "alpha": 0.6, "max_length": 300}
    yield "one text", "POST", PREDICT, body(text=["a " * 1_900_000]), {}
    yield "10,000 texts", "POST", PREDICT, body(text=[LONG[:390]] * 10_000), {}
    yield "n_best", "POST", PREDICT, body("n_best", text=rows, **beam), {}
    pair = {"text": rows, "translation": rows}
    yield "score", "POST", PREDICT, body("score", **pair), {}
    yield "explain", "POST", PREDICT, body("explain", text=rows), {}
    yield (
        "explain digits",
        "POST",
        PREDICT,
        body("explain", text=["1" * 500] * 16),
        {},
    )
    nested = b'{"inputs": ' + b"[" * (most - 20)
    yield "nested", "POST", PREDICT, nested, {}
    numbers = b'{"instances": [' + b"1," * (most // 2 - 20) + b"1]}"
    yield "numbers", "POST", PREDICT, numbers, {}
    keys = ",".join(f'"{i}":1' for i in range(1_500_000))
    yield "keys", "POST", PREDICT, f"{{{keys}}}".encode()[:most], {}
    quoted = b'{"signature_name": [' + b'"x",' * (most // 4 - 20) + b'"x"]}'
    yield "long error", "POST", PREDICT, quoted, {}
    bomb = gzip.compress(bytes(500_000_000), 9)
    yield "gzip", "POST", PREDICT, bomb, {"Content-Encoding": "gzip"}
    yield "too large", "POST", PREDICT, b"x" * (most + 1), {}
    text = {"text": "A sentence. " * 1_300_000, "language": "en"}
    yield "split", "POST", "/api/split", json.dumps(text).encode(), {}
    yield "path", "GET", "/v1/models/" + "x" * 60_000, b"", {}
    for path in ("/v1/models/demo/metadata", "/v1/models/demo", "/metrics"):
        yield path[-9:], "GET", path, b"", {}
    for path in ("/", "/api/models", "/page.js"):
        yield path, "GET", path, b"", {}


def test_the_largest_inputs_have_their_budgets(folder, tmp_path, capsys):
    """One after the other, and over gRPC; memory comes back to what it was."""
    options = "--no-access-log", "--timeout", TIMEOUT
    server = Server(folder, tmp_path / "log.txt", *options)
    rows = []

    def note(name, size, ask):
        before, start = memory(server), time.monotonic()
        with Watch(server) as watch:
            status = ask()
        seconds = time.monotonic() - start
        grown = max(0, watch.peak - before) / 1e6
        rows.append((name, size, status, seconds, grown, watch.longest))
        # On a busy machine both take longer; a server that answered nothing
        # else meanwhile would let it wait as long as the request.
        assert watch.longest < max(LONGEST_WAIT, seconds / 2), rows[-1]
        assert grown < 100 * size / 1e6 + 700, rows[-1]

    def by_http(method, path, data, headers):
        try:
            status, _, answer = server.request(method, path, data, headers)
        except (BrokenPipeError, ConnectionResetError):
            return "closed"  # before it has read a body that is too large
        assert status < 500 or status == 504
        if status >= 400:
            assert len(json.loads(answer)["error"]) < 1000
        return status

    server.translate(*TEXTS)
    for name, *request in largest():
        note(name, len(request[2]), lambda request=request: by_http(*request))
    with grpc.insecure_channel(server.grpc_address) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        for name, texts in (("texts", [LONG[:390]] * 9_999), ("shape", ["a"])):
            request = predict_pb2.PredictRequest()
            request.model_spec.name = "demo"
            request.inputs["text"].CopyFrom(tf.make_tensor_proto(texts))
            if name == "shape":
                request.inputs["text"].tensor_shape.dim[0].size = 2**62

            def by_grpc(request=request, stub=stub):
                try:
                    stub.Predict(request, timeout=float(TIMEOUT))
                except grpc.RpcError as error:
                    return error.code().name
                return "OK"

            note(f"gRPC {name}", request.ByteSize(), by_grpc)
    # A batch is computed to its end, though its requests have timed out.
    small = body(text=["Yes."])
    wait_until(lambda: server.request("POST", PREDICT, small)[0] == 200)
    assert server.stop() == 0
    log = server.log.read_text()
    assert "Traceback" not in log
    assert len(log) < 100_000
    with capsys.disabled():
        print(
            "\ninput             bytes        answer  seconds   MB  /healthz s"
        )
        for name, size, status, seconds, grown, longest in rows:
            print(
                f"{name:16}{size:>12,}{status:>18}{seconds:>8.1f}"
                f"{grown:>7.0f}{longest:>8.2f}"
            )


def malformed(draw):
    """Returns a body that is changed at random."""
    seeds = [
        body(text=["a"]),
        body("n_best", text=["a"], beam_size=2, alpha=0.6, max_length=9),
        body("score", text=["a"], translation=["b"]),
        b'{"instances": ["a", {"b64": "YQ=="}]}',
    ]
    return fuzz.changed(draw.choice(seeds), draw)


def large(draw):
    """Returns a body that is right and large, or nearly right."""
    match draw.randrange(4):
        case 0:
            return body(text=[LONG] * draw.randint(1, 4))
        case 1:
            return body("explain", text=["1 " * draw.randint(1, 200)] * 3)
        case 2:
            return b'{"instances": [' + b"1," * 50_000 + b"1]}"
        case _:
            return body(text=["a"] * draw.randint(10_001, 50_000))


def _grew(found):
    """Whether the last round left a tenth more memory than the one before."""
    return found[-1][0] >= 1.1 * found[-2][0]


def test_bad_and_large_requests_leave_memory_as_it_was(
    folder, tmp_path, capsys
):
    server = Server(folder, tmp_path / "log.txt", "--no-access-log")

    def ask(data):
        try:
            found = server.request("POST", PREDICT, data, timeout=120)
        except http.client.IncompleteRead:
            return "cut off"  # a large answer, by --timeout
        status, _, answer = found
        assert status < 500 or status == 504, answer[:300]
        assert isinstance(json.loads(answer), dict)
        return status

    rounds = {malformed: [], large: []}
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        for kind, found in rounds.items():
            draw = random.Random(kind.__name__)
            # The heap grows to the largest requests that meet, by chance. A
            # leak grows in each round.
            while len(found) < 2 or (_grew(found) and len(found) < ROUNDS):
                bodies = [kind(draw) for _ in range(REQUESTS // 2)]
                with Watch(server) as watch:
                    statuses = [*pool.map(ask, bodies)]
                assert watch.longest < LONGEST_WAIT
                counts = {x: statuses.count(x) for x in {*statuses}}
                found.append((memory(server) / 1e6, watch, counts))
    with capsys.disabled():
        print(
            "\nrequests         answers                MB after  peak  /healthz"
        )
        for kind, found in rounds.items():
            for after, watch, counts in found:
                print(
                    f"{REQUESTS // 2:>6,} {kind.__name__:10}{counts!s:24}"
                    f"{after:>7.0f}{watch.peak / 1e6:>8.0f}"
                    f"{watch.longest:>8.2f} s"
                )
    for found in rounds.values():
        assert not _grew(found)
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


@pytest.mark.skipif(
    "SOAK_SECONDS" not in os.environ,
    reason="It needs the machine for itself: `make test-hostile`.",
)
def test_good_requests_are_answered_beside_bad_ones(folder, tmp_path, capsys):
    """Clients of all kinds, new versions and killed processes together."""
    expected = translations(folder / "1", TEXTS)
    server = Server(folder, tmp_path / "log.txt", "--poll-seconds", "0.2")
    server.translate(*TEXTS)
    is_over = threading.Event()
    counts = {"bad": 0, "slow": 0, "swaps": 0, "kills": 0}

    def bad(seed):
        draw = random.Random(seed)
        while not is_over.is_set():
            data = draw.choice([malformed, large])(draw)
            with contextlib.suppress(OSError, http.client.HTTPException):
                server.request("POST", PREDICT, data, timeout=60)
            counts["bad"] += 1

    def slow(seed):
        draw = random.Random(seed)
        head = b"POST /v1/models/demo:predict HTTP/1.1\r\nHost: x\r\n"
        while not is_over.is_set():
            with contextlib.suppress(OSError):
                client = socket.create_connection(("127.0.0.1", server.port))
                with client:
                    for byte in head[: draw.randrange(len(head))]:
                        client.sendall(bytes([byte]))
                        if is_over.wait(0.05):
                            break
            counts["slow"] += 1

    def disturb():
        version = 2
        pause = min(20, SOAK_SECONDS / 6)
        while not is_over.wait(pause):
            aside = folder / f".{version}"
            shutil.copytree(folder / "1", aside)
            os.rename(aside, folder / f"{version}")
            counts["swaps"] += 1
            is_over.wait(pause)
            for worker in server.workers()[:1]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
                counts["kills"] += 1
            is_over.wait(pause)
            shutil.rmtree(folder / f"{version}")
            version += 1

    good = {text: {answer} for text, answer in expected.items()}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        tasks = [pool.submit(bad, i) for i in range(3)]
        tasks += [pool.submit(slow, i) for i in range(4)]
        tasks.append(pool.submit(disturb))
        with Watch(server) as watch, Load(server, good, threads=4) as load:
            time.sleep(SOAK_SECONDS)
        is_over.set()
    for task in tasks:
        task.result()
    with capsys.disabled():
        print(
            f"\n{SOAK_SECONDS:.0f} s: {load.answers:,} good answers, "
            f"{len(load.failures)} lost or wrong; {counts}; /healthz at most "
            f"{watch.longest:.2f} s; memory at most {watch.peak / 1e6:.0f} MB"
        )
    assert load.failures == []
    assert load.answers > 20
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()
