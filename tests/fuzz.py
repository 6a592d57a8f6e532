"""Fuzzes the readers of foreign bytes, guided by coverage: `make fuzz`.

A reader may answer or raise a `ValueError` whose message is one short line.
Anything else is a fault, and so are five seconds, or memory of 100 times the
input and 256 MB. `test_fuzz.py` runs the seeds, and simple changes of them.
"""

import argparse
import asyncio
import contextlib
import functools
import gzip
import io
import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile

import grpc
import numpy as np

SECONDS = 5.0  # for one input
MEMORY = 100, 256_000_000  # times its length, and bytes
LONGEST_MESSAGE = 3_000  # characters: some quote several values
TESTS = pathlib.Path(__file__).parent
TINY = TESTS / "pretrained" / "opus-mt-tiny"
SMALL_FILES = 100_000  # bytes of a seed

# Each target is a function of a temporary folder. It returns the function to
# fuzz, of bytes, and seeds.
TARGETS = {}


@functools.cache  # kept to the end: an open loop must not be collected
def event_loop():
    return asyncio.new_event_loop()


def target(function):
    TARGETS[function.__name__] = function
    return function


def chosen(functions):
    """Returns a function whose input's first byte chooses one of several."""

    def use(data):
        if data:
            functions[data[0] % len(functions)](data[1:])

    return use


def seeds_of(*groups):
    """Returns seeds for `chosen`, one group for each of its functions."""
    return [
        bytes([i]) + (seed if isinstance(seed, bytes) else seed.encode())
        for i, group in enumerate(groups)
        for seed in group
    ]


def file_of(path, read):
    """Returns a function that writes bytes to a file and reads it."""

    def write_and_read(data):
        path.write_bytes(data)
        read()

    return write_and_read


# === The server ===


@target
def rest(folder):
    """Bodies of requests, plain and compressed, and paths."""
    from serve_fakes import FakeRegistry
    from serve_requests import ROWS

    from keras_transformer.serve.http_app import Application
    from keras_transformer.serve.metrics import Metrics
    from keras_transformer.serve.settings import ServeSettings

    settings = ServeSettings(access_log=False, max_body=1_000_000)
    application = Application(FakeRegistry(), settings, Metrics())
    loop = event_loop()

    def ask(method, path, body=b"", headers=()):
        requests = [{"type": "http.request", "body": body}]
        sent = []

        async def receive():
            if requests:
                return requests.pop()
            await asyncio.sleep(60)

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": method, "raw_path": path}
        scope["headers"] = list(headers)
        loop.run_until_complete(application(scope, receive, send))
        status = sent[0]["status"]
        assert status < 500 or status == 501, status
        answer = b"".join(x.get("body", b"") for x in sent[1:])
        if path.lower().startswith(b"/v1/") and answer:
            answer.decode()
            assert json.loads(answer)

    def predict(path, headers=()):
        return lambda body: ask("POST", path, body, headers)

    def get(path):
        # Keeps the characters that h11 lets through.
        ask("GET", bytes(x for x in path if 32 < x < 127) or b"/")

    compressed = [(b"content-encoding", b"gzip")]
    demo, types = b"/v1/models/demo:predict", b"/v1/models/types:predict"
    bodies = [
        row.body if isinstance(row.body, bytes) else str(row.body).encode()
        for row in ROWS
        if row.body and len(row.body) < 2000
    ]
    paths = [row.request.split(" ")[1] for row in ROWS]
    return chosen(
        [predict(demo), predict(types), predict(demo, compressed), get]
    ), seeds_of(bodies, bodies, map(gzip.compress, bodies[:5]), paths[:30])


class AbortedError(Exception):
    """A call ends with an error."""


class Context:
    """Takes the place of a `grpc.aio.ServicerContext`."""

    def time_remaining(self):
        return None

    def set_trailing_metadata(self, metadata):
        pass

    async def abort(self, code, details):
        assert code != grpc.StatusCode.INTERNAL
        assert len(details) < LONGEST_MESSAGE
        raise AbortedError


