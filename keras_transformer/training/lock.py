"""A lock on the folder of a run: one process trains it."""

import contextlib
import pathlib

try:
    import fcntl
except ImportError:  # a system without it has no lock
    fcntl = None


@contextlib.contextmanager
def lock(folder):
    """Holds the lock of a run's folder; the system frees it when a process
    ends, however it ends.

    Raises:
        ValueError: if another process holds it.
    """
    if fcntl is None:
        yield
        return
    with open(pathlib.Path(folder, ".lock"), "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                "One process alone may train a run. Received: "
                f"{str(folder)!r}, which another process is training. Wait for "
                "it, or end it."
            ) from error
        except OSError:
            pass  # a file system without locks
        yield
