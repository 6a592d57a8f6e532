"""Reads the weights in a `pytorch_model.bin` without PyTorch.

A pickle is evaluated here by a small interpreter, which knows the few opcodes,
classes and functions of a state dict, and looks none of them up.
"""

import dataclasses
import errno
import math
import mmap
import os
import pickletools
import zipfile
from typing import IO, Any, BinaryIO

import numpy as np

from keras_transformer.archives import check_stored

ZIP_MAGIC = b"PK\x03\x04"  # since PyTorch 1.6
LEGACY_HEADER = (0x1950A86A20F9469CFC6C, 1001)  # magic number, protocol
BFLOAT16 = "torch.BFloat16Storage"
# The types of storages, as NumPy names them.
STORAGES = {
    "torch.FloatStorage": "f4",
    "torch.DoubleStorage": "f8",
    "torch.HalfStorage": "f2",
    BFLOAT16: "u2",  # its bits: NumPy has no such type
    "torch.LongStorage": "i8",
    "torch.IntStorage": "i4",
    "torch.ShortStorage": "i2",
    "torch.CharStorage": "i1",
    "torch.ByteStorage": "u1",
    "torch.BoolStorage": "?",
}
ALLOWED = {
    "collections.OrderedDict",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_parameter",
    *STORAGES,
}
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
NUMBERS = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"}
STRINGS = {"BINUNICODE", "SHORT_BINUNICODE", "BINSTRING", "SHORT_BINSTRING"}
MOST_DIMENSIONS = 32  # NumPy 1 allows no more
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class ForbiddenClassError(ValueError):
    """A pickle asks for a class or function that no state dict needs."""


@dataclasses.dataclass(frozen=True)
class Name:
    """The name of a class or function, which is never looked up."""

    name: str


@dataclasses.dataclass(frozen=True)
class Storage:
    """The raw data of one or more tensors: its type and number of elements."""

    type: str
    key: str
    length: int


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A view of a storage; offset and strides count elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_torch_file(path: str | os.PathLike) -> dict[str, np.ndarray]:
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
        check_stored(archive, size)
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


def evaluate(
    pickled: bytes | IO[bytes], storages: dict[str, Storage] | None = None
) -> Any:
    """Returns the value of a pickle.

    Args:
        pickled: the pickle, or a file at its begin, which is left at its
            end.
        storages: gets the storages that the pickle names, by key.

    Raises:
        ForbiddenClassError: if it asks for more than a state dict needs.
        Exception: of nearly any type, if it is damaged.
    """
    storages = {} if storages is None else storages
    stack: list = []
    stacks_below: list[list] = []  # one for each mark
    memo: dict[int, object] = {}
    argument: Any
    for opcode, argument, _ in pickletools.genops(pickled):
        match opcode.name:
            case "PROTO" | "FRAME":
                pass
            case "MARK":
                stacks_below.append(stack)
                stack = []
            case name if name in CONSTANTS:
                stack.append(CONSTANTS[name])
            case name if name in EMPTY:
                stack.append(EMPTY[name]())
            case name if name in NUMBERS or name in STRINGS:
                stack.append(argument)
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case name if name in TUPLES:
                items = [stack.pop() for _ in range(TUPLES[name])]
                stack.append(tuple(reversed(items)))
            case "TUPLE":
                items, stack = stack, stacks_below.pop()
                stack.append(tuple(items))
            case "APPEND":
                item = stack.pop()
                stack[-1].append(item)
            case "APPENDS":
                items, stack = stack, stacks_below.pop()
                stack[-1].extend(items)
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                _set_items(stack[-1], [key, value])
            case "SETITEMS":
                items, stack = stack, stacks_below.pop()
                _set_items(stack[-1], items)
            case "GLOBAL" | "INST":
                stack.append(_allowed(*argument.split(" ", 1)))
            case "STACK_GLOBAL":
                name, module = stack.pop(), stack.pop()
                stack.append(_allowed(module, name))
            case "REDUCE":
                arguments, function = stack.pop(), stack.pop()
                stack.append(_result(function, arguments))
            case "BUILD":  # sets `_metadata` of the state dict
                stack.pop()
            case "BINPERSID":
                storage = _storage(stack.pop())
                if storages.setdefault(storage.key, storage) != storage:
                    raise ValueError(f"storage {storage.key!r} has two types")
                stack.append(storage)
            case "STOP":
                return stack.pop()
            case name:
                raise ValueError(f"its pickle has the opcode {name}")


def _allowed(module: str, name: str) -> Name:
    """Returns what stands for a class or function.

    Raises:
        ForbiddenClassError: if no state dict needs it.
    """
    full_name = ".".join((module, name))
    if full_name not in ALLOWED:
        raise ForbiddenClassError(full_name)
    return Name(full_name)


def _set_items(target: object, items: list):
    """Puts alternating keys and values into a dict."""
    # Hashing a deeply nested tuple overflows the stack of the process.
    keys = [key for key in items[::2] if isinstance(key, str | int)]
    if not isinstance(target, dict) or 2 * len(keys) != len(items):
        raise ValueError("a key in its pickle is neither a string nor a number")
    target.update(zip(keys, items[1::2], strict=True))


def _result(function: object, arguments: object) -> object:
    """Returns what stands for the result of a call."""
    match function, arguments:
        case Name("collections.OrderedDict"), ():
            return {}
        case (
            Name("torch._utils._rebuild_tensor_v2"),
            (
                Storage() as storage,
                int() as offset,
                tuple() as shape,
                tuple() as strides,
                *_,
            ),
        ) if len(shape) == len(strides) <= MOST_DIMENSIONS and all(
            isinstance(number, int) for number in shape + strides
        ):
            return Tensor(storage, offset, shape, strides)
        case Name("torch._utils._rebuild_parameter"), (Tensor() as tensor, *_):
            return tensor
    raise ValueError("its pickle has a call that makes no tensor")


def _storage(persistent_id: object) -> Storage:
    """Returns the storage that a persistent id names."""
    match persistent_id:
        # The legacy format adds None: the storage is no view of another.
        case ("storage", Name(type), str(key), _, int(length)) | (
            "storage",
            Name(type),
            str(key),
            _,
            int(length),
            None,
        ) if type in STORAGES:
            return Storage(type, key, length)
    raise ValueError("its pickle has a persistent id that is no storage")
