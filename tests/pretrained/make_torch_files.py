"""Writes `zip.bin`, `legacy.bin` and `protocol4.bin`, and what is in them.

They were written with PyTorch 2.13:

    python make_torch_files.py FOLDER
"""

import collections
import pathlib
import sys

import numpy as np
import torch

folder = pathlib.Path(sys.argv[1])
state: collections.OrderedDict = collections.OrderedDict()
for dtype in (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
):
    name = str(dtype).removeprefix("torch.")
    state[name] = torch.tensor([[1.0, 2.5, 3.25], [100.0, 0.0, 7.0]]).to(dtype)
state["bool"] = torch.tensor([True, False, True])
state["not finite"] = torch.tensor(
    [float("inf"), float("-inf"), float("nan"), -0.0], dtype=torch.bfloat16
)
state["embedding"] = torch.nn.Parameter(torch.arange(10.0).reshape(5, 2))
state["tied"] = state["embedding"]
state["transposed"] = torch.arange(6.0).reshape(2, 3).T
state["sliced"] = torch.arange(60.0).reshape(3, 4, 5)[1:, 1::2, ::3]
state["expanded"] = torch.tensor([[2.0], [3.0]]).expand(2, 7)
state["scalar"] = torch.tensor(3.5)
state["empty"] = torch.zeros(0, 3)
expected = {
    name: tensor.detach().float().numpy()
    if tensor.dtype == torch.bfloat16
    else tensor.detach().numpy()
    for name, tensor in state.items()
}
state["no tensors"] = {"count": -70000, "big": 2**40, "rate": 0.5, "a": None}
state["list"] = [1, "two", (3, 4, 5, 6), True]
state["nested"] = {0: {"moment": torch.ones(2)}}
state._metadata = {"": {"version": 1}}
torch.save(state, folder / "zip.bin")
torch.save(state, folder / "protocol4.bin", pickle_protocol=4)
torch.save(state, folder / "legacy.bin", _use_new_zipfile_serialization=False)
np.savez_compressed(folder / "expected.npz", **expected)