@target
def grpc_messages(folder):
    import tensorflow as tf
    from google.protobuf.message import DecodeError
    from serve_fakes import FakeRegistry
    from tensorflow_serving.apis import (
        get_model_metadata_pb2,
        get_model_status_pb2,
        predict_pb2,
    )

    from keras_transformer.serve.grpc_services import (
        ModelService,
        PredictionService,
    )
    from keras_transformer.serve.settings import ServeSettings

    prediction = PredictionService(FakeRegistry(), ServeSettings())
    loop = event_loop()
    calls = {
        predict_pb2.PredictRequest: prediction.Predict,
        get_model_metadata_pb2.GetModelMetadataRequest: (
            prediction.GetModelMetadata
        ),
        get_model_status_pb2.GetModelStatusRequest: (
            ModelService(FakeRegistry()).GetModelStatus
        ),
    }

    def call(message_class):
        def use(data):
            with contextlib.suppress(DecodeError, AbortedError):
                message = message_class.FromString(data)
                loop.run_until_complete(
                    calls[message_class](message, Context())
                )

        return use

    seeds = []
    for name, inputs in (
        ("demo", {"text": tf.constant(["a", "bc"])}),
        ("demo", {"text": tf.constant(["a"]), "beam_size": tf.constant(2)}),
        ("types", {"a": tf.constant([1, 2]), "b": tf.constant(["x"])}),
        ("types", {"x": tf.constant([0.5, 1.5])}),
    ):
        request = predict_pb2.PredictRequest(output_filter=["translation"])
        request.model_spec.name = name
        request.model_spec.signature_name = {"a": "pair", "x": "float32"}.get(
            next(iter(inputs)), "n_best" if len(inputs) == 2 else ""
        )
        for key, value in inputs.items():
            request.inputs[key].CopyFrom(tf.make_tensor_proto(value.numpy()))
        seeds.append(request.SerializeToString())
        for tensor in request.inputs.values():
            tensor.tensor_content = b"\x01\x01ab"
            del tensor.string_val[:]
        seeds.append(request.SerializeToString())
    metadata = get_model_metadata_pb2.GetModelMetadataRequest(
        metadata_field=["signature_def"]
    )
    metadata.model_spec.name = "demo"
    status = get_model_status_pb2.GetModelStatusRequest()
    status.model_spec.name = "demo"
    return chosen([*map(call, calls)]), seeds_of(
        seeds, [metadata.SerializeToString()], [status.SerializeToString()]
    )


@target
def model_config(folder):
    from keras_transformer.serve.model_config import read_config_file

    path = folder / "models.config"
    text = """model_config_list { config { name: "a" base_path: "/b"
        model_platform: "tensorflow"
        model_version_policy { specific { versions: 1 } }
        version_labels { key: "stable" value: 1 } } }"""
    return file_of(path, lambda: read_config_file(path)), [text.encode()]


@target
def tokens(folder):
    from keras_transformer.serve.access import read_tokens

    path = folder / "tokens"
    return file_of(path, lambda: read_tokens(path)), [b"one\ntwo\n"]


# === Models of others ===


def members_of(folder, read):
    """Returns a function that replaces one of the files of a folder, and seeds
    of it."""
    names = sorted(
        path.name for path in folder.iterdir() if path.name != "README.md"
    )
    whole = {name: (folder / name).read_bytes() for name in names}

    def replace(name):
        def use(data):
            try:
                (folder / name).write_bytes(data)
                read()
            finally:
                (folder / name).write_bytes(whole[name])

        return use

    seeds = [
        [data] if len(data) < SMALL_FILES else [] for data in whole.values()
    ]
    return chosen([replace(name) for name in names]), seeds_of(*seeds)


def read_marian(reader, folder):
    """Does what `import_marian` does, up to building the model."""
    from keras_transformer.data.tokenizer import Tokenizer
    from keras_transformer.integrations.marian import importer, weights
    from keras_transformer.integrations.marian.vocabulary import (
        rows_in_our_order,
        sentencepiece_model,
    )

    checkpoint = reader.read(folder)
    checkpoint = importer._with_cleaning(checkpoint, "a", folder)
    rows = []
    for side in checkpoint.sides:
        rows.append(rows_in_our_order(len(side.pieces), side.special))
        tokenizer = Tokenizer(
            sentencepiece_model(side.model, side.pieces, side.special)
        )
        tokenizer.encode(["Room 7"])
    config = importer._config(checkpoint, *rows)
    weights._check_sizes(checkpoint.weights, config)


