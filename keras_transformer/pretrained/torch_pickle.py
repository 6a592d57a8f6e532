"""Evaluates the pickle of a PyTorch state dict, and executes nothing.

To unpickle is to run a program. Even a `pickle.Unpickler` that refuses most
classes sets attributes and hashes any key, and a file can crash the process by
that alone. So nothing is unpickled here: `pickletools` lists the opcodes, and
the few that a state dict is made of are evaluated. Classes and functions stay
names.
"""

import dataclasses
import pickletools
from typing import IO, Any

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
