"""Reads the weights in a `pytorch_model.bin` without PyTorch."""

import errno
import math
import mmap
import os
import zipfile
from typing import Any, BinaryIO

import numpy as np

from keras_transformer.pretrained.torch_pickle import (
    BFLOAT16,
    STORAGES,
    ForbiddenClassError,
    Storage,
    Tensor,
    evaluate,
)

Path = str | os.PathLike

ZIP_MAGIC = b"PK\x03\x04"  # since PyTorch 1.6
LEGACY_HEADER = (0x1950A86A20F9469CFC6C, 1001)  # magic number, protocol


def read_torch_file(path: Path) -> dict[str, np.ndarray]:
    """Reads a state dict that `torch.save` wrote, and executes nothing.

    Both formats can be read: the zip archive of PyTorch 1.6 and later, and
    the one before. Values that are not tensors are left out.

    Args:
        path: of the file, often named `pytorch_model.bin`.

    Returns:
        A read-only array for each tensor, by name. Tensors that share their
        storage, as tied weights do, share memory. bfloat16 becomes float32;
        any other type stays as it is.

    Raises:
        ValueError: if the file is damaged, or its pickle asks for anything
            but tensors.
    """
    with open(path, "rb") as file:
        try:
            is_zip = file.read(len(ZIP_MAGIC)) == ZIP_MAGIC
            return _read_zip(file) if is_zip else _read_legacy(file)
        except ForbiddenClassError as error:
            raise ValueError(
                f"{str(path)!r} was refused: its pickle asks for "
                f"{str(error)!r:.200}, expected tensors only. Nothing in it "
                "was executed. Ask its author for model.safetensors."
            ) from error
        except Exception as error:
            # Wrong bytes raise nearly anything. Lack of memory and system
            # errors say nothing about the file.
            is_known = getattr(error, "errno", None) in (None, errno.EINVAL)
            if isinstance(error, MemoryError) or not is_known:
                raise
            reason = error if isinstance(error, ValueError) else repr(error)
            raise ValueError(
                f"{str(path)!r} is damaged, or no state dict that torch.save "
                f"wrote: {reason!s:.200}. Nothing in it was executed. Download "
                "it again, or ask its author for model.safetensors."
            ) from error


def _read_zip(file: BinaryIO) -> dict[str, np.ndarray]:
    """Reads an archive with the members data.pkl, data/0, data/1, …"""
    size = os.fstat(file.fileno()).st_size
    with zipfile.ZipFile(file) as archive:
        # Compressed or overlapping members could fill the memory.
        if sum(member.file_size for member in archive.infolist()) > size:
            raise ValueError("its members are larger than the file")
        names = [name.partition("/") for name in archive.namelist()]
        folders = [name[0] for name in names if name[2] == "data.pkl"]
        if len(folders) != 1:
            raise ValueError("it has no data.pkl, or more than one")
        folder = folders[0]
        order = "<"
        if (folder, "/", "byteorder") in names:
            is_big = archive.read(f"{folder}/byteorder") == b"big"
            order = ">" if is_big else "<"
        tensors = _tensors(evaluate(archive.read(f"{folder}/data.pkl")))
        values = {
            storage.key: _decoded(
                archive.read(f"{folder}/data/{storage.key}"), storage, order
            )
            for storage in {tensor.storage for tensor in tensors.values()}
        }
    return _arrays(tensors, values, size)


def _read_legacy(file: BinaryIO) -> dict[str, np.ndarray]:
    """Reads five pickles, then the length and the data of each storage.

    The pickles are the magic number, the protocol, facts about the system
    that wrote the file, the state dict, and the keys of the storages. All
    data is in little-endian order.
    """
    # A file reserves memory for as many bytes as it is asked for, a map only
    # for those that there are.
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        pickles: Any = mapped
        for expected in LEGACY_HEADER:
            if evaluate(pickles) != expected:
                raise ValueError("it does not begin as PyTorch's files do")
        evaluate(pickles)
        storages: dict[str, Storage] = {}
        tensors = _tensors(evaluate(pickles, storages))
        needed = {tensor.storage.key for tensor in tensors.values()}
        keys = evaluate(pickles)
        if not all(isinstance(key, str) for key in keys) or not (
            needed <= set(keys) <= storages.keys()
        ):
            raise ValueError("its list of storages is wrong")
        values = {}
        for key in keys:
            storage = storages[key]
            if int.from_bytes(mapped.read(8), "little") != storage.length:
                raise ValueError(f"storage {key!r} has another length")
            itemsize = np.dtype(STORAGES[storage.type]).itemsize
            decoded = _decoded(mapped.read(storage.length * itemsize), storage)
            if key in needed:
                values[key] = decoded
        return _arrays(tensors, values, len(mapped))


def _tensors(state: object) -> dict[str, Tensor]:
    """Returns the tensors of a state dict."""
    if not isinstance(state, dict):
        raise ValueError("it holds no dict")
    return {
        name: value
        for name, value in state.items()
        if isinstance(name, str) and isinstance(value, Tensor)
    }


def _decoded(data: bytes, storage: Storage, order: str = "<") -> np.ndarray:
    """Returns the raw data of a storage as an array of one dimension."""
    stored = np.dtype(order + STORAGES[storage.type])
    if len(data) != storage.length * stored.itemsize:
        raise ValueError(f"storage {storage.key!r} has another length")
    values = np.frombuffer(data, stored)
    if storage.type == BFLOAT16:  # the upper half of a float32
        bits = values.astype(np.uint32)
        bits <<= 16
        return bits.view(np.float32)
    return values.astype(stored.newbyteorder("="), copy=False)


def _arrays(
    tensors: dict[str, Tensor], values: dict[str, np.ndarray], most: int
) -> dict[str, np.ndarray]:
    """Returns the tensors as views of the values of their storages.

    Raises:
        ValueError: if one reaches beyond its storage, or has more than `most`
            elements, of which a stride of 0 can claim any number.
    """
    arrays = {}
    for name, tensor in tensors.items():
        stored, shape = values[tensor.storage.key], tensor.shape
        lowest = min(0, tensor.offset, *shape, *tensor.strides)
        if lowest < 0 or math.prod(shape) > most:
            raise ValueError(f"the tensor {name!r} has an impossible shape")
        last = tensor.offset + sum(
            (length - 1) * stride
            for length, stride in zip(shape, tensor.strides, strict=True)
        )
        if 0 in shape:
            arrays[name] = stored[:0].reshape(shape)
        elif last >= len(stored):
            raise ValueError(f"the tensor {name!r} reaches beyond its storage")
        else:
            arrays[name] = np.lib.stride_tricks.as_strided(
                stored[tensor.offset :],
                shape,
                [stride * stored.itemsize for stride in tensor.strides],
                writeable=False,
            )
    return arrays