@target
def hub_folder(folder):
    from keras_transformer.integrations.marian import model_files

    names = "*.json", "*.spm", "*.safetensors"
    for path in [path for name in names for path in TINY.glob(name)]:
        if path.name not in ("outputs.json", "tokens.json"):
            shutil.copy(path, folder)
    return members_of(folder, lambda: read_marian(model_files, folder))


@target
def marian_folder(folder):
    from test_marian import original_files

    from keras_transformer.integrations.marian import npz_file

    original_files(TINY, folder / "en-de")
    path = folder / "en-de"
    use, seeds = members_of(path, lambda: read_marian(npz_file, path))
    # The archive is too large for a seed: its parts are small.
    small = io.BytesIO()
    np.savez(small, **{"special:model.yml": np.frombuffer(b"a: 1\0", "int8")})
    config = np.load(path / "model.npz")["special:model.yml"].tobytes()
    return chosen(
        [
            use,
            lambda data: npz_file._yaml(data, "a"),
            file_of(
                folder / "a.npz", lambda: npz_file._arrays(folder / "a.npz")
            ),
        ]
    ), seeds_of(seeds, [config], [small.getvalue()])


@target
def torch_files(folder):
    from keras_transformer.integrations.marian.torch_file import read_torch_file

    path = folder / "pytorch_model.bin"
    seeds = [x.read_bytes() for x in sorted(TINY.parent.glob("*.bin"))]
    # Without checksums, so that the pickle can be changed.
    names = "data.pkl", "byteorder", "data/0"

    def as_members(data):
        parts = data.split(b"|||")
        with zipfile.ZipFile(path, "w") as archive:
            for name, part in zip(names, parts, strict=False):
                archive.writestr(f"a/{name}", part)
        read_torch_file(path)

    members = []
    for data in seeds:
        if data.startswith(b"PK"):
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                found = archive.namelist()
                (pickle,) = (x for x in found if x.endswith("data.pkl"))
                members.append(
                    archive.read(pickle) + b"|||little|||" + bytes(64)
                )
    return chosen([file_of(path, lambda: read_torch_file(path)), as_members]), (
        seeds_of(seeds, members)
    )


@target
def vocabularies(folder):
    from keras_transformer.data.tokenizer import Tokenizer

    def use(data):
        tokenizer = Tokenizer(data)
        (ids,) = tokenizer.encode(["Room 7 ist im dritten Stock."])
        tokenizer.decode([ids])

    seeds = [(TINY / "source.spm").read_bytes()]
    return use, [*seeds, train_small_tokenizer().model]


def train_small_tokenizer():
    from keras_transformer.data.builtin.phrases import pairs_of_split
    from keras_transformer.data.tokenizer import train_tokenizer

    texts = [text for pair in pairs_of_split("train", 300) for text in pair]
    return train_tokenizer(texts, 400)


# === Files of this package ===


@target
def checkpoint_files(folder):
    from keras_transformer.training import checkpoints

    path = folder / "step-00000001.npz"
    arrays = {"weights/a": np.arange(6.0, dtype="float32").reshape(2, 3)}
    checkpoints.write(path, arrays, {"step": 1, "run": "x", "logs": {}})

    def read():
        checkpoints.read(path)
        checkpoints.read_metadata(path)

    def with_metadata(data):
        text = data.decode(errors="replace")
        np.savez(path, about=np.array(text), **arrays)
        read()

    metadata = json.dumps(checkpoints.read_metadata(path))
    return chosen([file_of(path, read), with_metadata]), seeds_of(
        [path.read_bytes()], [metadata]
    )


