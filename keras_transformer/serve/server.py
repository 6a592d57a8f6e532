"""Starts the server: its models, HTTP and gRPC; start reading here."""

import asyncio
import contextlib
import functools
import logging
import pathlib
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
import uvicorn
from tensorflow_serving.apis import (
    model_service_pb2_grpc,
    prediction_service_pb2_grpc,
)

from keras_transformer.serve.access import Tokens
from keras_transformer.serve.connections import (
    SECONDS_FOR_HEAD,
    SECONDS_IDLE,
    Connection,
    allow_files,
    limit_reading,
)
from keras_transformer.serve.engine import Engine, LocalEngine
from keras_transformer.serve.grpc_services import (
    ModelService,
    PredictionService,
    Watcher,
)
from keras_transformer.serve.http_app import Application
from keras_transformer.serve.metrics import Metrics
from keras_transformer.serve.model_config import ModelConfig
from keras_transformer.serve.model_registry import ModelRegistry
from keras_transformer.serve.served_model import ServedModel
from keras_transformer.serve.settings import ServeSettings
from keras_transformer.stop_signals import stop_signals

StartEngine = Callable[[pathlib.Path, int | None], Awaitable[Engine]]
LARGEST_OF_GRPC = 2**31 - 1  # bytes of a message
SECONDS_IDLE_OF_GRPC = 600  # a client connects again by itself
STREAMS_OF_CONNECTION = 256  # calls at once; a client lets more wait
logger = logging.getLogger("keras_transformer.serve")


def serve(
    read_configs: Callable[[], Sequence[ModelConfig]],
    settings: ServeSettings | None = None,
    start_engine: StartEngine = LocalEngine.start,
) -> None:
    """Serves models until a signal to stop, then finishes what it accepted.

    Args:
        read_configs: returns the models to serve. It is called before each
            look for new versions.
        settings: limits and options. Defaults to `ServeSettings()`.
        start_engine: coroutine function of a folder and `settings.threads`
            that returns an `Engine`. Defaults to a process of this machine.

    Raises:
        ValueError: if no model can be loaded, or the certificate is of no use.
        OSError: if a port cannot be opened or a file cannot be read.
    """
    settings = settings or ServeSettings()
    logging.basicConfig(
        stream=sys.stderr, format="keras-transformer: %(message)s"
    )
    logger.setLevel(logging.INFO)
    asyncio.run(_serve(read_configs, settings, start_engine))


async def _serve(read_configs, settings, start_engine):
    metrics = Metrics()
    tokens = None
    if settings.token_file is not None:
        tokens = Tokens(settings.token_file)
    _check_tls(settings)
    allow_files(settings.max_connections)

    async def start_version(name, path):
        engine = await start_engine(path, settings.threads)
        try:
            return ServedModel(name, path, engine, settings, metrics)
        except BaseException:
            await engine.stop()
            raise

    models = ModelRegistry(read_configs, start_version, settings.poll_seconds)
    application = Application(models, settings, metrics, tokens)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in stop_signals():
        loop.add_signal_handler(number, stopping.set)

    listening = _listen(settings.host, settings.port)
    try:
        grpc_server, grpc_port = _grpc_server(models, settings, metrics, tokens)
    except BaseException:
        listening.close()
        raise
    await grpc_server.start()
    http_server = _HttpServer(application, settings)
    answering = asyncio.create_task(http_server.serve([listening]))
    loading = asyncio.create_task(models.update())
    waiting = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait(
            {loading, waiting}, return_when=asyncio.FIRST_COMPLETED
        )
        if not stopping.is_set():
            loading.result()
            models.require_ready()
            port = listening.getsockname()[1]
            _greet(models, settings, port, grpc_port)
            watching = asyncio.create_task(models.watch())
            await waiting
            logger.info(
                "Stopping: the requests that were accepted are answered."
            )
            watching.cancel()
    finally:
        loading.cancel()
        application.is_stopping = True
        http_server.should_exit = True
        await asyncio.gather(
            grpc_server.stop(settings.timeout),
            asyncio.wait({answering}),
        )
        await models.stop()


