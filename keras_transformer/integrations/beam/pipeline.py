"""Runs pipelines of Apache Beam, again if a worker was killed."""

import builtins
import contextlib
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import PipelineOptions

ATTEMPTS = 4


class WorkerEndedError(ChildProcessError):
    """A worker process of Beam's DirectRunner was killed."""


def run_pipeline(
    build: Callable[[beam.Pipeline], None], options: Sequence[str]
) -> None:
    """Builds and runs a pipeline, again if a worker of DirectRunner is killed.

    Other runners replace a worker by themselves. The steps of the pipeline have
    to write the same bytes when they are repeated.

    Args:
        build: adds the steps to a pipeline.
        options: of the pipeline.

    Raises:
        WorkerEndedError: if a worker was killed in each of four attempts.
        ValueError: if a step has raised one.
        OSError: if a step has raised one.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with _ended_with_its_workers():
                pipeline = beam.Pipeline(options=PipelineOptions(options))
                build(pipeline)
                pipeline.run().wait_until_finish()
            return
        except WorkerEndedError as error:
            if attempt == ATTEMPTS:
                raise
            print(f"{error} The pipeline is run again.", flush=True)
        except RuntimeError as error:
            # A worker process sends an error as the text of its traceback.
            errors = re.split(r"^(\w+(?:\.\w+)*): ", f"{error}", flags=re.M)
            kind = _known_error(errors[-2]) if len(errors) > 2 else None
            if kind is None:
                raise
            raise kind(errors[-1].split("\n\n")[0].strip()) from error


def _known_error(name):
    """Returns the class of an error, or `None` if it is not the user's."""
    found = getattr(builtins, name, None)
    for kind in (ValueError, OSError):
        if isinstance(found, type) and issubclass(found, kind):
            return kind
    return None


class _EndedError(BaseException):
    """Leaves Beam's code, which catches exceptions of other classes."""


@contextlib.contextmanager
def _ended_with_its_workers() -> Iterator[None]:
    """Raises an error in the main thread if a worker process ends too early.

    DirectRunner itself would wait for it for ever. It notices the end in a
    thread, which fails.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread alone
        return
    ended: list[BaseException] = []
    left = threading.Event()

    def interrupt():
        main = threading.main_thread().ident or 0
        while not left.is_set():
            signal.pthread_kill(main, signal.SIGUSR1)
            left.wait(10)

    def thread_failed(found):
        if "Worker subprocess exited" in str(found.exc_value):
            ended.append(found.exc_value)
            threading.Thread(target=interrupt, daemon=True).start()
        elif not issubclass(found.exc_type, grpc.RpcError):  # of its channel
            hook(found)

    def raise_error(*_):
        raise _EndedError

    hook, threading.excepthook = threading.excepthook, thread_failed
    # Another signal than SIGINT, which the user's program may ignore.
    handler = signal.signal(signal.SIGUSR1, raise_error)
    try:
        yield
    except _EndedError:
        raise WorkerEndedError(f"{ended[0]}.") from ended[0]
    finally:
        left.set()
        signal.signal(signal.SIGUSR1, handler)
        threading.excepthook = hook
