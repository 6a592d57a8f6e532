"""A lock on the folder of a run, so that only one process trains it."""

import contextlib
import os
import pathlib
from collections.abc import Iterator

try:
    import fcntl
except ImportError:  # the system has no such locks
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def lock(folder: str | os.PathLike) -> Iterator[None]:
    """Holds the lock of a run's folder.

    The system releases the lock when the process ends, even if it is killed.

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
                "Only one process may train a run. Received: "
                f"{str(folder)!r}, which another process is training. Wait for "
                "that process, or stop it."
            ) from error
        except OSError:
            pass  # a file system without locks
        yield
