"""The HTTP application: REST, the page, health and metrics, by ASGI.

`rest.py` has TensorFlow Serving's protocol; this module has what surrounds it:
limits, the token, clients that go away, the access log.
"""

import asyncio
import contextlib
import json
import logging
import re
import sys
import time
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

from keras_transformer.serve import rest, web_page
from keras_transformer.serve.access import Tokens
from keras_transformer.serve.errors import ServingError, invalid, quoted
from keras_transformer.serve.metrics import Metrics
from keras_transformer.serve.model_registry import ModelRegistry
from keras_transformer.serve.rest import Answer
from keras_transformer.serve.settings import ServeSettings

TEXT = [("Content-Type", "text/plain; charset=utf-8")]
METRICS = [("Content-Type", "text/plain; version=0.0.4; charset=utf-8")]
# Regular requests of machines, which would fill the access log.
PROBES = {"/healthz", "/readyz", "/metrics"}
# These need no token: health checks have none, and the page asks for it.
OPEN_PATHS = {"/healthz", "/readyz", *web_page.FILES}
MOST_GZIP_PARTS = 100  # each part of a body costs a copy of the rest
# A client that sends a body more slowly is not waited for.
SECONDS_TO_SEND = 30.0
logger = logging.getLogger("keras_transformer.serve")


class ClientGoneError(Exception):
    """The client has closed the connection."""


class Application:
    """An ASGI application that serves the models of a `ModelRegistry`.

    Args:
        models: the models.
        settings: limits and options.
        metrics: what `/metrics` shows.
        tokens: tokens of which clients must send one, or `None`.
    """

    def __init__(
        self,
        models: ModelRegistry,
        settings: ServeSettings,
        metrics: Metrics,
        tokens: Tokens | None = None,
    ):
        self.models = models
        self.settings = settings
        self.metrics = metrics
        self.tokens = tokens
        self.is_stopping = False

    async def __call__(
        self,
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[dict]],
        send: Callable[[dict], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http":
            raise ValueError(
                f"Only HTTP is served. Received: {scope['type']!r}."
            )
        start = time.monotonic()
        path = scope["raw_path"].decode("latin-1")
        # The absolute form, which proxies may send: RFC 9112, section 3.2.2.
        path = re.sub(r"^https?://[^/?]*", "", path, flags=re.IGNORECASE)
        headers = {
            key.decode("latin-1").lower(): value.decode("latin-1")
            for key, value in scope["headers"]
        }
        size = 0
        try:
            self._check_token(scope["method"], path, headers)
            is_preflight = scope["method"] == "OPTIONS"  # it needs no token
            body = b""
            if not is_preflight:
                body = await self._body(headers, receive)
            size = len(body)
            answer = await _unless_gone(
                self._answer(scope["method"], path, headers, body), receive
            )
        except ClientGoneError:
            self._note(scope, path, 499, start, size)
            return
        except ServingError as error:
            answer = rest.error_answer(error)
        except Exception as error:
            logger.exception("A request failed: %s", error)
            error = ServingError("INTERNAL", "Internal error.")
            answer = rest.error_answer(error)
        self._note(scope, path, answer.status, start, size)
        fields = [*answer.headers, *self._more_headers(path, answer.status)]
        deadline = start + self.settings.timeout  # of the event loop's clock
        await _send(answer, fields, scope["method"], send, receive, deadline)

    async def _answer(self, method, path, headers, body) -> Answer:
        """Returns the answer of the part of the server that a path names."""
        name = path.partition("?")[0]
        if _is_rest(path):
            return await rest.answer(
                method,
                path,
                body,
                self.models,
                self.settings.timeout,
                headers.get("origin", ""),
            )
        if name in PROBES and method not in ("GET", "HEAD"):
            raise ServingError(
                "UNIMPLEMENTED",
                f"{name} takes GET and HEAD. Received: {quoted(method)}.",
                http_status=405,
            )
        if name == "/healthz":
            return Answer(200, TEXT, b"alive\n")
        if name == "/readyz":
            if self.models.are_ready and not self.is_stopping:
                return Answer(200, TEXT, b"ready\n")
            return Answer(503, TEXT, b"not ready\n")
        if name == "/metrics":
            return Answer(200, METRICS, self.metrics.text())
        return await web_page.answer(method, name, body, self.models)

    async def _body(self, headers, receive):
        """Returns the body of a request, unless it is too large or slow."""
        limit = self.settings.max_body
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > limit:
            raise _too_large(limit)
        body = bytearray()
        try:
            async with asyncio.timeout(SECONDS_TO_SEND):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGoneError
                    body += message.get("body", b"")
                    if len(body) > limit:
                        raise _too_large(limit)
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            raise ServingError(
                "DEADLINE_EXCEEDED",
                "The request's body has not arrived in "
                f"{SECONDS_TO_SEND:.0f} seconds.",
                http_status=408,
            ) from None
        except asyncio.CancelledError:  # by uvicorn, when its time is over
            if not self.is_stopping:
                raise
            raise ServingError(
                "UNAVAILABLE",
                "The server ends before the request's body has arrived.",
            ) from None
        if not body:
            return b""
        return _decoded(headers.get("content-encoding", ""), body, limit)

    def _check_token(self, method, path, headers):
        if self.tokens is None or path.partition("?")[0] in OPEN_PATHS:
            return
        # A browser asks without the token whether a page may send it.
        if method == "OPTIONS" and self.settings.cors and _is_rest(path):
            return
        if not self.tokens.allow(headers.get("authorization", "")):
            raise ServingError(
                "UNAUTHENTICATED",
                "A bearer token is needed in the header `Authorization`.",
            )

    def _more_headers(self, path, status):
        """Returns the headers that do not depend on an answer's content."""
        headers = [("X-Content-Type-Options", "nosniff")]
        if status == 401:
            headers.append(("WWW-Authenticate", "Bearer"))
        if self.settings.cors and _is_rest(path):
            # They let pages of any site ask and read answers.
            more = ", Authorization" if self.tokens else ""
            headers += [
                ("Access-Control-Allow-Origin", "*"),
                ("Access-Control-Allow-Methods", "POST, GET"),
                ("Access-Control-Allow-Headers", f"Content-Type{more}"),
            ]
        return headers

    def _note(self, scope, path, status, start, size):
        """Counts a request, and writes it to the access log."""
        seconds = time.monotonic() - start
        self.metrics.requests.labels("http", str(status)).inc()
        self.metrics.latency.labels("http").observe(seconds)
        if self.settings.access_log and path not in PROBES:
            client = scope.get("client") or ("unknown", 0)
            log_access(
                "http",
                client[0],
                f"{scope['method']} {path}",
                status,
                size,
                seconds,
            )


def log_access(
    protocol: str,
    client: str,
    request: str,
    status: int | str,
    size: int,
    seconds: float,
) -> None:
    """Writes a line of JSON about a request to standard output."""
    line = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "protocol": protocol,
        "client": client,
        "request": request,
        "status": status,
        "bytes": size,
        "seconds": round(seconds, 4),
    }
    with contextlib.suppress(OSError):  # nobody reads the log any more
        print(json.dumps(line), file=sys.stdout, flush=True)


