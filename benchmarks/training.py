"""One training step against the peers: time, tokens a second, memory.

    python benchmarks/training.py [--shape tiny base] [--dtype float32 bfloat16]
        [--peer keras_transformer torch_eager ...] [--rounds 9]

Every peer has a process of its own, with two threads, that stays and waits;
they are asked for a few steps in turn, round after round, so that all see the
same noise of the machine. Printed are medians over the rounds. Peers that are
not installed are named and left out: `pip install torch keras-hub`.

Beside them runs a product of two 2048 x 2048 matrices in TensorFlow: the
machine's peak of that moment, of which `peak` is the share that a step's own
matrix products reach.
"""

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import time

from training_steps import PEERS, SHAPES, tensorflow

STEPS = 3  # to a round


def matrix_product(shape, dtype):
    """What stands for the machine's peak; `shape` is not used."""
    tf = tensorflow()
    x = tf.random.normal((2048, 2048), dtype=dtype)
    product = tf.function(lambda: tf.reduce_sum(tf.matmul(x, x)))
    return lambda: float(product())


PEAK_FLOPS = 2 * 2048**3


def megabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def work(name, shape, dtype):
    """A peer's process: for each line of standard input a few steps."""
    output = sys.stdout
    sys.stdout = sys.stderr
    functions = {**PEERS, "matrix_product": matrix_product}
    try:
        if name.startswith("torch"):
            import torch  # noqa: F401
        elif name != "matrix_product":
            import keras  # noqa: F401
        libraries = megabytes()
        step = functions[name](SHAPES[shape], dtype)
        for _ in range(3):
            step()
    except ImportError as error:
        print(json.dumps({"missing": str(error)}), file=output, flush=True)
        return
    print(json.dumps({"libraries": libraries}), file=output, flush=True)
    for _ in sys.stdin:
        step()  # who waited has lost the caches, and pages
        began = time.perf_counter()
        for _ in range(STEPS):
            step()
        seconds = (time.perf_counter() - began) / STEPS
        result = {"seconds": seconds, "peak": megabytes()}
        print(json.dumps(result), file=output, flush=True)


class Peer:
    """The other end of `work`."""

    def __init__(self, name, shape, dtype):
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--work", name, shape, dtype],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.about = self._read()
        self.rounds = []

    def _read(self):
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"missing": "it failed"}

    def run(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.rounds.append(self._read())

    def end(self):
        self.process.stdin.close()
        self.process.wait()

    @property
    def seconds(self):
        return statistics.median(r["seconds"] for r in self.rounds)


def compare(names, shape, dtype, rounds):
    peers = []
    for name in [*names, "matrix_product"]:
        peer = Peer(name, shape, dtype)
        if "missing" in peer.about:
            print(f"{name}: left out, {peer.about['missing']}")
            peer.end()
        else:
            peers.append(peer)
    for _ in range(rounds):
        for peer in peers:
            peer.run()
    for peer in peers:
        peer.end()
    return report(peers, shape, dtype)


def report(peers, shape, dtype):
    *peers, product = peers
    size = SHAPES[shape]
    peak = PEAK_FLOPS / product.seconds
    print(
        f"\n{shape}, {dtype}: {size.rows} x {size.length} tokens, V "
        f"{size.vocab_size:,}; matrix peak {peak / 1e9:,.0f} GFLOP/s"
    )
    print(
        f"{'':18}{'ms/step':>9}{'spread':>9}{'tokens/s':>10}{'ours is':>9}"
        f"{'peak':>6}{'MB':>7}{'MB own':>8}"
    )
    for peer in peers:
        times = sorted(r["seconds"] for r in peer.rounds)
        low, high = times[len(times) // 4], times[-1 - len(times) // 4]
        memory = peer.rounds[-1]["peak"]
        print(
            f"{peer.name:18}{1000 * peer.seconds:9,.0f}"
            f"{(high - low) / peer.seconds:9.0%}"
            f"{size.tokens / peer.seconds:10,.0f}"
            f"{peer.seconds / peers[0].seconds:8.2f}x"
            f"{size.flops / peer.seconds / peak:6.0%}"
            f"{memory:7,.0f}{memory - peer.about['libraries']:8,.0f}",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    several = {"nargs": "+", "metavar": "NAME"}
    parser.add_argument("--shape", default=list(SHAPES), **several)
    parser.add_argument("--dtype", default=["float32", "bfloat16"], **several)
    parser.add_argument("--peer", default=list(PEERS), **several)
    parser.add_argument("--rounds", default=9, type=int)
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(*options.work)
        return
    print(platform.platform(), cpu())
    for shape in options.shape:
        for dtype in options.dtype:
            compare(options.peer, shape, dtype, options.rounds)


def cpu():
    with open("/proc/cpuinfo") as file:
        pairs = [line.split(":", 1) for line in file if ":" in line]
    lines = {name.strip(): value.strip() for name, value in pairs}
    flags = lines["flags"].split()
    extras = [f for f in ("avx512f", "avx512_bf16", "amx_tile") if f in flags]
    return f"{lines['model name']}, {' '.join(extras)}"


if __name__ == "__main__":
    main()
