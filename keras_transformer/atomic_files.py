"""Files that are written whole or not at all."""

import contextlib
import os
import pathlib


def sync_folder(folder):
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
def write_aside(path):
    """`with write_aside(path) as file:` fills a temporary file that takes its
    name when it is complete; on an error nothing is left.

    Raises:
        OSError: with the path, which a full disk does not tell by itself.
    """
    path = pathlib.Path(path)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(aside, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
        sync_folder(path.parent)
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        aside.unlink(missing_ok=True)
