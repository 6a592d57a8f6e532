"""Where the time of a training step goes, by TensorFlow's profiler.

    python benchmarks/training_profile.py [--shape tiny base] [--steps 5]
        [--setting native off avx2]

Printed are the share of the matrix products, and the operations besides them
that take most: their share of all operations' time, how often one runs in a
step, and how long it takes. Times of both threads are added. The profiler adds
up to half a millisecond to single operations, so believe the order of the large
ones only.
"""

import argparse
import collections
import glob
import itertools
import os
import subprocess
import sys
import tempfile

from interleaved import SETTINGS, machine
from training_steps import SHAPES, keras_transformer, tensorflow

PRODUCTS = ("MatMul", "Einsum")  # in the name of every product
MOST = 8


def events_of(folder):
    """Yields the operations of each thread as lists of (start, end, name) in
    nanoseconds, in the order of their starts."""
    from tensorflow.python.framework import op_def_registry
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    (path,) = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
    space = xplane_pb2.XSpace()
    with open(path, "rb") as file:
        space.ParseFromString(file.read())
    for plane in space.planes:
        if plane.name != "/host:CPU":
            continue
        for line in plane.lines:
            found = []
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                # Operations are called NAME:TYPE, and other events are there.
                _, _, kind = name.rpartition(":")
                if op_def_registry.get(kind):
                    start = event.offset_ps // 1000
                    end = start + event.duration_ps // 1000
                    found.append((start, end, kind))
            yield sorted(found, key=lambda x: (x[0], -x[1]))


def own_times(threads):
    """Returns nanoseconds and calls by type, without what runs inside."""
    times, calls = collections.Counter(), collections.Counter()
    for events in threads:
        open_events = []
        for start, end, kind in events:
            while open_events and open_events[-1][0] <= start:
                open_events.pop()
            times[kind] += end - start
            calls[kind] += 1
            if open_events:
                times[open_events[-1][1]] -= end - start
            open_events.append((end, kind))
    return times, calls


def profile(name, dtype, steps):
    tf = tensorflow()
    step = keras_transformer(SHAPES[name], dtype)
    for _ in range(3):
        step()
    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder):
            for _ in range(steps):
                step()
        times, calls = own_times(events_of(folder))
    total = sum(times.values())
    products = sum(
        time
        for kind, time in times.items()
        if any(part in kind for part in PRODUCTS)
    )
    print(
        f"\n{name}, {dtype}: {total / steps / 1e6:,.0f} ms of operations a "
        f"step, {products / total:.0%} of them products"
    )
    others = [
        kind
        for kind, _ in times.most_common()
        if not any(part in kind for part in PRODUCTS)
    ]
    for kind in others[:MOST]:
        print(
            f"  {times[kind] / total:6.1%} {calls[kind] / steps:6.0f} x "
            f"{times[kind] / calls[kind] / 1000:8,.0f} µs  {kind}"
        )


def profile_setting(setting, shapes, steps):
    """Profiles each shape and dtype in a process of its own."""
    print(f"\n{machine()}; setting: {setting}", flush=True)
    dtypes = ["float32", "bfloat16"] if setting == "native" else ["float32"]
    for shape, dtype in itertools.product(shapes, dtypes):
        command = [sys.executable, __file__, "--work", shape, dtype]
        subprocess.run(
            [*command, "--steps", str(steps)],
            env={**os.environ, **SETTINGS[setting]},
            stderr=subprocess.DEVNULL,
            check=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--shape", nargs="+", default=["tiny", "base"])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--setting", nargs="+", default=["native"])
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        profile(*options.work, options.steps)
    else:
        for setting in options.setting:
            profile_setting(setting, options.shape, options.steps)