@target
def run_folder(folder):
    from keras_transformer.config import TransformerConfig
    from keras_transformer.training import run as runs
    from keras_transformer.training.callbacks import read_log
    from keras_transformer.training.recipe import Recipe
    from keras_transformer.training.resume import best_step

    tokenizer = train_small_tokenizer()
    shape = TransformerConfig.preset("tiny", vocab_size=tokenizer.vocab_size)
    recipe = Recipe(corpus="builtin", vocab_size=tokenizer.vocab_size)
    run = runs.Run(folder, shape, recipe, tokenizer, tokenizer, "x")
    runs.write_run(run, folder)
    record = (folder / "run.json").read_bytes()
    run.checkpoints.mkdir()

    def read_run():
        try:
            runs.open_run(folder)
        finally:
            (folder / "run.json").write_bytes(record)

    readers = {
        folder / "run.json": read_run,
        folder / "log.jsonl": lambda: read_log(folder),
        folder / "starts.jsonl": lambda: runs.steps_to_train(run),
        run.checkpoints / "validated.json": lambda: best_step(run),
    }
    return chosen([file_of(*x) for x in readers.items()]), seeds_of(
        [record],
        ['{"step": 4, "loss": 1.5}\n{"step": 8}\n'],
        ['{"steps": 5}\n'],
        ['{"4": {"step": 4, "val_bleu": 1.5, "waited": 0}}'],
    )


@target
def prepared_corpus(folder):
    from keras_transformer.data.options import Preparation
    from keras_transformer.data.preparation import prepare
    from keras_transformer.data.prepared_corpus import (
        MANIFEST,
        PreparedCorpus,
        sha256,
    )

    path = folder / "prepared"
    settings = Preparation(vocab_size=400)
    rows = [{"en": "A room.", "de": "Ein Raum."}] * 9
    tokenizer = train_small_tokenizer()
    prepare(
        [rows], path, settings, tokenizers=(tokenizer, tokenizer), evaluation={}
    )
    whole = {x: x.read_bytes() for x in path.iterdir() if x.is_file()}
    manifest = json.loads(whole[path / MANIFEST])

    def read():
        corpus = PreparedCorpus(path)
        if len(corpus):
            corpus.read([0, len(corpus) - 1], 1)

    def array(kind):
        def use(data):
            """Reads a file whose checksum is right."""
            changed = json.loads(json.dumps(manifest))
            (shard,) = changed["corpora"][0]["shards"]
            shard["sha256"][kind] = sha256(data)
            (path / f"{shard['name']}.{kind}.npy").write_bytes(data)
            (path / MANIFEST).write_text(json.dumps(changed))
            try:
                read()
            finally:
                for file, content in whole.items():
                    file.write_bytes(content)

        return use

    def other_manifest(data):
        try:
            file_of(path / MANIFEST, read)(data)
        finally:
            (path / MANIFEST).write_bytes(whole[path / MANIFEST])

    kinds = {x.name.split(".")[-2]: x for x in whole if x.suffix == ".npy"}
    return chosen([other_manifest, *map(array, kinds)]), seeds_of(
        [whole[path / MANIFEST]], *([whole[x]] for x in kinds.values())
    )


@target
def tables(folder):
    from keras_transformer.data import table_files, text_files

    def reading(name, read):
        path = folder / name

        def use(data):
            path.write_bytes(data)
            for _ in read([path]).with_damaged():
                pass

        return use

    def lines(name):
        path = folder / name
        return file_of(path, lambda: text_files.read_lines(path))

    import pyarrow
    from pyarrow import parquet

    table = io.BytesIO()
    parquet.write_table(
        pyarrow.table({"en": ["a", None], "de": ["b", "c"]}), table
    )
    tsv = b'en\tde\na\tb\n"c ""d"\te\n'
    seeds = [
        [tsv, b"en\tde\na\tb\n"],
        [b"a\tb\nc\td\n"],
        [table.getvalue()],
        [b"a\nb\r\nc"],
        [gzip.compress(b"a\nb\n")],
        [pyarrow.compress(b"a\nb\n", "zstd", asbytes=True)],
    ]
    return chosen(
        [
            reading("a.tsv", lambda x: table_files.tsv_pairs(x, "en", "de")),
            reading("b.tsv", lambda x: table_files.tsv_pairs(x, "1", "2")),
            reading(
                "a.parquet", lambda x: table_files.parquet_pairs(x, "en", "de")
            ),
            *map(lines, ("a.en", "a.en.gz", "a.en.zst")),
        ]
    ), seeds_of(*seeds)


