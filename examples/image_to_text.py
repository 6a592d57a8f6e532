"""Image to text: a row of handwritten digits, read out in German.

The source is the columns of an image, eight pixels each; the target is the
letters of the number's name. German names the ones before the tens: 42 is
"zweiundvierzig". So the decoder cannot read from left to right, and its
attention shows it. The digits come with scikit-learn, as in `images.py`.

    pip install scikit-learn matplotlib
    python examples/image_to_text.py

It also draws the columns that the decoder looks at while it writes, in
`runs/image_to_text.png`.

Promise: less than ten minutes on two CPU cores; over 95 % of 1,000 numbers
written without a mistake, the mean of five seeds, by digits that were not
trained on.
"""

import os
import pathlib

# Before the import: TensorFlow leaves oneDNN off without AVX-512.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import keras
import numpy as np
from images import digits
from keras import ops

from keras_transformer import (
    LabelSmoothedCrossEntropy,
    TokenAccuracy,
    Transformer,
    TransformerConfig,
    beam_search,
)
from keras_transformer.atomic_files import write_aside
from keras_transformer.config import END, PAD, START

LETTERS = "abcdefghijklmnopqrstuvwxyzäöüß"
LENGTH = 40  # no name below 1,000 is as long
ONES = [
    "null",
    "ein",
    "zwei",
    "drei",
    "vier",
    "fünf",
    "sechs",
    "sieben",
    "acht",
    "neun",
]
TEENS = [
    [
        "zehn",
        "elf",
        "zwölf",
        "dreizehn",
        "vierzehn",
        "fünfzehn",
        "sechzehn",
        "siebzehn",
    ],
    ["achtzehn", "neunzehn"],
]
TENS = [
    "zwanzig",
    "dreißig",
    "vierzig",
    "fünfzig",
    "sechzig",
    "siebzig",
    "achtzig",
    "neunzig",
]