async def _send(answer, fields, method, send, receive, deadline):
    """Sends an answer; one in pieces until the client goes or it is too late,
    when the connection is closed."""
    is_whole = isinstance(answer.body, bytes)
    if is_whole:
        fields.append(("Content-Length", str(len(answer.body))))
    await send(
        {
            "type": "http.response.start",
            "status": answer.status,
            "headers": [
                (name.lower().encode(), value.encode("latin-1"))
                for name, value in fields
            ],
        }
    )
    if is_whole:
        body = b"" if method == "HEAD" else answer.body
        await send({"type": "http.response.body", "body": body})
        return
    leaving = asyncio.ensure_future(_disconnected(receive))
    try:
        async with asyncio.timeout_at(deadline):
            more = True
            while more and not leaving.done():
                piece = await asyncio.to_thread(next, answer.body, b"")
                more = bool(piece)
                message = {"type": "http.response.body", "body": piece}
                await send(message | {"more_body": more})
    except TimeoutError:
        logger.warning("An answer was not sent in time, and is cut off.")
    finally:
        leaving.cancel()


async def _unless_gone(coroutine, receive):
    """Returns the result of a coroutine, which ends if the client goes."""
    working = asyncio.ensure_future(coroutine)
    leaving = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait(
            {working, leaving}, return_when=asyncio.FIRST_COMPLETED
        )
        if not working.done():
            raise ClientGoneError
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()


async def _disconnected(receive):
    while (await receive())["type"] != "http.disconnect":
        pass


def _decoded(encoding, body, limit):
    """Returns the content of a body, unless it is too large.

    Args:
        encoding: value of the header `Content-Encoding`, "" without one.
    """
    encoding = encoding.strip().lower()
    if encoding == "gzip":
        return _decompressed(body, limit)
    if encoding not in ("", "identity"):
        raise ServingError(
            "UNIMPLEMENTED",
            "The encoding of a body is gzip or identity. Received: "
            f"{quoted(encoding)}.",
            http_status=415,
        )
    return bytes(body)


def _decompressed(body, limit):
    """Returns the content of a gzip file, unless it is too large."""
    content = b""
    for _ in range(MOST_GZIP_PARTS):
        # 16 more than the largest window say that it is gzip, not zlib.
        part = zlib.decompressobj(16 + zlib.MAX_WBITS)
        try:
            content += part.decompress(body, limit + 1 - len(content))
        except zlib.error:
            raise _not_gzip("in another format") from None
        if len(content) > limit:
            raise _too_large(limit)
        if not part.eof:
            raise _not_gzip("cut short")
        body = part.unused_data
        if not body.strip(b"\0"):  # files may be padded
            return content
    raise _not_gzip(f"in more than {MOST_GZIP_PARTS} parts")


def _not_gzip(reason):
    return invalid(f"The gzip body is {reason}.")


def _is_rest(path):
    """Returns whether a path belongs to TensorFlow Serving's protocol."""
    return path.lower().startswith("/v1/")


def _too_large(limit):
    return ServingError(
        "INVALID_ARGUMENT",
        f"The body of a request may have {limit:,} bytes. Send less at a time.",
        http_status=413,
    )
