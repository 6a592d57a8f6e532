"""Sentence pairs of TensorFlow Datasets, read as a stream."""

import contextlib
import errno
import io
import re
import socket
import urllib.error
import urllib.parse
import urllib.request

from keras_transformer.data.text_files import MissingSplitError, PairStream


def tfds_pairs(
    name: str, split: str, source: str, target: str, data_dir: str | None
) -> PairStream:
    """Returns the pairs of a translation data set, which is prepared if need
    be. See `load_pairs` for the arguments and errors."""
    import tensorflow_datasets as tfds

    # The import registers the builder under its name.
    from keras_transformer.data.builtin import dataset as builtin  # noqa: F401

    tfds.disable_progress_bar()
    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except (ValueError, ImportError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(
            f"TensorFlow Datasets has no corpus {name!r}: {reason} "
            "For a folder leave out the `tfds:`."
        ) from error
    for language in (source, target):
        if language not in builder.info.features:
            raise ValueError(
                f"{name!r} has no language {language!r}. Expected one of: "
                f"{', '.join(sorted(builder.info.features))}."
            )
    if not builder.is_prepared():
        _require_network(name, builder)
        print(f"Preparing {name}.")
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                builder.download_and_prepare()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise OSError(
                    error.errno,
                    f"The disk is full, {name!r} cannot be prepared. Free some "
                    "space, or choose a folder on another disk with --data-dir",
                    str(builder.data_dir),
                ) from error
            is_of_network = isinstance(error, urllib.error.URLError)
            if error.filename is not None and not is_of_network:
                raise OSError(
                    error.errno,
                    f"{name!r} cannot be prepared: {error.strerror}. Choose a "
                    "folder that can be written with --data-dir",
                    str(error.filename),
                ) from error
            raise ConnectionError(_unreachable(name, str(error))) from error
        except _download_errors() as error:
            reason = str(error).strip().split("\n")[0]
            raise ConnectionError(_unreachable(name, reason)) from error
        except AssertionError as error:  # files must be downloaded by hand
            raise ValueError(str(error)) from error
    if split not in builder.info.splits and not re.search(r"[\[+]", split):
        raise MissingSplitError(
            f"{name!r} has no split {split!r}. Expected one of: "
            f"{', '.join(builder.info.splits)}, or a slice of one."
        )

    def read():
        batches = builder.as_dataset(split=split, batch_size=4096)
        for batch in tfds.as_numpy(batches):
            for pair in zip(batch[source], batch[target], strict=True):
                yield tuple(text.decode() for text in pair)

    info = builder.info
    return PairStream(f"{info.full_name}, {split}, {info.dataset_size}", read)


def _download_errors():
    """Returns the classes of the library's errors, which are no `OSError`."""
    from tensorflow_datasets.core.download import (
        download_manager,
        extractor,
        util,
    )

    return (
        util.DownloadError,
        download_manager.NonMatchingChecksumError,
        extractor.ExtractError,
    )


def _require_network(name, builder):
    """Raises a `ConnectionError` if a host of the data cannot be found.

    The library would retry for minutes.
    """
    if urllib.request.getproxies():
        return
    urls = builder.url_infos or ()  # none for the built-in corpus
    hosts = {urllib.parse.urlparse(url).hostname for url in urls}
    for host in hosts - {None}:
        try:
            socket.getaddrinfo(host, None)
        except OSError as error:
            raise ConnectionError(
                _unreachable(name, f"{host} cannot be found")
            ) from error


def _unreachable(name, reason):
    return (
        f"Cannot download {name!r}: {reason}. Prepare the data on a machine "
        "with a network (`tfds build`) and pass its folder as --data-dir, "
        "or use `--corpus FOLDER` or `--corpus builtin`."
    )
