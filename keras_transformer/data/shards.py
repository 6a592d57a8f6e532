"""The steps of preparing a corpus: functions of one block of sentence pairs.

A block becomes a shard, whatever else is prepared, in whatever order and on
whatever machine. `prepare` calls these functions one after another,
`prepare_on_beam` on many machines.
"""

import collections
import dataclasses
import hashlib
import io
import itertools
import json
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer.atomic_files import write_aside
from keras_transformer.data.batches import EncodedPairs, encode_pairs
from keras_transformer.data.cleaning import RULES, clean, is_blank
from keras_transformer.data.noise import KINDS as KINDS_OF_NOISE
from keras_transformer.data.noise import noisy_copies
from keras_transformer.data.options import Preparation
from keras_transformer.data.prepared_corpus import KINDS, SIDES, sha256
from keras_transformer.data.text_files import Pair, PairStream
from keras_transformer.data.tokenizer import Tokenizer

BLOCK = 100_000  # pairs, without noisy copies
NOISE = 1  # tells its random numbers from those of the vocabulary's sample
PARTS = 16  # in which duplicates are looked for
STATS = "corpus_stats.npz"  # in the folder of the job
# Why a pair is left out, in the order in which it is looked for.
REASONS = (
    "damaged",
    "blank",
    "identical",
    "duplicate",
    "too_long",
    "length_ratio",
)


@dataclasses.dataclass(frozen=True)
class Block:
    """Holds consecutive pairs of a corpus.

    Args:
        corpus: number of the corpus among those that are prepared together.
        number: number of the block in its corpus.
        pairs: the text. Noisy copies come last.
        damaged: number of damaged pairs, which are not among `pairs`.
        noise: number of noisy copies of each kind.
        prefix: what each source begins with besides its text, such as a tag of
            the target language.
    """

    corpus: int
    number: int
    pairs: list[Pair]
    damaged: int = 0
    noise: Mapping[str, int] = dataclasses.field(default_factory=dict)
    prefix: str = ""

    @property
    def key(self) -> tuple[int, int]:
        """Tells blocks apart and orders them."""
        return self.corpus, self.number

    @property
    def originals(self) -> int:
        """The number of pairs before their noisy copies."""
        return len(self.pairs) - sum(self.noise.values())


def read_blocks(
    corpus: int, stream: PairStream, settings: Preparation, prefix: str = ""
) -> Iterator[Block]:
    """Yields the blocks of a corpus, with noisy copies of their pairs.

    Args:
        corpus: number of the corpus.
        stream: its pairs.
        settings: whether damaged pairs are left out, and the share of copies.
        prefix: see `Block`.

    Raises:
        ValueError: if a pair is damaged, unless such pairs are left out.
    """
    iterator = iter(stream.with_damaged() if settings.skip_damaged else stream)
    for number in itertools.count():
        read = list(itertools.islice(iterator, BLOCK))
        if not read:
            return
        pairs = [pair for pair in read if pair is not None]
        seed = settings.seed, corpus, number, NOISE
        copies, noise = noisy_copies(pairs, settings.noise, seed, settings.tags)
        damaged = len(read) - len(pairs)
        yield Block(corpus, number, pairs + copies, damaged, noise, prefix)


def shard_name(key: tuple[int, int]) -> str:
    """Returns the name of the shard of a block."""
    return f"pairs-{key[0]}-{key[1]:05d}"


@dataclasses.dataclass(frozen=True, eq=False)
class CorpusStats:
    """Holds what must be known of a corpus before it is encoded.

    Args:
        tokenizers: of source and target.
        repeated: of `find_duplicates`; empty to keep duplicates.
        pairs: number of pairs in the corpus, or 0 if it is not known.
    """

    tokenizers: tuple[Tokenizer, Tokenizer]
    repeated: dict[tuple[int, int], np.ndarray]
    pairs: int

    def write(self, folder: str | os.PathLike):
        """Writes the statistics to a folder."""
        arrays: dict[str, Any] = {
            f"{corpus} {number}": found
            for (corpus, number), found in self.repeated.items()
        }
        for side, tokenizer in zip(SIDES, self.tokenizers, strict=True):
            arrays[side] = np.frombuffer(tokenizer.model, np.uint8)
        with write_aside(pathlib.Path(folder, STATS)) as file:
            np.savez(file, pairs=self.pairs, **arrays)


