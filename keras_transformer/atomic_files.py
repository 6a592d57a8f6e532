"""Files that are written whole or not at all."""

import contextlib
import os
import pathlib
from collections.abc import Iterator
from typing import BinaryIO


def sync_folder(folder: str | os.PathLike) -> None:
    """Flushes the names in a folder to the disk, where the system can."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # a system that opens no folders
        return
    try:
        os.fsync(descriptor)
    except OSError:  # a file system that does not flush folders
        pass
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def write_aside(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Opens a temporary file, which is renamed to `path` when it is complete.

    Used as `with write_aside(path) as file:`. On an error the temporary file
    is deleted.

    Raises:
        OSError: if the file cannot be written. The error names the path, which
            the error of a full disk does not do by itself.
    """
    path = pathlib.Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)
