"""Files and folders that are written whole or not at all."""

import contextlib
import glob
import os
import pathlib
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from keras_transformer.lock import lock

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


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
        OSError: if the file cannot be written. The error names `path`.
    """
    path = pathlib.Path(path)
    # Processes of several machines may have the same number.
    unique = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
    temporary = path.with_name(f".{path.name}.{unique}")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        # A full disk names no file.
        if error.filename not in (None, temporary, str(temporary)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def remove_partial(folder: str | os.PathLike) -> None:
    """Removes the temporary files that killed processes left in a folder.

    No other process may be writing there.
    """
    for path in pathlib.Path(folder).glob(".*"):
        if re.search(r"\.\d+-[0-9a-f]{8}\Z", path.name):
            path.unlink(missing_ok=True)


def make_folder(folder: str | os.PathLike) -> list[pathlib.Path]:
    """Makes a folder, and returns the folders above it that were missing."""
    folder = pathlib.Path(folder)
    missing = [path for path in folder.parents if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return missing


def remove_folder(folder: str | os.PathLike, above: Iterable[pathlib.Path]):
    """Removes a folder, and those above it if they are empty."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        for path in above:
            path.rmdir()


def check_is_new(
    path: pathlib.Path, name: str, remedy: str = "Name another."
) -> None:
    """Checks that there is nothing yet where a file or folder will be written.

    Args:
        path: where it will be.
        name: what the message calls it, such as "folder of an export".
        remedy: what the message advises. Defaults to another name, since what
            is there may be somebody's work.

    Raises:
        ValueError: if there is something.
    """
    if path.exists():
        raise ValueError(
            f"The {name} must not exist. Received: {str(path)!r}. {remedy}"
        )


@contextlib.contextmanager
def folder_aside(folder: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Makes a temporary folder, which is renamed when it is complete.

    Used as `with folder_aside(folder) as temporary:`. On an error the temporary
    folder is deleted, and so are those that killed processes have left.
    """
    folder = pathlib.Path(folder)
    for left in folder.parent.glob(f".{glob.escape(folder.name)}.*"):
        if re.search(r"\.\d+\Z", left.name):
            with contextlib.suppress(OSError), _locked(left):
                shutil.rmtree(left)
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    above = make_folder(aside)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # a file system without locks
            stack.enter_context(_locked(aside))
        try:
            yield aside
            os.rename(aside, folder)
            sync_folder(folder.parent)
        except BaseException:
            remove_folder(aside, above)
            raise


@contextlib.contextmanager
def _locked(folder):
    """Holds the lock of a folder until the process ends, even if it is killed.

    Raises:
        OSError: if another process holds it, or there are no such locks.
    """
    if fcntl is None:
        raise OSError("no locks")
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def resumable_folder(
    folder: str | os.PathLike, record: str, identity: str, purpose: str
) -> Iterator[pathlib.Path]:
    """Holds the temporary folder of a long job, with what is done already.

    Used as `with resumable_folder(...) as temporary:`. It is renamed when the
    job is done. It stays if the process is stopped or the disk is full, so that
    the same job can go on, and is emptied for another job.

    Args:
        folder: folder of the result, which does not exist.
        record: name of a file in it, which holds the identity.
        identity: says which job it is.
        purpose: what the folder is locked for, such as "prepare a corpus".

    Raises:
        ValueError: if another process holds the folder.
    """
    folder = pathlib.Path(folder)
    aside = folder.with_name(f".{folder.name}.preparing")
    above = make_folder(aside)
    with lock(aside, purpose):
        empty_for_other_job(aside / record, identity)
        try:
            yield aside
        except ValueError:  # the same job would fail again
            remove_folder(aside, above)
            raise
        (aside / ".lock").unlink(missing_ok=True)
        os.rename(aside, folder)
        sync_folder(folder.parent)


def empty_for_other_job(record: pathlib.Path, identity: str) -> None:
    """Empties the folder of `record`, except for its lock, unless `record`
    holds `identity`: then the work in it is of the same job."""
    if record.exists() and record.read_text() == identity:
        return
    for path in record.parent.iterdir():
        if path.name != ".lock":
            path.unlink()
    with write_aside(record) as file:
        file.write(identity.encode())
