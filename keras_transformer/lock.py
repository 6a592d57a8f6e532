"""A lock on a folder, so that only one process works in it."""

import contextlib
import os
import pathlib
from collections.abc import Iterator

try:
    import fcntl
except ImportError:  # the system has no such locks
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def lock(folder: str | os.PathLike, purpose: str) -> Iterator[None]:
    """Holds the lock of a folder.

    The system releases the lock when the process ends, even if it is killed.

    Args:
        folder: the folder.
        purpose: what it is locked for, such as "train a run".

    Raises:
        ValueError: if another process holds the lock.
    """
    if fcntl is None:
        yield
        return
    with open(pathlib.Path(folder, ".lock"), "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                f"Only one process may {purpose}. Received: "
                f"{str(folder)!r}, in which another process works. Wait for "
                "that process, or stop it."
            ) from error
        except OSError:
            pass  # a file system without locks
        yield
