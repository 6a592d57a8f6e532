"""Constituency parsing, section 6.3: words to a tree, as a sequence.

A sentence is translated to its tree, which is written as symbols:
`(S (NP DT NN )NP …` (Vinyals et al., 2015). The source is vectors instead of
ids: which of the most frequent words, beginnings, endings and shapes a word
has. So a word that training never showed has a meaning, too. Words and their
parts of speech are numbered, so that the decoder knows at which word it is, and
brackets by their depth, so that it knows which one is to be closed.

    pip install matplotlib
    python examples/parsing/train.py TRAIN DEVELOPMENT FOLDER

TRAIN and DEVELOPMENT are files or folders of trees in Penn brackets, such as
those of the CRAFT treebank. The program trains, prints how well the trees of
DEVELOPMENT are found, and draws which words the decoder attends to:

    FOLDER/vocabulary.json   the features of words, and the symbols
    FOLDER/model.keras       the trained model
    FOLDER/attention.png     the attention of each head

Training that was interrupted goes on after its last epoch.

Promise: on CRAFT and two CPU cores with bfloat16 (avx512_bf16), 80 minutes of
training and five of searches; with AVX2 alone, three hours and a quarter, and
nine minutes. With beam 4, 99 % of the outputs are balanced, and F1 is over 80
with trees only.
"""

import argparse
import collections
import itertools
import json
import os
import pathlib
import re
import shutil

# Before the import: TensorFlow leaves oneDNN off without AVX-512.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import keras
import numpy as np
import tensorflow as tf

try:
    import matplotlib.figure  # noqa: F401, draws at the end
except ImportError as error:
    raise ImportError(
        "The picture needs matplotlib. Install it: pip install matplotlib"
    ) from error
from balanced_trees import BalancedTrees
from treebank import (
    bracket_scores,
    is_balanced,
    read_trees,
    symbols_of,
    tags_of,
    tree_of,
    words_of,
)

from keras_transformer import (
    LabelSmoothedCrossEntropy,
    TokenAccuracy,
    TokenLoss,
    Transformer,
    TransformerConfig,
    beam_search,
)
from keras_transformer.atomic_files import write_aside
from keras_transformer.hardware import resolve_dtype, resolve_dtype_policy
from keras_transformer.ids import END, PAD, START, UNKNOWN
from keras_transformer.inference import plot_attention
from keras_transformer.inference.graph_model import InferenceModel
from keras_transformer.inference.graph_weights import inference_weights

FEATURES = 5000
NUMBERS = 8  # words, and the depths of brackets, are numbered modulo 8
NAME_DROPOUT = 0.15  # words in training whose own name is not given
LONGEST = 250  # symbols of a tree to train on
SHAPE = {
    "num_encoder_layers": 4,
    "num_decoder_layers": 3,
    "d_model": 192,
    "num_heads": 6,
    "d_ff": 768,
    "dropout_rate": 0.2,
    "norm_first": True,
}
LEARNING_RATE, WARMUP_STEPS = 1.5e-3, 1000
ALPHA, EXTRA_LENGTH = 0.3, 300  # section 6.3


def features_of(word):
    """Returns the names of a word's features."""
    lower = word.lower()
    shape = re.sub("[0-9]", "0", re.sub("[a-z]", "a", word))
    shape = re.sub("[A-Z]", "A", shape)
    shape = re.sub(r"(.)\1+", r"\1", shape)  # Aa for Albino, A0A for C57BL
    return [
        f"word {word}",
        f"lower {lower}",
        *(f"{lower[:n]}-" for n in range(1, 5)),
        *(f"-{lower[-n:]}" for n in range(1, 5)),
        f"shape {shape}",
    ]


def numbered(symbols):
    """Adds a number modulo 8 to each symbol: `(S 0`, `(NP 1`, `DT 0`, `NN 1`.

    A part of speech has the number of its word, a bracket how many others are
    open around its constituent.
    """
    names, word, depth = [], 0, 0
    for symbol in symbols:
        depth -= symbol[0] == ")"
        number = depth if symbol[0] in "()" else word
        names.append(f"{symbol} {number % NUMBERS}")
        depth += symbol[0] == "("
        word += symbol[0] not in "()"
    return names