def german(number):
    """Returns the name of a number from 0 to 999."""
    if number == 1:
        return "eins"
    hundreds, rest = divmod(number, 100)
    if hundreds:
        return ONES[hundreds] + "hundert" + (german(rest) if rest else "")
    if number < 10:
        return ONES[number]
    if number < 20:
        return sum(TEENS, [])[number - 10]
    ones = f"{ONES[number % 10]}und" if number % 10 else ""
    return ones + TENS[number // 10 - 2]


def encoded(name):
    """Returns the ids of the letters and the end token, padded."""
    ids = [END + 1 + LETTERS.index(letter) for letter in name] + [END]
    return ids + [PAD] * (LENGTH - len(ids))


def decoded(ids):
    return "".join(LETTERS[i - END - 1] for i in ids if i > END)


def examples(images, names, count, rng):
    """Puts the digits of random numbers side by side.

    Returns:
        The columns `(count, 24, 8)` of numbers of one to three digits; a mask
        `(count, 24)` of the real ones; and ids `(count, LENGTH)`.
    """
    by_name = [images[names == digit] for digit in range(10)]
    numbers = rng.integers(0, 10 ** rng.integers(1, 4, size=count))
    columns = np.zeros((count, 3 * 8, 8), "float32")
    for row, number in zip(columns, numbers, strict=True):
        drawn = [rng.choice(by_name[int(digit)]) for digit in str(number)]
        image = np.concatenate(drawn, axis=1)  # [8, 8 · digits]
        row[: image.shape[1]] = image.T
    lengths = np.array([8 * len(str(number)) for number in numbers])
    mask = np.arange(3 * 8) < lengths[:, None]
    ids = np.array([encoded(german(number)) for number in numbers])
    return columns, mask, ids


def inputs(columns, mask, ids):
    """Returns the model's inputs: the target is shifted right."""
    starts = np.full((len(ids), 1), START)
    target = np.concatenate([starts, ids[:, :-1]], axis=1)
    return {"source": columns, "source_mask": mask, "target": target}


def read(model, columns, mask, beam_size=4):
    """Returns the most probable names by beam search with a cache."""
    count = len(columns)
    mask = ops.convert_to_tensor(mask)
    memory = model.encode(columns, source_mask=mask)
    memory_cache = model.project_memory(memory)

    def step(tokens, cache, index):
        return model.decode_step(tokens, cache, index, memory_cache, mask)

    ids, _ = beam_search(
        step,
        model.empty_cache(count * beam_size, LENGTH),
        limits=[LENGTH] * count,
        beam_size=beam_size,
    )
    best = ops.convert_to_numpy(ids)[:, 0]
    return [decoded(row) for row in best]


def draw(model, columns, mask, name, path):
    """Draws an image above the columns that the last layer's heads look at,
    one row for each letter."""
    from matplotlib.figure import Figure

    memory = model.encode(columns[None], source_mask=mask[None])
    ids = np.array([[START, *encoded(name)[: len(name)]]])
    x = model.target_embedding(ids)
    for layer in model.decoder_layers:
        x, weights = layer(
            x, memory, memory_mask=mask[None], return_attention_scores=True
        )
    columns = columns[mask]
    weights = ops.convert_to_numpy(weights)[0, :, :, : len(columns)]
    figure = Figure(figsize=(2.2 * len(weights), 4.2), layout="constrained")
    grid = figure.subplots(
        2, len(weights), sharex=True, height_ratios=[8, len(name) + 1]
    )
    for number, (axes, head) in enumerate(zip(grid.T, weights, strict=True), 1):
        axes[0].imshow(columns.T, cmap="Greys", aspect="auto")
        axes[0].set_title(f"head {number}", fontsize=9)
        axes[1].imshow(head, cmap="Blues", vmin=0, aspect="auto")
        axes[0].set_yticks([])
        axes[1].set_xticks([])
        axes[1].set_yticks(range(len(name) + 1), [*name, "end"], fontsize=8)
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_aside(path) as file:
        figure.savefig(file, format="png", dpi=120)
    return path


def main(
    seeds=5,
    count=10_000,
    epochs=12,
    tested=1000,
    picture="runs/image_to_text.png",
):
    images, names = digits()
    rng = np.random.default_rng(0)
    test = examples(images[1::2], names[1::2], tested, rng)
    expected = [decoded(ids) for ids in test[2]]
    shares = []
    for seed in range(1, seeds + 1):
        keras.utils.set_random_seed(seed)
        rng = np.random.default_rng(seed)
        columns, mask, ids = examples(images[::2], names[::2], count, rng)
        config = TransformerConfig(
            vocab_size=END + 1 + len(LETTERS),
            source_features=columns.shape[-1],
            num_layers=2,
            d_model=64,
            num_heads=4,
            d_ff=128,
        )
        model = Transformer(config, seed=seed)
        steps = epochs * -(-count // 64)
        model.compile(
            keras.optimizers.AdamW(
                keras.optimizers.schedules.CosineDecay(2e-3, steps)
            ),
            LabelSmoothedCrossEntropy(),
            metrics=[TokenAccuracy()],
        )
        model.fit(
            inputs(columns, mask, ids),
            ids,
            batch_size=64,
            epochs=epochs,
            verbose=0,
        )
        found = read(model, *test[:2])
        shares.append(np.mean([a == b for a, b in zip(found, expected)]))
        print(f"seed {seed}: {shares[-1]:.1%} of {len(found)} numbers read")
    print(f"mean {np.mean(shares):.1%} ± {np.std(shares):.1%}")
    longest = max(range(len(expected)), key=lambda i: len(expected[i]))
    columns, mask = test[0][longest], test[1][longest]
    path = draw(model, columns, mask, expected[longest], picture)
    print(f"Attention: {path}")
    return np.mean(shares)


if __name__ == "__main__":
    main()