@target
def texts(folder):
    from keras_transformer.data import cleaning

    def use(data):
        text = data.decode(errors="replace")
        for rule in cleaning.RULES:
            cleaning.clean(text, rule).encode()
        cleaning.is_blank(text)

    seeds = ["Room\u00ad 7", "e\u0301", "\u200b", "\ufeffx", "か\u3099"]
    return use, [seed.encode() for seed in seeds]


# === Running them ===


def checked(use):
    """Returns a function that raises an `AssertionError` for a fault."""

    def check(data):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.monotonic()
        try:
            use(data)
        except ValueError as error:
            message = str(error)
            assert len(message) < LONGEST_MESSAGE, message[:500]
        seconds = time.monotonic() - start
        assert seconds < SECONDS, f"{seconds:.1f} seconds"
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        grown = 1024 * (after - before)
        times, least = MEMORY
        assert grown < times * len(data) + least, f"{grown:,} bytes"

    return check


@contextlib.contextmanager
def harness(name):
    """Yields a checked function and its seeds."""
    with (
        tempfile.TemporaryDirectory() as folder,
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        use, seeds = TARGETS[name](pathlib.Path(folder))
        for seed in seeds:  # imports what it needs, which takes memory
            with contextlib.suppress(ValueError):
                use(seed)
        yield checked(use), seeds


def changed(seed, draw):
    """Returns a seed with a few changes."""
    data = bytearray(seed)
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(1, len(data) + 1)
        match draw.randrange(4):
            case 0:
                data[place:place] = draw.randbytes(draw.randint(1, 9))
            case 1:
                del data[place : place + draw.randint(1, 9)]
            case 2:
                data[place : place + 1] = draw.choice(
                    [b"1e999", b"[" * 3000, b"-1", b"9" * 40, b"null", b"\xff"]
                )
            case _:
                del data[place:]
    return bytes(data)


def fuzz(name, seconds, folder):
    """Fuzzes one target; ends the process."""
    import atheris

    ours = ["keras_transformer", "yaml", "zipfile", "pickletools"]
    with atheris.instrument_imports(include=ours):
        import pickletools  # noqa: F401
        import zipfile  # noqa: F401

        import yaml  # noqa: F401

        context = harness(name)
        use, seeds = context.__enter__()
    corpus = folder / name
    corpus.mkdir(parents=True, exist_ok=True)
    for i, seed in enumerate(seeds):
        (corpus / f"seed-{i}").write_bytes(seed)
    arguments = [
        sys.argv[0],
        str(corpus),
        f"-max_total_time={seconds}",
        f"-timeout={int(SECONDS)}",
        f"-artifact_prefix={folder}/{name}-",
        f"-max_len={SMALL_FILES}",
        "-rss_limit_mb=0",  # ours is relative
        "-print_final_stats=1",
    ]
    atheris.Setup(arguments, use)
    atheris.Fuzz()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--seconds", type=int, default=20, help="for each")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    folder = pathlib.Path("runs/fuzz")
    if given.inside:
        fuzz(given.targets[0], given.seconds, folder)
    folder.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in given.targets or TARGETS:
        command = [sys.executable, __file__, name, "--inside"]
        command += ["--seconds", str(given.seconds)]
        log = folder / f"{name}.txt"
        with open(log, "w") as file:
            done = subprocess.run(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
            )
        text = log.read_text(errors="replace")
        count = re.findall(r"number_of_executed_units: (\d+)", text)
        if not count:
            count = re.findall(r"^#(\d+)\t", text, re.MULTILINE)
        result = "no fault" if done.returncode == 0 else f"FAULT, see {log}"
        failed += [name] if done.returncode else []
        executions = int(count[-1]) if count else 0
        print(f"{name:18}{executions:>11,} executions  {result}", flush=True)
    sys.exit(f"Faults in {', '.join(failed)}." if failed else 0)


if __name__ == "__main__":
    main()
