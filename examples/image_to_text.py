"""Image to text: a row of handwritten digits, read out in German.

The source is the columns of an image, eight pixels each; the target is the
letters of the number's name. German names the ones before the tens: 42 is
"zweiundvierzig". So the decoder has to jump back while it writes, and its
attention shows it. The digits come with scikit-learn, as in `images.py`.

    pip install scikit-learn matplotlib
    python examples/image_to_text.py

It also draws the columns that the decoder looks at while it writes the name of
421, in `runs/image_to_text.png`.

Promise: less than fifteen minutes on two CPU cores with AVX-512, 25 with AVX2
alone; over 92 % of 1,000 numbers written without a mistake, the mean of five
seeds. Their digits were not trained on, but others of the same writers were.
"""

import os

# Before the import: TensorFlow leaves oneDNN off without AVX-512.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import keras
import numpy as np
from images import digits, save
from keras import ops
from matplotlib.figure import Figure

from keras_transformer import (
    LabelSmoothedCrossEntropy,
    Transformer,
    TransformerConfig,
    beam_search,
)
from keras_transformer.data.builtin.grammar import german_number
from keras_transformer.ids import END, PAD, START

LETTERS = "abcdefghijklmnopqrstuvwxyzäöüß"
PIXELS = 8  # of a digit, in each direction
MEAN, DEVIATION = 0.31, 0.38  # of the pixels
LONGEST = 3  # digits
LENGTH = 30  # letters of 777's name, the longest, and the end token


def encoded(name):
    """Returns the ids of the letters and the end token, padded."""
    ids = [END + 1 + LETTERS.index(letter) for letter in name] + [END]
    return ids + [PAD] * (LENGTH - len(ids))


def decoded(ids):
    """Returns the letters of ids, without the special tokens."""
    return "".join(LETTERS[i - END - 1] for i in ids if i > END)


def random_numbers(count, rng):
    """Returns numbers below 10, 100 and 1,000, as many of each."""
    return rng.integers(0, 10 ** rng.integers(1, LONGEST + 1, size=count))


def columns_of(numbers, images, names, rng):
    """Writes each number with handwritten digits, drawn at random.

    Returns:
        The columns `(B, 24, 8)` of the images, padded, with pixels of mean 0
        and deviation 1; and a mask `(B, 24)`, True at the real columns.
    """
    columns = np.zeros((len(numbers), LONGEST * PIXELS, PIXELS), "float32")
    mask = np.zeros(columns.shape[:2], bool)
    for row, real, number in zip(columns, mask, numbers, strict=True):
        drawn = [rng.choice(images[names == int(x)]) for x in str(number)]
        image = np.concatenate(drawn, axis=1)  # [8, 8 · digits]
        row[: image.shape[1]] = (image.T - MEAN) / DEVIATION
        real[: image.shape[1]] = True
    return columns, mask


def trained(columns, mask, numbers, seed, epochs):
    """Returns a model that has learned to write the names of the numbers."""
    ids = np.array([encoded(german_number(number)) for number in numbers])
    starts = np.full((len(ids), 1), START)
    target = np.concatenate([starts, ids[:, :-1]], axis=1)  # shifted right
    keras.utils.set_random_seed(seed)
    config = TransformerConfig(
        vocab_size=END + 1 + len(LETTERS),
        source_features=PIXELS,
        num_layers=2,
        d_model=64,
        num_heads=4,
        d_ff=128,
    )
    model = Transformer(config, seed=seed)
    steps = epochs * -(-len(ids) // 64)
    rate = keras.optimizers.schedules.CosineDecay(2e-3, steps)
    model.compile(keras.optimizers.AdamW(rate), LabelSmoothedCrossEntropy())
    inputs = {"source": columns, "source_mask": mask, "target": target}
    model.fit(inputs, ids, batch_size=64, epochs=epochs, verbose=0)
    return model


def read(model, columns, mask, beam_size=4):
    """Returns the most probable names, found by beam search with a cache."""
    mask = ops.convert_to_tensor(mask)
    memory = model.encode(columns, source_mask=mask)
    memory_cache = model.project_memory(memory)

    def step(tokens, cache, index):
        return model.decode_step(tokens, cache, index, memory_cache, mask)

    ids, _ = beam_search(
        step,
        model.empty_cache(len(columns) * beam_size, LENGTH),
        max_lengths=[LENGTH] * len(columns),
        beam_size=beam_size,
    )
    return [decoded(row[0]) for row in ops.convert_to_numpy(ids)]


def attention(model, columns, mask, name):
    """Returns the weights `(H, T, S)` of the last decoder layer's heads: at
    each of T letters, the last of them the end token, on S columns."""
    memory = model.encode(columns[None], source_mask=mask[None])
    target = [START, *encoded(name)[: len(name)]]
    x = model.target_embedding(np.array([target]))
    for layer in model.decoder_layers:
        x, weights = layer(
            x, memory, memory_mask=mask[None], return_attention_scores=True
        )
    return ops.convert_to_numpy(weights)[0]


def draw(columns, name, weights, path):
    """Draws an image and, below it for each head, the columns that it attends
    to, in a row for each letter."""
    figure = Figure(figsize=(2.2 * len(weights), 5), layout="constrained")
    grid = figure.subplots(
        2, len(weights), sharex=True, height_ratios=[8, len(name) + 1]
    )
    for number, (axes, head) in enumerate(zip(grid.T, weights, strict=True), 1):
        axes[0].imshow(columns.T, cmap="Greys", aspect="auto")
        axes[0].set_title(f"head {number}", fontsize=9)
        axes[0].set_yticks([])
        axes[1].imshow(head, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes[1].set_yticks(range(len(name) + 1), [*name, "end"], fontsize=8)
        axes[1].set_xticks([])
    save(figure, path)


def main(
    seeds=5,
    count=10_000,
    epochs=12,
    tested=1000,
    picture="runs/image_to_text.png",
):
    images, names = digits()
    known, held_out = (images[::2], names[::2]), (images[1::2], names[1::2])
    rng = np.random.default_rng(0)
    tests = random_numbers(tested, rng)
    columns, mask = columns_of(tests, *held_out, rng)
    expected = [german_number(number) for number in tests]
    shares = []
    for seed in range(1, seeds + 1):
        rng = np.random.default_rng(seed)
        numbers = random_numbers(count, rng)
        seen, seen_mask = columns_of(numbers, *known, rng)
        model = trained(seen, seen_mask, numbers, seed, epochs)
        found = read(model, columns, mask)
        shares.append(
            np.mean([a == b for a, b in zip(found, expected, strict=True)])
        )
        print(f"seed {seed}: {shares[-1]:.1%} of {tested} numbers read")
    print(f"mean {np.mean(shares):.1%} ± {np.std(shares):.1%}")

    columns, mask = columns_of([421], *held_out, np.random.default_rng(0))
    name = read(model, columns, mask)[0]
    weights = attention(model, columns[0], mask[0], name)
    draw(columns[0], name, weights, picture)
    print(f"The attention of the last model, which reads {name}: {picture}")
    return np.mean(shares)


if __name__ == "__main__":
    main()
