"""The files of an export: their names, format and checksums."""

import hashlib
import json
import os
import pathlib
import re
from typing import Any

METADATA = "keras_transformer.json"
# The model of an export, by what computes with it.
MODEL_FILES = {"tensorflow": "saved_model.pb", "ctranslate2": "model.bin"}
FORMAT = 5  # of the metadata and the signatures
SUMS = "SHA256SUMS"  # as `sha256sum --check` reads them
SUM = re.compile(r"(?m)^([0-9a-f]{64})  (.+)$")


def write_sums(folder: str | os.PathLike) -> None:
    """Writes a line of checksum and name for each file of an export."""
    folder = pathlib.Path(folder)
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    (folder / SUMS).write_text(
        "".join(
            f"{_sha256(path)}  {path.relative_to(folder).as_posix()}\n"
            for path in files
        )
    )


def check_export(
    path: str | os.PathLike, engine: str = "tensorflow"
) -> dict[str, Any]:
    """Checks the files of an export without loading it.

    Args:
        path: folder of the export.
        engine: name of what is to compute with it, one of `MODEL_FILES`.
            Defaults to "tensorflow".

    Returns:
        Its metadata.

    Raises:
        ValueError: if no export is there, if it is damaged, if it has another
            format, or if it is for another engine.
    """
    path = pathlib.Path(path)
    found = [x for x, file in MODEL_FILES.items() if (path / file).is_file()]
    if not found:
        raise ValueError(
            f"No export in {str(path)!r}. Expected a folder that "
            "`keras-transformer export` wrote, such as saved_models/NAME/1."
        )
    if engine not in found:
        raise ValueError(
            f"The engine {engine} computes exports of its own. Received: "
            f"{str(path)!r}, which is for {found[0]}. Choose another engine "
            "with `--engine`, or export the run with another `--format`."
        )
    if engine == "tensorflow":
        check_readable(path)
    check_intact(path)
    file = path / METADATA
    metadata = json.loads(file.read_text()) if file.exists() else {}
    if metadata.get("format") != FORMAT:
        raise ValueError(
            f"An export must have format {FORMAT}. Received: format="
            f"{metadata.get('format')} in {str(path)!r}. Export its run again."
        )
    return metadata


def versions_in(folder: pathlib.Path) -> list[int]:
    """Returns the numbers of the version folders that hold a model.

    Numbers have 63 bits, as in the protocols.
    """
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [
        int(name)
        for name in names
        if is_version(name) and has_model(folder / name)
    ]


def is_version(name: str) -> bool:
    """Returns whether a folder's name is the number of a version."""
    is_number = name.isascii() and name.isdecimal()
    return is_number and str(int(name)) == name and int(name) < 2**63


def has_model(folder: pathlib.Path) -> bool:
    """Returns whether a folder has a model, as far as can be seen."""
    try:
        return any((folder / x).is_file() for x in MODEL_FILES.values())
    except OSError:  # loading the version will say why
        return True


def newest_version(path: str | os.PathLike) -> pathlib.Path:
    """Returns the folder of an export: `path` itself, or the newest of the
    versions in it."""
    path = pathlib.Path(path)
    versions = [] if has_model(path) else versions_in(path)
    return path / str(max(versions)) if versions else path


def check_intact(path: str | os.PathLike):
    """Compares the files of an export with its checksums.

    Raises:
        ValueError: if a file is damaged or missing, or has no checksum.
    """
    path = pathlib.Path(path)
    if not (path / SUMS).exists():
        raise ValueError(
            f"An export must have the file {SUMS}. Received: {str(path)!r}, "
            "which has none: it is still being copied, or was not written by "
            "`keras-transformer export`."
        )
    found = SUM.findall((path / SUMS).read_text("utf-8", "replace"))
    sums = {name: expected for expected, name in found}
    written = "".join(
        f"{expected}  {name}\n" for name, expected in sums.items()
    )
    missing = sorted(_needed_files(path) - sums.keys())
    if missing or (path / SUMS).read_text("utf-8", "replace") != written:
        reason = f"{missing[0]} is not in it" if missing else "other lines"
        raise ValueError(
            f"{SUMS} must have a line of checksum and name for each file. "
            f"Received: {reason}, in {str(path)!r}. Copy the export again."
        )
    for name, expected in sums.items():
        file = path / name
        if not file.is_file() or _sha256(file) != expected:
            raise ValueError(
                f"{str(file)!r} is not what was exported: its SHA-256 is not "
                f"that of {SUMS}. Copy the export again."
            )


def _needed_files(path):
    """Returns the names of an export's files without which nothing is read."""
    files = [path / METADATA]
    files += [path / x for x in MODEL_FILES.values() if (path / x).is_file()]
    files += [*path.glob("*.model"), *path.glob("*vocabulary.json")]
    for folder in ("variables", "assets"):
        files += [p for p in (path / folder).rglob("*") if p.is_file()]
    return {file.relative_to(path).as_posix() for file in files}


def check_readable(path: str | os.PathLike):
    """Checks that TensorFlow can read a SavedModel from this path.

    It takes the path of the weights for a pattern of names.

    Raises:
        ValueError: if the path has a `[` or a backslash.
    """
    if set("[\\") & set(str(path)):
        raise ValueError(
            "TensorFlow reads no SavedModel from a path with `[` or a "
            f"backslash. Received: {str(path)!r}. Choose another folder."
        )


def _sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
