"""Checks archives of arrays before memory is taken for what they claim."""

import math
import zipfile

from numpy.lib import format as npy_format

_HEADERS = {
    (1, 0): npy_format.read_array_header_1_0,
    (2, 0): npy_format.read_array_header_2_0,
}


def check_stored(archive: zipfile.ZipFile, size: int) -> None:
    """Checks that members are as long as they say, which compressed or
    overlapping ones need not be.

    Args:
        archive: the open archive.
        size: length of its file.

    Raises:
        ValueError: if one is compressed, or if they are longer than the file.
    """
    members = archive.infolist()
    if any(x.compress_type != zipfile.ZIP_STORED for x in members):
        raise ValueError("its members are compressed")
    if sum(x.file_size for x in members) > size:
        raise ValueError("its members are larger than the file")


def check_arrays(archive: zipfile.ZipFile, size: int) -> None:
    """Checks that members are NumPy arrays of the sizes that their headers say.

    The arguments are those of `check_stored`.

    Raises:
        ValueError: if one is not, or needs a pickle.
    """
    check_stored(archive, size)
    for member in archive.infolist():
        with archive.open(member) as file:
            shape, dtype = _read_header(file, member.filename)
            expected = file.tell() + math.prod(shape) * dtype.itemsize
        if expected != member.file_size or min(shape, default=0) < 0:
            raise ValueError(f"{member.filename} is no array of its size")


def _read_header(file, name):
    """Returns the shape and the dtype of an array; `file` is then behind."""
    try:
        read = _HEADERS[npy_format.read_magic(file)]
        shape, _, dtype = read(file)
    except Exception as error:  # it has the header of Python's syntax parsed
        raise ValueError(f"{name} is no array of NumPy") from error
    if dtype.hasobject:
        raise ValueError(f"{name} has objects, which need a pickle")
    return shape, dtype