class _HttpServer(uvicorn.Server):
    """uvicorn, which leaves the signals to `_serve`."""

    def __init__(self, application, settings):
        # With h11: httptools, which uvicorn would take where it is installed,
        # drops the body of a request that offers HTTP/2, as Java's do.
        connection: Any = functools.partial(
            Connection, waiting={}, most=settings.max_connections
        )
        super().__init__(
            uvicorn.Config(
                application,
                lifespan="off",
                http=connection,
                access_log=False,
                log_config=None,
                log_level="warning",
                timeout_keep_alive=SECONDS_IDLE,
                timeout_graceful_shutdown=int(settings.timeout) + 1,
                server_header=False,
                ws="none",
                ssl_certfile=settings.tls_certificate,
                ssl_keyfile=settings.tls_key,
            )
        )
        # It would advise to install a library for WebSockets.
        logging.getLogger("uvicorn.error").addFilter(
            lambda record: (
                "upgrade" not in record.msg and "WebSocket" not in record.msg
            )
        )

    @contextlib.contextmanager
    def capture_signals(self):
        yield


def _listen(host, port):
    """Returns a socket that listens."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends answers at once (TCP_NODELAY) only if the protocol is named.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        limit_reading(listening)
        listening.listen(1024)
        return listening
    except (OSError, OverflowError) as error:
        listening.close()
        reason = getattr(error, "strerror", None) or str(error).rstrip(".")
        raise OSError(
            f"Port {port} of {host} cannot be opened: {reason}. Choose "
            "another with --port."
        ) from error


def _grpc_server(models, settings, metrics, tokens):
    """Returns the gRPC server and its port."""
    server = grpc.aio.server(
        interceptors=[Watcher(settings, metrics, tokens)],
        options=[
            (
                "grpc.max_receive_message_length",
                min(settings.max_body, LARGEST_OF_GRPC),
            ),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
            ("grpc.max_allowed_incoming_connections", settings.max_connections),
            ("grpc.max_concurrent_streams", STREAMS_OF_CONNECTION),
            ("grpc.max_connection_idle_ms", 1000 * SECONDS_IDLE_OF_GRPC),
            ("grpc.server_handshake_timeout_ms", int(1000 * SECONDS_FOR_HEAD)),
        ],
    )
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
        PredictionService(models, settings), server
    )
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(
        ModelService(models), server
    )
    address = f"{_in_url(settings.host)}:{settings.grpc_port}"
    try:
        if settings.tls_certificate is None:
            port = server.add_insecure_port(address)
        else:
            key = pathlib.Path(settings.tls_key).read_bytes()
            certificate = pathlib.Path(settings.tls_certificate).read_bytes()
            credentials = grpc.ssl_server_credentials([(key, certificate)])
            port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise OSError(
            f"Port {settings.grpc_port} of {settings.host} cannot be opened; "
            "it may be in use. Choose another with --grpc-port."
        ) from error
    return server, port


def _in_url(host):
    """Returns an address as it stands before a colon and a port."""
    return f"[{host}]" if ":" in host else host


def _check_tls(settings):
    """Raises a `ValueError` if the certificate cannot be used with its key."""
    if settings.tls_certificate is None:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    files = settings.tls_certificate, settings.tls_key
    try:
        for file in files:  # OpenSSL does not say which one is missing
            pathlib.Path(file).read_bytes()
        # Without a password OpenSSL would ask for that of a key that has one.
        context.load_cert_chain(*files, password="")
    except OSError as error:
        raise ValueError(
            "A certificate and its key must be files in PEM that belong "
            "together, without a password. Received: "
            f"tls_certificate={files[0]}, tls_key={files[1]}: {error}. Make "
            "both anew, or name the right ones."
        ) from error


def _greet(models, settings, port, grpc_port):
    """Says on standard error where the models are."""
    scheme = "http" if settings.tls_certificate is None else "https"
    host = _in_url(settings.host)
    served = ", ".join(
        f"{name} (version {', '.join(map(str, models.available(name)))})"
        for name in models.names
    )
    logger.info(
        "Serving %s at %s://%s:%d/ and by gRPC at %s:%d. Stop with Ctrl-C.",
        served,
        scheme,
        host,
        port,
        host,
        grpc_port,
    )
