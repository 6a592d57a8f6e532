"""Loads a server with requests of mixed lengths, and checks every answer.

    python benchmarks/serving.py MODEL
        [--beside ray | arrival | ctranslate2:FOLDER] [--seconds 150]
        [--concurrency 1 8 32 128] [--rounds 3] [--serve-options …]

MODEL is an export such as saved_models/demo. Starts `keras-transformer serve`,
sends requests of one text each, and prints a table: for each number of clients
the requests a second, the p50 and p99 of short texts (under 60 bytes) and of
long ones, how many answers were refused, and how much memory the server and its
models hold. Each answer is compared with that of `keras-transformer translate`;
in bfloat16 an answer may depend on the batch, so different ones are counted,
and must resemble the expected one more than any other request's.

MB are given at a quarter of the time of each row and at its end. Afterwards all
lines are translated in requests of 100 by 16 clients, in turns with
`keras-transformer translate`.

With `--beside` there are two servers, which take turns: the second one computes
in a replica of Ray for each core, makes batches of texts as they arrive, or
serves the run's export for CTranslate2 in FOLDER.
"""

import argparse
import asyncio
import collections
import contextlib
import difflib
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from interleaved import machine

SHORT = 60  # bytes
COMMAND = [sys.executable, "-m", "keras_transformer"]


def texts(count):
    """Sentences of the built-in corpus; each fourth text has several."""
    from keras_transformer.data.builtin.phrases import pairs_of_split

    sentences = [source for source, _ in pairs_of_split("test", 3 * count)]
    random.seed(1)
    made = []
    for i in range(count):
        length = 1 if i % 4 else random.randint(2, 6)
        made.append(" ".join(sentences[3 * i : 3 * i + length]))
    return list(dict.fromkeys(made))


def translate(model, lines, *options):
    """Translates lines by the command; returns them and seconds for each pass.

    The time of starting is taken out: the lines are translated once, and three
    times.
    """
    seconds, outputs = [], None
    for times in (1, 3):
        began = time.perf_counter()
        result = subprocess.run(
            [*COMMAND, "translate", str(model), *options],
            input="".join(line + "\n" for line in lines * times),
            capture_output=True,
            text=True,
            check=True,
        )
        seconds.append(time.perf_counter() - began)
        outputs = outputs or result.stdout.splitlines()
    return outputs, (seconds[1] - seconds[0]) / 2


class Server:
    """`keras-transformer serve` in a process, at free ports."""

    def __init__(self, model, options=()):
        self.name = model.name
        command = [*COMMAND, "serve", str(model), "--port", "0"]
        command += ["--grpc-port", "0", "--no-access-log", *options]
        # A file, since nobody would read a pipe.
        self.log = tempfile.NamedTemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(command, stderr=self.log)
        while "Stop with" not in (
            log := pathlib.Path(self.log.name).read_text()
        ):
            if self.process.poll() is not None:
                sys.exit(log)
            time.sleep(0.1)
        address = log.split("://")[1].split("/")[0]
        self.host, port = address.rsplit(":", 1)
        self.port = int(port)

    def memory(self):
        """Bytes of the server and of the processes that it has started."""
        total = 0
        for process in descendants(self.process.pid):
            with contextlib.suppress(OSError):
                fields = pathlib.Path(f"/proc/{process}/statm").read_text()
                total += int(fields.split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return total

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0


def descendants(pid):
    """Ids of a process and of the processes that it has started."""
    found = [pid]
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            for child in path.read_text().split():
                found += descendants(int(child))
    return found


class Client:
    """One connection that makes a request after the other."""

    def __init__(self, server):
        self.server = server
        self.reader = self.writer = None

    async def post(self, *texts):
        """Returns status and answer."""
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection(
                self.server.host, self.server.port
            )
        body = json.dumps({"instances": texts}).encode()
        name = self.server.name
        self.writer.write(
            f"POST /v1/models/{name}:predict HTTP/1.1\r\nHost: x\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = await self.reader.readuntil(b"\r\n\r\n")
        fields = head.decode().split("\r\n")
        (length,) = (
            int(field.split(":")[1])
            for field in fields
            if field.lower().startswith("content-length:")
        )
        status = int(fields[0].split()[1])
        return status, json.loads(await self.reader.readexactly(length))


async def load(server, pairs, concurrency, seconds):
    """Loads the server; returns latencies and counts."""
    found = {"short": [], "long": [], "counts": collections.Counter()}
    end = time.monotonic() + seconds
    order = iter([])

    def next_pair():
        nonlocal order
        pair = next(order, None)
        if pair is None:
            order = iter(random.sample(pairs, len(pairs)))
            pair = next(order)
        return pair

    async def measure_memory():
        await asyncio.sleep(seconds / 4)
        found["memory"] = server.memory()

    async def client():
        connection = Client(server)
        while time.monotonic() < end:
            text, expected = next_pair()
            began = time.monotonic()
            status, answer = await connection.post(text)
            took = time.monotonic() - began
            found["counts"][status] += 1
            if status not in (200, 429):
                sys.exit(f"Status {status}: {answer}")
            if status == 429:
                await asyncio.sleep(0.1)
                continue
            (prediction,) = answer["predictions"]
            if prediction["translation"] != expected:
                found["counts"]["different"] += 1
                check(prediction["translation"], expected, pairs)
            kind = "short" if len(text.encode()) < SHORT else "long"
            found[kind].append(took)

    began = time.monotonic()
    await asyncio.gather(
        measure_memory(), *(client() for _ in range(concurrency))
    )
    found["seconds"] = time.monotonic() - began
    return found


def check(answer, expected, pairs):
    """Ends the program if an answer is that to another text."""

    def likeness(text):
        return difflib.SequenceMatcher(None, answer, text, False).ratio()

    best = max(pairs, key=lambda pair: likeness(pair[1]))
    if likeness(best[1]) > likeness(expected):
        sys.exit(f"Wrong answer: {answer!r} for {expected!r}")


async def translate_by_server(server, lines):
    """Translates all lines in requests of 100; returns texts and seconds."""
    chunks = [lines[i : i + 100] for i in range(0, len(lines), 100)]
    answers = [None] * len(chunks)
    numbers = iter(range(len(chunks)))

    async def client():
        connection = Client(server)
        for i in numbers:
            status, answer = await connection.post(*chunks[i])
            if status != 200:
                sys.exit(f"Status {status}: {answer}")
            answers[i] = [row["translation"] for row in answer["predictions"]]

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(16)))
    seconds = time.perf_counter() - began
    return [text for answer in answers for text in answer], seconds


