"""Checks that PyTorch's files are read, and never executed.

`pretrained/make_torch_files.py` wrote the files that are read here.
"""

import io
import os
import pathlib
import pickle
import random
import shutil
import struct
import sys
import tracemalloc
import zipfile

import numpy as np
import pytest

from keras_transformer.integrations.marian.torch_file import read_torch_file

FOLDER = pathlib.Path(__file__).parent / "pretrained"
FILES = ["zip.bin", "legacy.bin", "protocol4.bin"]
MAGIC = 0x1950A86A20F9469CFC6C
REBUILD = "torch._utils _rebuild_tensor_v2"


@pytest.fixture(scope="module")
def expected():
    with np.load(FOLDER / "expected.npz") as archive:
        return dict(archive)


class Global(str):
    """The name of a class in a pickle: module, space, name."""


class Call(tuple):
    """A function in a pickle and its arguments."""


class PersistentId(tuple):
    """A persistent id in a pickle."""


class Code(bytes):
    """Opcodes that push one value."""


def opcodes(value):
    """Returns the opcodes that push a value, so that any can be written."""
    match value:
        case Code():
            return value
        case Global():
            return b"c" + value.replace(" ", "\n").encode() + b"\n"
        case Call():
            return opcodes(value[0]) + opcodes(value[1:]) + b"R"
        case PersistentId():
            return opcodes(tuple(value)) + b"Q"
        case str():
            data = value.encode()
            return b"X" + struct.pack("<I", len(data)) + data
        case None | bool():
            return pickle.dumps(value, 2)[2:-1]
        case int():
            data = value.to_bytes(
                value.bit_length() // 8 + 1, "little", signed=True
            )
            return b"\x8a" + bytes([len(data)]) + data
        case tuple():
            return b"(" + b"".join(map(opcodes, value)) + b"t"
        case list():
            return b"](" + b"".join(map(opcodes, value)) + b"e"
        case dict():
            items = (x for item in value.items() for x in item)
            return b"}(" + b"".join(map(opcodes, items)) + b"u"


def pickled(value):
    return b"\x80\x02" + opcodes(value) + b"."


def storage(length, kind="FloatStorage", key="0", tag="storage"):
    return PersistentId((tag, Global(f"torch {kind}"), key, "cpu", length))


def tensor(offset, shape, strides, data=None):
    data = storage(6) if data is None else data
    return Call((Global(REBUILD), data, offset, shape, strides, False, None))