def read_corpus_stats(folder: str | os.PathLike) -> CorpusStats | None:
    """Returns the statistics in a folder, or `None` if there are none."""
    path = pathlib.Path(folder, STATS)
    if not path.exists():
        return None
    with np.load(path) as file:
        arrays = dict(file)
    pairs = int(arrays.pop("pairs"))
    source, target = (arrays.pop(side).tobytes() for side in SIDES)
    tokenizer = Tokenizer(source)
    other = tokenizer if source == target else Tokenizer(target)
    repeated = {
        (int(corpus), int(number)): found
        for key, found in arrays.items()
        for corpus, number in [key.split()]
    }
    return CorpusStats((tokenizer, other), repeated, pairs)


def readable_rows(
    block: Block, settings: Preparation
) -> tuple[list[int], collections.Counter[str]]:
    """Returns the numbers of the pairs of a block to keep: those with text on
    both sides, and with `drop_identical`, with different text.

    Returns:
        The numbers, and how many pairs were left out for each reason.
    """
    rows, left_out = [], collections.Counter[str](damaged=block.damaged)
    for row, (source, target) in enumerate(block.pairs):
        if is_blank(source) or is_blank(target):
            left_out["blank"] += 1
        elif settings.drop_identical and (
            clean(source, "source").split() == clean(target, "source").split()
        ):
            left_out["identical"] += 1
        else:
            rows.append(row)
    return rows, left_out


def hash_pairs(block: Block, rows: Sequence[int]) -> np.ndarray:
    """Returns a 64-bit hash of the text of each pair, `(len(rows),)`.

    It is that of the text as vocabularies see it, cleaned, and with no spaces
    at the ends.
    """

    def text(side, rule):
        return " ".join(filter(None, clean(side, rule).split(" ")))

    pairs = (
        (block.prefix + s, t) for s, t in map(block.pairs.__getitem__, rows)
    )
    digests = (
        hashlib.blake2b(
            "\n".join(map(text, pair, RULES)).encode(), digest_size=8
        )
        for pair in pairs
    )
    return np.frombuffer(b"".join(d.digest() for d in digests), np.uint64)


def find_duplicates(
    hashes: dict[tuple[int, int], np.ndarray],
) -> dict[tuple[int, int], np.ndarray]:
    """Finds the pairs that were there before.

    Args:
        hashes: of `hash_pairs`, by block.

    Returns:
        For each block, bool of the same shape: True at a pair whose hash comes
        earlier in the block or in a block before it.
    """
    keys = sorted(hashes)
    if not keys:
        return {}
    together = np.concatenate([hashes[key] for key in keys])
    repeated = np.ones(len(together), bool)
    # Equal hashes are in the same part, so that parts can be sorted alone, in a
    # fraction of the memory.
    parts = together.astype(np.uint8) % PARTS
    for part in range(PARTS):
        places = np.flatnonzero(parts == part)
        _, first = np.unique(together[places], return_index=True)
        repeated[places[first]] = False
    ends = np.cumsum([len(hashes[key]) for key in keys])[:-1]
    return dict(zip(keys, np.split(repeated, ends), strict=True))