SERVERS = {
    "usual": (),
    "arrival": ("--no-batching-by-length",),
    "ray": ("--engine", "ray", "--ray-replicas", str(os.cpu_count())),
    "ctranslate2": ("--engine", "ctranslate2"),
}
HEADING = (
    "server       clients  texts/s  refused  different  p50 short  p99 short  "
    "p50 long  p99 long         MB"
)


def show(kind, concurrency, found, memory):
    """Prints a row of the table."""
    counts = found["counts"]
    short, long = percentiles(found["short"]), percentiles(found["long"])
    print(
        f"{kind:11}  {concurrency:7}  {counts[200] / found['seconds']:7.1f}  "
        f"{counts[429]:7}  {counts['different']:9}  {short[0]:>9}  "
        f"{short[1]:>9}  {long[0]:>8}  {long[1]:>8}  "
        f"{found['memory'] / 1e6:4.0f} {memory / 1e6:4.0f}",
        flush=True,
    )


def percentiles(values):
    if len(values) < 2:
        return "-", "-"
    cuts = statistics.quantiles(values, n=100)
    return f"{cuts[49]:.3f}", f"{cuts[98]:.3f}"


def compare(servers, rounds, model, lines, outputs):
    """Translates all lines by each server and by the command, in turns."""
    ratios = {kind: [] for kind in servers}
    for _ in range(rounds):
        rates = {}
        for kind, server in servers.items():
            found, seconds = asyncio.run(translate_by_server(server, lines))
            if found != outputs:
                count = sum(map(str.__ne__, found, outputs))
                print(f"{kind}: {count} of {len(lines)} answers differ")
            rates[kind] = len(lines) / seconds
        _, seconds = translate(model, lines)
        rates["translate"] = len(lines) / seconds
        print(
            "texts/s:",
            ", ".join(f"{name} {rate:.0f}" for name, rate in rates.items()),
            flush=True,
        )
        for kind in servers:
            ratios[kind].append(rates[kind] / rates["translate"])
    for kind, values in ratios.items():
        print(f"{kind}: median ratio {statistics.median(values):.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--beside")
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument(
        "--concurrency", type=int, nargs="+", default=[1, 8, 32, 128]
    )
    parser.add_argument("--texts", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve-options", nargs=argparse.REMAINDER, default=[])
    given = parser.parse_args()
    versions = list(given.model.glob("[0-9]*"))
    if not versions:
        parser.error(f"{given.model} has no version of a model")
    print(machine())
    newest = max(versions, key=lambda path: int(path.name))
    lines = texts(given.texts)
    outputs, _ = translate(newest, lines)
    pairs = {"usual": list(zip(lines, outputs, strict=True))}
    servers = {}
    try:
        for kind in filter(None, ("usual", given.beside)):
            kind, _, folder = kind.partition(":")
            options = *SERVERS[kind], *given.serve_options
            served = pathlib.Path(folder) if folder else given.model
            servers[kind] = Server(served, options)
            pairs.setdefault(kind, pairs["usual"])
            if folder:  # another engine may find other translations
                found, _ = translate(served, lines, *SERVERS[kind])
                pairs[kind] = list(zip(lines, found, strict=True))
        print(HEADING)
        for concurrency in given.concurrency:
            for kind, server in servers.items():
                found = asyncio.run(
                    load(server, pairs[kind], concurrency, given.seconds)
                )
                show(kind, concurrency, found, server.memory())
        compare(servers, given.rounds, newest, lines, outputs)
    finally:
        for server in servers.values():
            server.stop()


if __name__ == "__main__":
    main()