def zip_file(pickle_bytes, members=None, compression=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("model/data.pkl", pickle_bytes)
        for name, data in (members or {}).items():
            archive.writestr(f"model/{name}", data)
    return file.getvalue()


def legacy_file(pickle_bytes, storages=None, lengths=None):
    storages = storages or {}
    head = [MAGIC, 1001, {"little_endian": True}]
    parts = [*map(pickled, head), pickle_bytes, pickled(list(storages))]
    for key, data in storages.items():
        length = len(data) // 4 if lengths is None else lengths[key]
        parts += [struct.pack("<Q", length), data]
    return b"".join(parts)


SIX = np.arange(6, dtype="<f4").tobytes()
CONTAINERS = {
    "zip": lambda data: zip_file(data, {"data/0": SIX}),
    "legacy": lambda data: legacy_file(data, {"0": SIX}),
}
in_both_formats = pytest.mark.parametrize("container", CONTAINERS)


@pytest.fixture
def read(tmp_path):
    """Reads bytes as a file; any error has to name the file."""
    path = tmp_path / "pytorch_model.bin"

    def read_bytes(data):
        path.write_bytes(data)
        try:
            return read_torch_file(path)
        except ValueError as error:
            message = str(error)
            assert str(path) in message
            assert "Nothing in it was executed" in message
            raise

    return read_bytes


@pytest.mark.parametrize("name", FILES)
def test_each_format_gives_the_arrays_that_were_saved(
    name, expected, monkeypatch
):
    # Where it is installed, another test may have imported it.
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    found = read_torch_file(FOLDER / name)
    assert list(found) == list(expected)
    for key, array in expected.items():
        np.testing.assert_array_equal(found[key], array, key, strict=True)
        assert not found[key].flags.writeable
    assert np.shares_memory(found["tied"], found["embedding"])
    assert found["float16"].dtype == np.float16
    assert found["bfloat16"].dtype == np.float32
    assert "torch" not in sys.modules


@in_both_formats
def test_a_state_dict_may_be_a_plain_dict(container, read):
    state = {"a": tensor(1, (2, 2), (3, 1)), "b": 5, 7: tensor(0, (1,), (1,))}
    found = read(CONTAINERS[container](pickled(state)))
    assert {k: v.tolist() for k, v in found.items()} == {
        "a": [[1.0, 2.0], [4.0, 5.0]]
    }


def test_numbers_in_big_endian_order(read):
    members = {"data/0": np.arange(6, dtype=">f4").tobytes()}
    members["byteorder"] = b"big"
    state = {"a": tensor(0, (6,), (1,))}
    found = read(zip_file(pickled(state), members))["a"]
    np.testing.assert_array_equal(found, np.arange(6, dtype="f4"), strict=True)


class Exploit:
    """An object whose pickle calls a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def exploits(path):
    """Returns calls that make a file, by the name of the function."""
    code = f"open({str(path)!r}, 'w').close()"
    return {
        "posix.system": Exploit(os.system, f"touch '{path}'"),
        "builtins.exec": Exploit(exec, code),
        "shutil.copyfile": Exploit(shutil.copyfile, __file__, str(path)),
    }


@in_both_formats
@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("name", exploits(""))
def test_a_call_is_refused_by_name(container, protocol, name, tmp_path, read):
    path = tmp_path / "made"
    data = pickle.dumps({"a": exploits(path)[name]}, protocol)
    # Protocol 0 has other opcodes for a dict, which are refused before the
    # call; before protocol 3, functions have the names of Python 2.
    reason = f"asks for '{name}'.* model.safetensors" if protocol > 2 else "."
    with pytest.raises(ValueError, match=reason):
        read(CONTAINERS[container](data))
    assert not path.exists()
    pickle.loads(data)
    assert path.exists(), "the exploit does nothing: it tests nothing"


@in_both_formats
@pytest.mark.parametrize("position", range(5))
def test_each_pickle_of_a_file_is_refused(container, position, tmp_path, read):
    path = tmp_path / "made"
    exploit = pickle.dumps(exploits(path)["posix.system"], 2)
    if container == "zip":
        data = zip_file(exploit)
    else:
        parts = [pickled(part) for part in (MAGIC, 1001, {}, {}, [])]
        parts[position] = exploit
        data = b"".join(parts)
    with pytest.raises(ValueError, match=r"refused.*'posix\.system'"):
        read(data)
    assert not path.exists()


@in_both_formats
@pytest.mark.parametrize(
    "name",
    [
        "os system",
        "torch.storage _load_from_bytes",
        "torch._utils _rebuild_tensor_v3",
        "torch UntypedStorage",
        "numpy.core.multiarray _reconstruct",
    ],
)
def test_other_names_are_refused_even_uncalled(container, name, read):
    dotted = name.replace(" ", ".")
    with pytest.raises(ValueError, match=f"asks for '{dotted}'"):
        read(CONTAINERS[container](pickled({"a": Global(name)})))


SYSTEM = b"cposix\nsystem\n"
OPCODES = {
    "extension": b"\x82\x01",
    "instance": b"(X\x01\x00\x00\x00aiposix\nsystem\n",
    "object": b"(" + SYSTEM + b"X\x01\x00\x00\x00ao",
    "new object": SYSTEM + b")\x81",
    "new object of an allowed class": b"ccollections\nOrderedDict\n)\x81",
    "module is no string": b"K\x01K\x02\x93",
    "text persistent id": b"P0\n",
    "out of band": b"\x97",
    "unknown": b"\xff",
    "far memo": b"K\x01r\xff\xff\xff\x7f.",
    "unset memo": b"h\x07",
    "endless string": b"X\xff\xff\xff\xffabc",
    "endless bytes": b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7fabc",
    "attributes of a class": Code(
        b"ccollections\nOrderedDict\n" + opcodes({"a": 1}) + b"b"
    ),
    "called tensor": opcodes(Call((tensor(0, (1,), (1,)),))),
    "called string": opcodes(Call((REBUILD, 0, (1,), (1,)))),
    "dict of a list": opcodes(Call((Global("collections OrderedDict"), []))),
}


@in_both_formats
@pytest.mark.parametrize("code", OPCODES.values(), ids=list(OPCODES))
def test_other_opcodes_give_no_tensor(container, code, read):
    data = CONTAINERS[container](pickled(Code(code)))
    with pytest.raises(ValueError, match=r"damaged|refused"):
        read(data)


def test_nested_keys_do_not_overflow_the_stack(read):
    """Python itself crashes when it hashes a tuple of this depth."""
    nested = Code(b"K\x01" + b"\x85" * 300_000)
    assert read(zip_file(pickled({"a": nested}))) == {}
    with pytest.raises(ValueError, match="a key in its pickle"):
        read(zip_file(pickled(Code(b"}" + nested + b"K\x01s"))))
    with pytest.raises(ValueError, match="list of storages"):
        read(b"".join(map(pickled, (MAGIC, 1001, {}, {}, [nested]))))


def test_the_keys_of_storages_have_to_be_those_of_the_pickle(read):
    state = {"a": tensor(0, (1,), (1,))}
    for keys in ([], ["1"], ["0", "1"]):
        with pytest.raises(ValueError, match="list of storages"):
            read(legacy_file(pickled(state), dict.fromkeys(keys, SIX)))


@in_both_formats
@pytest.mark.parametrize(
    "persistent_id",
    [
        storage(6, tag="module"),
        PersistentId(("storage", "FloatStorage", "0", "cpu", 6)),
        PersistentId(("storage", Global(REBUILD), "0", "cpu", 6)),
        PersistentId((*storage(6), ("1", 0, 3))),
        PersistentId(storage(6)[:4]),
        storage(6, key=0),
        storage("6"),
        Code(b"K\x01Q"),
    ],
)
def test_other_persistent_ids_are_refused(container, persistent_id, read):
    state = {"a": tensor(0, (1,), (1,), persistent_id)}
    with pytest.raises(ValueError, match="persistent id"):
        read(CONTAINERS[container](pickled(state)))


@in_both_formats
@pytest.mark.parametrize(
    ("offset", "shape", "strides"),
    [
        (0, (7,), (1,)),
        (1, (6,), (1,)),
        (6, (), ()),
        (-1, (2,), (1,)),
        (0, (3, 3), (2, 1)),
        (5, (2,), (-1,)),
        (0, (-2, -3), (1, 1)),
        (0, (2, 3), (3,)),
        (0, (2**40,), (0,)),
        (0, (2**31, 2**31, 2**31), (0, 0, 0)),
        (0, (2**600,), (2**600,)),
        (0, (2,), (2**64,)),
        (2**64, (1,), (1,)),
        (0, (0, 2**62, 2**62), (1, 1, 1)),
        (0, (1,) * 33, (1,) * 33),
        (0, ("a",), (1,)),
        (0, (None,), (1,)),
        (None, (1,), (1,)),
        (0, [1], [1]),
    ],
)
def test_impossible_shapes_are_refused(container, offset, shape, strides, read):
    state = {"a": tensor(offset, shape, strides)}
    with pytest.raises(ValueError, match="damaged"):
        read(CONTAINERS[container](pickled(state)))


@in_both_formats
@pytest.mark.parametrize("length", [5, 7, 0, -1, 2**40, 2**70])
def test_a_storage_has_the_length_that_the_pickle_says(container, length, read):
    state = {"a": tensor(0, (1,), (1,), storage(length))}
    with pytest.raises(ValueError, match="another length"):
        read(CONTAINERS[container](pickled(state)))


@in_both_formats
def test_a_storage_has_one_type(container, read):
    kinds = {"a": "FloatStorage", "b": "IntStorage"}
    state = {
        name: tensor(0, (1,), (1,), storage(6, kind))
        for name, kind in kinds.items()
    }
    with pytest.raises(ValueError, match="two types"):
        read(CONTAINERS[container](pickled(state)))


@in_both_formats
def test_a_storage_may_be_missing(container, read):
    state = {"a": tensor(0, (1,), (1,), storage(6, key="../0"))}
    with pytest.raises(ValueError, match="damaged"):
        read(CONTAINERS[container](pickled(state)))


def test_a_claimed_length_reserves_no_memory(read):
    state = {"a": tensor(0, (1,), (1,), storage(2**60))}
    data = legacy_file(pickled(state), {"0": SIX}, {"0": 2**60})
    with pytest.raises(ValueError, match="another length"):
        read(data)


@pytest.mark.parametrize(
    "compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
)
def test_compressed_members_cannot_fill_the_memory(compression, read):
    """Whatever length they say that they have."""
    state = {"a": tensor(0, (1,), (1,), storage(10**6))}
    members = {"data/0": bytes(4 * 10**6)}
    data = zip_file(pickled(state), members, compression)
    length = struct.pack("<L", 4 * 10**6)
    for claimed in (data, data.replace(length, struct.pack("<L", 4))):
        with pytest.raises(ValueError, match="members are compressed"):
            read(claimed)


def test_members_that_overlap_are_refused(read):
    state = {"a": tensor(0, (1,), (1,), storage(6))}
    data = zip_file(pickled(state), {"data/0": SIX})
    length = struct.pack("<L", len(SIX))
    start = data.rindex(b"PK\1\2")
    data = data[:start] + data[start:].replace(length, b"\xff\xff\xff\0")
    with pytest.raises(ValueError, match="larger than the file"):
        read(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"P",
        b"PK\x03\x04",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n",
        b'\x40\0\0\0\0\0\0\0{"a":{"dtype":"F32"}}',
        b"<!DOCTYPE html>",
        pickled({"a": 1}),
        pickled(MAGIC) + pickled(1002),
        zip_file(b""),
        zip_file(pickled([])),
        zip_file(pickled({})).replace(b"model/data.pkl", b"model/data.pk_"),
        legacy_file(pickled([])),
    ],
)
def test_other_files_are_refused(data, read):
    with pytest.raises(ValueError, match="damaged, or no state dict"):
        read(data)


def test_errors_of_the_system_stay_what_they_are(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_torch_file(tmp_path / "none.bin")
    with pytest.raises(IsADirectoryError):
        read_torch_file(tmp_path)


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_refused(name, read):
    data = (FOLDER / name).read_bytes()
    for length in [*range(0, len(data), 7), *range(len(data) - 40, len(data))]:
        with pytest.raises(ValueError, match="damaged"):
            read(data[:length])


@pytest.mark.parametrize("name", FILES)
def test_a_wrong_byte_gives_arrays_or_an_error(name, read):
    """Only the legacy format has no checksums; of its data, any is valid."""
    whole = (FOLDER / name).read_bytes()
    generator = random.Random(1706)
    refused = 0
    for _ in range(300):
        data = bytearray(whole)
        data[generator.randrange(len(data))] ^= generator.randrange(1, 256)
        try:
            found = read(bytes(data))
        except ValueError:
            refused += 1
        else:
            assert all(type(key) is str for key in found)
            assert all(type(array) is np.ndarray for array in found.values())
    assert refused > 50


@in_both_formats
def test_reading_needs_memory_for_the_arrays_and_one_storage(
    container, tmp_path
):
    count, length = 10, 200_000
    state = {
        str(i): tensor(0, (length,), (1,), storage(length, key=str(i)))
        for i in range(count)
    }
    raw = {str(i): bytes(4 * length) for i in range(count)}
    path = tmp_path / "pytorch_model.bin"
    if container == "zip":
        members = {f"data/{key}": data for key, data in raw.items()}
        path.write_bytes(zip_file(pickled(state), members))
    else:
        path.write_bytes(legacy_file(pickled(state), raw))
    tracemalloc.start()
    try:
        found = read_torch_file(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found) == count
    assert peak < 1.5 * path.stat().st_size