class Vocabulary:
    """Converts words to vectors and symbols to ids.

    Args:
        features: names of features, one for each dimension of the vectors.
        symbols: symbols of trees, numbered; the first has the id after `END`.
    """

    def __init__(self, features, symbols):
        self.features, self.symbols = features, symbols
        self._features = {name: i for i, name in enumerate(features)}
        self._ids = {name: END + 1 + i for i, name in enumerate(symbols)}
        self._known = {}  # word: its features

    @classmethod
    def learn(cls, trees, size=FEATURES):
        """Takes the `size` most frequent features, and all symbols."""
        words = collections.Counter(w for t in trees for w in words_of(t))
        counts = collections.Counter()
        for word, count in words.items():
            for name in dict.fromkeys(features_of(word)):
                counts[name] += count
        features = [name for name, _ in counts.most_common(size)]
        features += [f"number {number}" for number in range(NUMBERS)]
        symbols = sorted({s for tree in trees for s in symbols_of(tree)})
        names = itertools.product(symbols, range(NUMBERS))
        return cls(features, [f"{symbol} {number}" for symbol, number in names])

    @property
    def size(self):
        return END + 1 + len(self.symbols)

    def vectors(self, sentences, dropped=0.0, rng=None):
        """Returns vectors `(B, S, F)` and a mask `(B, S)` of words.

        A word loses its own name with probability `dropped`, so that beginning,
        ending and shape have to do.
        """
        shape = (len(sentences), max(map(len, sentences)))
        vectors = np.zeros((*shape, len(self.features)), "float32")
        mask = np.zeros(shape, "bool")
        for i, words in enumerate(sentences):
            mask[i, : len(words)] = True
            for j, word in enumerate(words):
                named = not dropped or rng.random() >= dropped
                vectors[i, j, self._of_word(word)[not named]] = 1
                vectors[i, j, self._features[f"number {j % NUMBERS}"]] = 1
        # As in section 3.4, so that a vector is about as long as a position's.
        vectors *= SHAPE["d_model"] ** 0.5
        return vectors, mask

    def _of_word(self, word):
        """Returns the numbers of all features, and of those but the name."""
        if word not in self._known:
            names = features_of(word)
            self._known[word] = tuple(
                [self._features[n] for n in some if n in self._features]
                for some in (names, names[2:])
            )
        return self._known[word]

    def ids(self, sequences):
        """Returns ids `(B, T)` with end tokens, padded."""
        ids = np.zeros((len(sequences), max(map(len, sequences)) + 1), "int32")
        for row, symbols in zip(ids, sequences, strict=True):
            names = numbered(symbols)
            row[: len(names)] = [self._ids.get(name, UNKNOWN) for name in names]
            row[len(symbols)] = END
        return ids

    def balanced_trees(self):
        """Returns the constraint of a search that finds only trees."""
        openings = [s for s in self.symbols if s.startswith("(")]
        closings = [f"){s[1:]}" for s in openings]
        tags = [
            [s for s in tags_of(self.symbols) if s.endswith(f" {number}")]
            for number in range(NUMBERS)
        ]
        openings, closings, *tags = (
            [self._ids[s] for s in some] for some in (openings, closings, *tags)
        )
        return BalancedTrees(openings, closings, tags)

    def symbols_of(self, ids):
        """Returns the symbols before the end token, without numbers.

        A constituent has the label of its opening bracket. Label and number of
        the closing one only help the decoder.
        """
        ids = list(ids)
        ids = ids[: ids.index(END)] if END in ids else ids
        names = [self.symbols[i - END - 1] for i in ids if i > END]
        symbols, labels = [], []
        for name in names:
            symbol = name.split()[0]
            if symbol[0] == "(":
                labels.append(symbol[1:])
            elif symbol[0] == ")" and labels:
                symbol = f"){labels.pop()}"
            symbols.append(symbol)
        return symbols


def of_one_length(lengths, tokens):
    """Divides sequences into batches of about the same length.

    Returns:
        A list of arrays of indices; the longest of the sequences times their
        number is at most `tokens`.
    """
    order = np.argsort(lengths)
    ends = [0]
    for end in range(1, len(order)):
        start = ends[-1]
        longest = lengths[order[start : end + 1]].max()
        if longest * (end + 1 - start) > tokens:
            ends.append(end)
    return np.split(order, ends[1:])


