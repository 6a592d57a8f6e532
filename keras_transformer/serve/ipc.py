"""Messages between the server and the processes of its models.

A message is pickled, with its length before it. Both ends are started by the
server, so nothing that a client sends is ever unpickled.
"""

import asyncio
import pickle
import socket
import struct
from typing import Any

LENGTH = struct.Struct("!Q")


def packed(message: Any) -> bytes:
    """Returns the bytes of a message."""
    data = pickle.dumps(message, protocol=5)
    return LENGTH.pack(len(data)) + data


async def receive(reader: asyncio.StreamReader) -> Any:
    """Returns the next message.

    Raises:
        asyncio.IncompleteReadError: if the other process has ended.
    """
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    return pickle.loads(await reader.readexactly(length))


def receive_from(connection: socket.socket) -> Any:
    """Returns the next message of a socket, or `None` at its end."""
    header = _exactly(connection, LENGTH.size)
    data = header and _exactly(connection, *LENGTH.unpack(header))
    return pickle.loads(data) if data else None


def _exactly(connection, length):
    """Returns `length` bytes, or none if the socket ends before."""
    data = bytearray(length)
    view = memoryview(data)
    while view:
        count = connection.recv_into(view)
        if not count:
            return b""
        view = view[count:]
    return bytes(data)
