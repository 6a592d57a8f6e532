"""Connections of HTTP: limits that uvicorn does not have."""

import asyncio
import contextlib
import logging
import socket
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from keras_transformer.serve import rest
from keras_transformer.serve.errors import ServingError

SECONDS_FOR_HEAD = 10.0  # from a request's first byte to its last header
SECONDS_IDLE = 75  # more than a load balancer's usual 60
SECONDS_TO_READ = 30.0  # in which a client must read some of its answer
FIRST_PROBE = 0.1  # seconds; pauses between probes double
FILES_BESIDE = 256  # open files that are not connections
logger = logging.getLogger("keras_transformer.serve")


class Connection(H11Protocol):
    """uvicorn's connection, with these limits:

    - The head of a request must arrive in time.
    - Where there are too many connections, the one that has been without a
      request for longest is closed, and the new one if all are at work.
    - A client that ends its side after the request, as `nc` does, is answered.

    Args:
        waiting: the connections of the server that have no request, longest
            first; the same dictionary for all.
        most: maximum number of connections.
        arguments: those of uvicorn.
    """

    def __init__(
        self,
        *,
        waiting: dict["Connection", None],
        most: int,
        **arguments: Any,
    ):
        super().__init__(**arguments)
        self._waiting = waiting
        self._most = most
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._waiting[self] = None
        self._start_head_timer()
        if len(self.connections) > self._most:
            longest = next(iter(self._waiting))
            if longest is self:
                self._refuse("RESOURCE_EXHAUSTED", "Too many connections.", 503)
            else:
                longest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting.pop(self, None)
        self._stop_head_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._note_state()
        if self in self._waiting and self._head_timer is None:
            self._start_head_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._note_state()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Returns `True` to keep the connection until its answer is sent.

        A client that has gone looks the same, until something is sent to it.
        """
        if (
            self in self._waiting
            or self.cycle.more_body
            or self.scope["http_version"] != "1.1"
            or self.scheme != "http"  # TLS has no half of a connection
        ):
            return None
        self.cycle.keep_alive = False
        self._probe(FIRST_PROBE)
        return True

    def send_400_response(self, msg: str) -> None:
        self._refuse("INVALID_ARGUMENT", "This is no request of HTTP.", 400)

    def _note_state(self):
        if self.cycle is not None and not self.cycle.response_complete:
            self._waiting.pop(self, None)
            self._stop_head_timer()
        elif not self.transport.is_closing():
            self._waiting.setdefault(self)

    def _start_head_timer(self):
        self._head_timer = self.loop.call_later(
            SECONDS_FOR_HEAD, self._head_is_late
        )

    def _stop_head_timer(self):
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self):
        if not self.conn.trailing_data[0]:  # nothing was sent, nor expected
            self.transport.close()
            return
        message = (
            "The request's head has not arrived in "
            f"{SECONDS_FOR_HEAD:.0f} seconds."
        )
        self._refuse("DEADLINE_EXCEEDED", message, 408)

    def _refuse(self, code, message, status):
        """Answers with an error, and closes the connection."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        body = rest.error_body(ServingError(code, message))
        headers = [
            *rest.JSON,
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
        for event in (
            h11.Response(status_code=status, headers=headers),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event))
        self.transport.close()

    def _probe(self, pause):
        """Sends what only a client that has gone refuses: RFC 9110, 15.2."""
        if self.cycle.response_started or self.transport.is_closing():
            return
        interim = h11.InformationalResponse(status_code=102, headers=[])
        self.transport.write(self.conn.send(interim))
        self.loop.call_later(pause, self._probe, 2 * pause)


def limit_reading(listening: socket.socket) -> None:
    """Closes connections of a socket whose clients do not read their answers.

    Other systems than Linux have no such limit.
    """
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        milliseconds = int(1000 * SECONDS_TO_READ)
        listening.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds
        )


def allow_files(connections: int) -> None:
    """Raises the soft limit of open files, as far as the system allows.

    Args:
        connections: number of connections of each of the two protocols.
    """
    with contextlib.suppress(ImportError):  # Windows has no such limit
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 2 * connections + FILES_BESIDE
        allowed = (
            wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        )
        if resource.RLIM_INFINITY != soft < allowed:
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        if allowed < wanted:
            logger.warning(
                "%d connections need up to %d open files, and %d are allowed. "
                "Raise the limit (`ulimit -Hn`) or lower --max-connections.",
                connections,
                wanted,
                allowed,
            )