def batches(trees, vocabulary, tokens, seed=None):
    """Returns a data set of batches for a model, and their number.

    Args:
        trees: the trees.
        vocabulary: a `Vocabulary`.
        tokens: symbols of a batch, padding included.
        seed: for training, an integer or a list of them. Each epoch has other
            batches in another order, and some words lose their name; the data
            set is endless. Defaults to `None`: all trees once.
    """
    pairs = [(words_of(tree), symbols_of(tree)) for tree in trees]
    lengths = np.array([len(symbols) + 1 for _, symbols in pairs])
    rng = np.random.default_rng(seed)
    dropped = 0.0 if seed is None else NAME_DROPOUT

    def batch(chosen):
        words, symbols = zip(*(pairs[i] for i in chosen), strict=True)
        source, mask = vocabulary.vectors(words, dropped, rng)
        ids = vocabulary.ids(symbols)
        starts = np.full((len(ids), 1), START, "int32")
        target = np.concatenate([starts, ids[:, :-1]], axis=1)
        return {"source": source, "source_mask": mask, "target": target}, ids

    def in_order():
        yield from map(batch, of_one_length(lengths, tokens))

    def shuffled():
        while True:
            # Noise mixes sequences of neighbouring lengths.
            noise = rng.uniform(0.9, 1.1, len(lengths))
            chosen = of_one_length(lengths * noise, tokens)
            rng.shuffle(chosen)
            yield from map(batch, chosen)

    ids = tf.TensorSpec([None, None], tf.int32)
    vectors = tf.TensorSpec([None, None, len(vocabulary.features)], tf.float32)
    mask = tf.TensorSpec([None, None], tf.bool)
    inputs = {"source": vectors, "source_mask": mask, "target": ids}
    count = len(of_one_length(lengths, tokens))
    endless = tf.data.experimental.INFINITE_CARDINALITY
    data = tf.data.Dataset.from_generator(
        in_order if seed is None else shuffled, output_signature=(inputs, ids)
    )
    data = data.apply(
        tf.data.experimental.assert_cardinality(
            count if seed is None else endless
        )
    ).prefetch(4)
    # With autotune an epoch ends with a wait of up to a minute.
    options = tf.data.Options()
    options.autotune.enabled = False
    return data.with_options(options), count


def train(trees, validation, folder, epochs, tokens_per_batch, seed=1):
    """Trains a model and keeps it; returns the model and its vocabulary."""
    keras.utils.set_random_seed(seed)
    vocabulary = Vocabulary.learn(trees)
    with write_aside(folder / "vocabulary.json") as file:
        content = [vocabulary.features, vocabulary.symbols]
        file.write(json.dumps(content).encode())
    trees = [tree for tree in trees if len(symbols_of(tree)) <= LONGEST]
    backup = folder / "backup"
    data, steps_per_epoch = batches(
        trees, vocabulary, tokens_per_batch, [seed, epochs_done(backup)]
    )
    steps = epochs * steps_per_epoch
    policy = resolve_dtype_policy("auto")
    config = TransformerConfig(
        vocab_size=vocabulary.size,
        source_features=len(vocabulary.features),
        **SHAPE,
    )
    model = Transformer(config, seed=seed, dtype=policy)
    print(
        f"{len(trees):,} trees, {steps:,} steps, {policy}, "
        f"{model.count_params():,} parameters",
        flush=True,
    )
    warmup_steps = min(WARMUP_STEPS, steps // 2)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0,
        steps - warmup_steps,
        warmup_target=LEARNING_RATE,
        warmup_steps=warmup_steps,
    )
    model.compile(
        keras.optimizers.Adam(schedule, beta_2=0.98, epsilon=1e-9),
        LabelSmoothedCrossEntropy(),
        metrics=[TokenAccuracy(), TokenLoss()],
    )
    model.fit(
        data,
        steps_per_epoch=steps_per_epoch,
        validation_data=batches(validation, vocabulary, tokens_per_batch)[0],
        epochs=epochs,
        shuffle=False,  # the data set is shuffled already
        verbose=2,
        callbacks=[
            keras.callbacks.BackupAndRestore(
                backup, double_checkpoint=True, delete_checkpoint=False
            )
        ],
    )
    model.save(folder / "unfinished.keras")
    os.replace(folder / "unfinished.keras", folder / "model.keras")
    shutil.rmtree(backup)
    return model, vocabulary


def epochs_done(backup):
    """Returns how many epochs an interrupted training has behind it."""
    path = backup / "training_metadata.json"
    return json.loads(path.read_text())["epoch"] if path.exists() else 0


def load(folder):
    """Returns the model and the vocabulary of a folder."""
    features, symbols = json.loads((folder / "vocabulary.json").read_text())
    model = keras.models.load_model(folder / "model.keras", compile=False)
    return model, Vocabulary(features, symbols)