def make_shard(
    folder: str | os.PathLike,
    block: Block,
    stats: CorpusStats,
    settings: Preparation,
) -> None:
    """Encodes a block and writes its shard, unless that is done already.

    Beside the shard, `NAME.json` has its record, with `pairs_read`, `noise` and
    `left_out`. It is written last.
    """
    name = shard_name(block.key)
    done = pathlib.Path(folder, f"{name}.json")
    if done.exists():
        return
    pairs, left_out = encode_block(
        block, stats.repeated.get(block.key), stats.tokenizers, settings
    )
    vocab_size = max(t.vocab_size for t in stats.tokenizers)
    record = write_shard(folder, name, pairs, vocab_size)
    copies = {kind: block.noise.get(kind, 0) for kind in KINDS_OF_NOISE}
    record |= {
        "pairs_read": block.originals + block.damaged,
        "noise": copies,
        "left_out": left_out,
    }
    with write_aside(done) as file:
        file.write(json.dumps(record).encode())


def encode_block(
    block: Block,
    repeated: np.ndarray | None,
    tokenizers: tuple[Tokenizer, Tokenizer],
    settings: Preparation,
) -> tuple[EncodedPairs, dict[str, int]]:
    """Encodes a block.

    Args:
        block: the text.
        repeated: of `find_duplicates`, or `None` to keep duplicates.
        tokenizers: of source and target.
        settings: what is left out.

    Returns:
        The pairs that are kept, and how many were left out for each reason.
    """
    rows, left_out = readable_rows(block, settings)
    if repeated is not None:
        left_out["duplicate"] = int(repeated.sum())
        rows = [rows[i] for i in np.flatnonzero(~repeated)]
    source = [block.prefix + block.pairs[row][0] for row in rows]
    target = [block.pairs[row][1] for row in rows]
    pairs = encode_pairs(source, target, *tokenizers)
    longest, shortest = pairs.lengths.max(axis=1), pairs.lengths.min(axis=1)
    too_long = longest > settings.max_length
    left_out["too_long"] = int(too_long.sum())
    unequal = np.zeros_like(too_long)
    if settings.max_length_ratio is not None:
        unequal = ~too_long & (longest > settings.max_length_ratio * shortest)
        left_out["length_ratio"] = int(unequal.sum())
    kept = pairs.take(np.flatnonzero(~too_long & ~unequal))
    return kept, {reason: left_out[reason] for reason in REASONS}


def write_shard(
    folder: str | os.PathLike,
    name: str,
    pairs: EncodedPairs,
    vocab_size: int,
) -> dict[str, Any]:
    """Writes the two files of a shard, see `prepared_corpus`.

    Returns:
        The record of the shard in the manifest.
    """
    sides = pairs.source, pairs.target
    rows = np.zeros((len(pairs) + 1, 2), np.uint32)
    ends = np.cumsum(pairs.lengths.ravel())
    rows.ravel()[1 : len(ends) + 1] = ends
    # Source and target in turn, as they are read.
    tokens = np.empty(len(sides[0].values) + len(sides[1].values), np.int32)
    is_source = np.repeat(
        np.tile([True, False], len(pairs)), pairs.lengths.ravel()
    )
    tokens[is_source], tokens[~is_source] = (side.values for side in sides)
    if vocab_size <= 2**16:
        tokens = tokens.astype(np.uint16)
    digests = {}
    for kind, array in zip(KINDS, (tokens, rows), strict=True):
        data = io.BytesIO()
        np.save(data, array)
        digests[kind] = sha256(data.getvalue())
        with write_aside(pathlib.Path(folder, f"{name}.{kind}.npy")) as file:
            file.write(data.getbuffer())
    return {
        "name": name,
        "pairs": len(pairs),
        "source_tokens": len(sides[0].values),
        "target_tokens": len(sides[1].values),
        "sha256": digests,
    }


def read_records(folder: str | os.PathLike) -> list[dict[str, Any]]:
    """Returns the records of all shards of a folder, in their order."""
    paths = sorted(pathlib.Path(folder).glob("pairs-*.json"))
    return [json.loads(path.read_bytes()) for path in paths]