class Parser:
    """Finds the symbols of trees with a trained model.

    Args:
        model, vocabulary: from `train` or `load`.
        beam_size: of the beam search; section 6.3 has 21.
        balanced: whether the search may find only trees over the words.
    """

    def __init__(self, model, vocabulary, beam_size, balanced):
        self.vocabulary, self.beam_size = vocabulary, beam_size
        suppressed_ids = [PAD, UNKNOWN, START]
        weights = inference_weights(
            model, resolve_dtype("auto"), suppressed_ids
        )
        self.model = InferenceModel(model.config, weights)
        self.trees = vocabulary.balanced_trees() if balanced else None
        vectors = tf.TensorSpec([None, None, model.config.source_features])
        mask = tf.TensorSpec([None, None], tf.bool)
        self._search = tf.function(
            self._search, input_signature=[vectors, mask], autograph=False
        )

    def __call__(self, sentences, words_per_batch=800):
        """Returns a list of symbols for each list of words."""
        order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
        found = [None] * len(sentences)
        while order:
            longest = len(sentences[order[-1]])
            count = max(1, words_per_batch // longest)
            rows, order = order[-count:], order[:-count]
            vectors, mask = self.vocabulary.vectors(
                [sentences[i] for i in rows]
            )
            ids = self._search(vectors, mask).numpy().tolist()
            for i, row in zip(rows, ids, strict=True):
                found[i] = self.vocabulary.symbols_of(row)
        return found

    def _search(self, vectors, mask):
        """Returns the ids `(B, T)` of the best hypotheses."""
        model, beam_size = self.model, self.beam_size
        words = tf.math.count_nonzero(mask, axis=1, dtype=tf.int32)
        max_lengths = words + EXTRA_LENGTH
        cache = model.empty_cache(model.encode(vectors, mask), beam_size)

        def step(tokens, cache, index):
            return model.step(tf.reshape(tokens, [-1, beam_size]), cache, index)

        reorder_cache, select_rows = model.reorder_cache, model.select_rows
        if self.trees is not None:
            words, rows = (
                tf.repeat(x, beam_size) for x in (words, max_lengths)
            )
            cache = self.trees.cache(cache, words, rows)
            step = self.trees.wrap(step)
            reorder_cache = self.trees.reorder_cache(reorder_cache)
            select_rows = self.trees.select_rows(select_rows, beam_size)
        ids, _ = beam_search(
            step,
            cache,
            max_lengths,
            beam_size,
            ALPHA,
            reorder_cache=reorder_cache,
            select_rows=select_rows,
        )
        return ids[:, 0]


def evaluate(parser, trees):
    """Prints and returns how well the trees are found."""
    sentences = [words_of(tree) for tree in trees]
    found = parser(sentences)
    pairs = list(zip(found, sentences, strict=True))
    over_words = [tree_of(symbols, words) for symbols, words in pairs]
    precision, recall, f1 = bracket_scores(trees, over_words)
    tags = [
        found_tag == tag
        for symbols, tree in zip(found, trees, strict=True)
        for found_tag, tag in itertools.zip_longest(
            tags_of(symbols)[: len(words_of(tree))], tags_of(symbols_of(tree))
        )
    ]
    scores = {
        "balanced": np.mean([is_balanced(symbols) for symbols in found]),
        "over the words": np.mean([tree is not None for tree in over_words]),
        "tags": np.mean(tags),
        "precision": precision,
        "recall": recall,
        "F1": f1,
    }
    name = f"beam {parser.beam_size}" if parser.beam_size > 1 else "greedy"
    name += ", trees only" if parser.trees else ""
    figures = ", ".join(f"{key} {100 * x:.2f}" for key, x in scores.items())
    print(f"{name}: {figures}", flush=True)
    return scores


def draw(parser, words, path):
    """Draws which words the heads of the last layer attend to."""
    (symbols,) = parser([words])
    vectors, mask = parser.vocabulary.vectors([words])
    memory = parser.model.encode(tf.constant(vectors), tf.constant(mask))
    ids = tf.constant(parser.vocabulary.ids([symbols]))
    _, attention = parser.model.read(ids, memory)
    weights = [layer[0].numpy() for layer in attention]  # each [H, T, S]
    return plot_attention(words, [*symbols, "end"], weights, path)


def suits_a_picture(tree):
    """Returns less for sentences than for titles, and for about ten words."""
    return tree[0] != "S", abs(len(words_of(tree)) - 10)


def main(
    train_path,
    development_path,
    folder,
    epochs=26,
    tokens_per_batch=4000,
    beam_sizes=(1, 4),
):
    """Trains, unless the folder has a model; returns the last F1."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    development = read_trees(development_path)
    if not (folder / "model.keras").exists():
        trees = read_trees(train_path)
        train(trees, development, folder, epochs, tokens_per_batch)
    model, vocabulary = load(folder)
    for beam_size in beam_sizes:
        for balanced in (False, True):
            parser = Parser(model, vocabulary, beam_size, balanced)
            scores = evaluate(parser, development)
    words = words_of(min(development, key=suits_a_picture))
    print(" ".join(words))
    print(" ".join(*parser([words])))
    print(f"Attention: {draw(parser, words, folder / 'attention.png')}")
    return scores["F1"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("train")
    parser.add_argument("development")
    parser.add_argument("folder")
    options = parser.parse_args()
    main(options.train, options.development, options.folder)
