"""Models of one shape, trained and searched side by side by JAX.

Each weight has one axis more, of the models, and `jax.vmap` runs all of them as
one program. Small models leave most of a GPU idle: four take little longer than
one. `small_corpus_jax.py` uses it.

Shapes: M models, B sentences, S source length, T target length, V vocabulary.
"""

import concurrent.futures
import dataclasses
import functools
import itertools
import threading
import time

import jax
import jax.numpy as jnp
import keras
import numpy as np

from keras_transformer import Transformer, TransformerSchedule, beam_search
from keras_transformer.ids import END, PAD, START
from keras_transformer.losses import smoothed_cross_entropy, token_weights

# The keys are lengths in pieces, end token included; the values, how many
# sentences of up to that length a program takes at once.
TRAINING = {16: 272, 24: 180, 48: 90}
SEARCH = {16: 512, 24: 512, 48: 256}
LONGER = 24  # pieces by which a translation may exceed its S
LABEL_SMOOTHING = 0.1

threads = concurrent.futures.ThreadPoolExecutor(12)
tracing = threading.Lock()


@dataclasses.dataclass(frozen=True)
class Stage:
    """Describes how a team is trained."""

    steps: int
    learning_rate_scale: float
    warmup_steps: int = 2000
    snapshot_every: int = 500
    averaged: int = 10  # the last snapshots
    beam_size: int = 4
    alpha: float = 1.0
    members: int = 4
    dtype: str = "mixed_bfloat16"


def compiled(lower):
    """Returns the future of a program, which is compiled beside others."""

    def work():
        with tracing:
            # cuDNN's attention refuses our masks under `vmap`. The setting is
            # that of a thread.
            keras.config.disable_flash_attention()
            lowered = lower()
        return lowered.compile()

    return threads.submit(work)


class Team:
    """Some models of one shape.

    Args:
        stage: how they are trained.
        config: a `TransformerConfig`.
        pieces: a `SentencePieceProcessor`, their vocabulary.
        seed: of weights, dropout and batches.
        teachers: another team, whose mean distribution is learned besides the
            labels. Then all members get the same batches.
        shares: for each member, the weight of that distribution; there may be
            more.
        together: whether the members translate as one, by their mean
            distribution.
        log: a function that prints values.
    """

    def __init__(
        self,
        stage,
        config,
        pieces,
        seed,
        teachers=None,
        shares=None,
        together=False,
        log=print,
    ):
        self.stage, self.pieces, self.log = stage, pieces, log
        self.teachers = teachers
        self.shares = np.float32(
            list(itertools.islice(shares or itertools.repeat(0), stage.members))
        )
        models = [
            Transformer(
                config, seed=10_000 * seed + 1000 * i, dtype=stage.dtype
            )
            for i in range(stage.members)
        ]
        self.model = models[0]
        # Lists of arrays (M, …).
        self.weights = _stacked([x.trainable_variables for x in models])
        self.fixed = _stacked([x.non_trainable_variables for x in models])
        schedule = TransformerSchedule(
            config.d_model, stage.warmup_steps, stage.learning_rate_scale
        )
        self.optimizer = keras.optimizers.Adam(schedule, 0.9, 0.98, 1e-9)
        self.optimizer.build(self.model.trainable_variables)
        self.slots = _stacked([self.optimizer.variables] * stage.members)
        self.snapshots = []
        self.rng = np.random.default_rng(seed)
        self.steps = {
            n: compiled(functools.partial(self._step, n)) for n in TRAINING
        }
        self.together = together
        self.searches = {
            n: compiled(functools.partial(self._search, n)) for n in SEARCH
        }

    # === Weights ===

    def start_from(self, other):
        """Takes the weights of another team: where its layers are fewer, those
        of the first ones.

        Raises:
            ValueError: if it has another number of members.
        """
        if other.stage.members != self.stage.members:
            raise ValueError(
                "Teams that follow each other need as many members. Received: "
                f"{other.stage.members} and {self.stage.members}."
            )
        variables = other.model.trainable_variables
        theirs = {
            v.path: w for v, w in zip(variables, other.weights, strict=True)
        }
        self.weights = [
            np.array(theirs.get(v.path, w))  # a copy: training consumes it
            for v, w in zip(
                self.model.trainable_variables, self.weights, strict=True
            )
        ]

    def average(self, count):
        """Returns the mean weights of the last snapshots."""
        last = self.snapshots[-count:]
        return [sum(xs) / len(last) for xs in zip(*last, strict=True)]

    def save(self, member, weights, path):
        """Writes a member as a Keras file."""
        for variable, weight in zip(
            self.model.trainable_variables, weights, strict=True
        ):
            variable.assign(weight[member])
        aside = path.with_name(f"unfinished-{path.name}")
        self.model.save(aside)
        aside.replace(path)

    # === Training ===

    def train(self, pairs, judge=None):
        """Trains all members and leaves them with the average of their last
        snapshots.

        Args:
            pairs: of a source and a target; longer ones are left out.
            judge: function `(team, step)`, called after each snapshot.

        Raises:
            ValueError: if all pairs are too long.
        """
        stage = self.stage
        data = _by_length(self.pieces, pairs)
        count = sum(len(source) for source, _ in data.values())
        self.log(f"{count:,} pairs of {len(pairs):,} are short enough")
        if not data:
            raise ValueError(
                f"A side may have {max(TRAINING) - 1} word pieces. Received: "
                f"{len(pairs)} pairs, all longer. Change `TRAINING`."
            )
        state = jax.device_put((self.weights, self.fixed, self.slots))
        taught = jax.device_put(self._taught())
        steps = {n: self.steps[n].result() for n in data}
        batches, losses = self._batches(data), []
        began = time.perf_counter()
        for done in range(1, stage.steps + 1):
            n, batch = next(batches)
            *state, loss = steps[n](*state, taught, self.shares, *batch)
            losses.append(loss)
            if done % stage.snapshot_every == 0 or done == stage.steps:
                means = np.mean(np.array(losses), axis=0)
                spent = (time.perf_counter() - began) / len(losses)
                self.log(
                    f"step {done}, {1000 * spent:.1f} ms each, loss",
                    *(f"{x:.3f}" for x in means),
                )
                # The next step overwrites the weights.
                self.snapshots.append([x.copy() for x in state[0]])
                del self.snapshots[: -stage.averaged]
                if judge:
                    judge(self, done)
                losses, began = [], time.perf_counter()
        self.weights = self.average(stage.averaged)

    def _taught(self):
        teachers = self.teachers
        return (teachers.weights, teachers.fixed) if teachers else ()

    def _batches(self, data):
        """Yields lengths and batches without end, epoch after epoch: source
        `(M, B, S)` and target `(M, B, T + 1)`, with its start token."""
        orders = 1 if self.teachers else self.stage.members
        while True:
            chosen = []
            for n, (source, _) in data.items():
                size = TRAINING[n]
                # The last batch is filled up with rows that it or others have.
                count = -(-len(source) // size) * size
                rows = np.stack(
                    [
                        np.resize(self.rng.permutation(len(source)), count)
                        for _ in range(orders)
                    ]
                )
                chosen += [
                    (n, rows[:, i : i + size]) for i in range(0, count, size)
                ]
            for i in self.rng.permutation(len(chosen)):
                n, rows = chosen[i]
                yield (
                    n,
                    [x[rows[0] if self.teachers else rows] for x in data[n]],
                )

    def _step(self, length):
        """Returns the lowered program of one step."""

        def loss_of(weights, fixed, share, inputs, labels, expected):
            logits, fixed = self.model.stateless_call(
                weights, fixed, inputs, training=True
            )
            loss = smoothed_cross_entropy(labels, logits, LABEL_SMOOTHING)
            if expected is not None:
                log_p = jax.nn.log_softmax(logits)
                of_teachers = -jnp.sum(expected * log_p, axis=-1)
                loss = (1 - share) * loss + share * of_teachers
            real = token_weights(labels, PAD)
            return jnp.sum(loss * real) / jnp.sum(real), fixed

        def one(weights, fixed, slots, share, *batch):
            graded = jax.value_and_grad(loss_of, has_aux=True)
            (loss, fixed), gradients = graded(weights, fixed, share, *batch)
            weights, slots = self.optimizer.stateless_apply(
                slots, gradients, weights
            )
            return weights, fixed, slots, loss

        def all_of_them(weights, fixed, slots, taught, shares, source, target):
            inputs = {"source": source, "target": target[..., :-1]}
            expected = None
            if self.teachers:
                expected = self.teachers.distribution(*taught, inputs)
            axis = None if self.teachers else 0
            run = jax.vmap(one, (0, 0, 0, 0, axis, axis, axis))
            labels = target[..., 1:]
            return run(weights, fixed, slots, shares, inputs, labels, expected)

        rows = (TRAINING[length],)
        if not self.teachers:
            rows = (self.stage.members, *rows)
        source = np.zeros((*rows, length), "int32")
        target = np.zeros((*rows, length + 1), "int32")
        step = jax.jit(all_of_them, donate_argnums=(0, 1, 2))
        return step.lower(
            self.weights,
            self.fixed,
            self.slots,
            self._taught(),
            self.shares,
            source,
            target,
        )

    def distribution(self, weights, fixed, inputs):
        """Returns the mean of what the members predict, `(B, T, V)`."""

        def one(weights, fixed):
            logits, _ = self.model.stateless_call(
                weights, fixed, inputs, training=False
            )
            return jax.nn.softmax(logits)

        return jnp.mean(jax.vmap(one)(weights, fixed), axis=0)

    # === Search ===

    def translate(self, lines, weights=None):
        """Returns, for each member, a list of translations of each line, best
        first. Together, they count as one member."""
        members = 1 if self.together else self.stage.members
        state = jax.device_put((weights or self.weights, self.fixed))
        ids = self.pieces.encode(list(lines))
        if cut := sum(len(x) >= max(SEARCH) for x in ids):
            self.log(f"{cut:,} lines are cut to {max(SEARCH) - 1} word pieces")
        found = np.empty((members, len(lines), self.stage.beam_size), object)
        running, shorter = [], 0
        for n, size in SEARCH.items():
            # The longest bucket also takes what is longer, and cuts it.
            most = n if n < max(SEARCH) else float("inf")
            here = [i for i, x in enumerate(ids) if shorter <= len(x) < most]
            shorter = n
            for i in range(0, len(here), size):
                rows = here[i : i + size]
                source = _padded([ids[row] for row in rows], n, size)
                search = self.searches[n].result()
                running.append((rows, search(*state, source)))
        for rows, answer in running:
            answer = np.array(answer)[:, : len(rows)]
            texts = self._texts(answer.reshape(-1, answer.shape[-1]))
            found[:, rows] = np.array(texts, object).reshape(answer.shape[:-1])
        return found.tolist()

    def _texts(self, rows):
        ends = np.argmax(rows == END, axis=1)
        ids = [row[:end].tolist() for row, end in zip(rows, ends, strict=True)]
        return self.pieces.decode(ids)

    def _search(self, length):
        """Returns the lowered search of sentences of a length."""
        size, beam_size = SEARCH[length], self.stage.beam_size
        model, most = self.model, length + LONGER

        def with_weights(function, weights, fixed, *args):
            values = (
                *zip(model.trainable_variables, weights, strict=True),
                *zip(model.non_trainable_variables, fixed, strict=True),
            )
            with keras.StatelessScope(values):
                return function(*args)

        def start(source):
            memory = model.encode(source)
            cache = model.empty_cache(size * beam_size, most)
            return cache, model.project_memory(memory)

        def as_one(weights, fixed, source):
            run = functools.partial(with_weights, start)
            run = jax.vmap(run, (0, 0, None))
            cache, memory = run(weights, fixed, source)

            def step(tokens, cache, index):
                def one(weights, fixed, cache, memory):
                    logits, cache = with_weights(
                        model.decode_step,
                        weights,
                        fixed,
                        tokens,
                        cache,
                        index,
                        memory,
                        source != PAD,
                    )
                    return jax.nn.softmax(logits), cache

                p, cache = jax.vmap(one)(weights, fixed, cache, memory)
                return jnp.log(jnp.mean(p, axis=0) + 1e-30), cache

            def reorder(cache, beams):
                rows = beams + jnp.arange(size)[:, None] * beam_size
                return jax.tree.map(lambda x: x[:, rows.reshape(-1)], cache)

            found, _ = beam_search(
                step,
                cache,
                np.full(size, most),
                beam_size,
                self.stage.alpha,
                reorder_cache=reorder,
            )
            return found

        def each(weights, fixed, source):
            def alone(*state):
                return as_one(*([x[None] for x in xs] for xs in state), source)

            return jax.vmap(alone)(weights, fixed)

        def all_of_them(*args):
            return as_one(*args)[None]

        source = np.zeros((size, length), "int32")
        search = jax.jit(all_of_them if self.together else each)
        return search.lower(self.weights, self.fixed, source)


def _stacked(members):
    return [
        np.stack([keras.ops.convert_to_numpy(v) for v in variables])
        for variables in zip(*members, strict=True)
    ]


def _padded(ids, length, rows):
    """Returns ids with an end token, padded; what is too long is cut."""
    found = np.full((rows, length), PAD, "int32")
    for row, x in zip(found, ids, strict=False):
        x = [*x[: length - 1], END]
        row[: len(x)] = x
    return found


def _by_length(pieces, pairs):
    """Returns the pairs that fit into each length: int32 sources and targets,
    these with a start token."""
    sources, targets = (
        pieces.encode(list(side)) for side in zip(*pairs, strict=True)
    )
    longest = [max(map(len, x)) for x in zip(sources, targets, strict=True)]
    data, shorter = {}, 0
    for n in TRAINING:
        here = [i for i, x in enumerate(longest) if shorter <= x < n]
        shorter = n
        if here:
            source, target = (
                _padded([side[i] for i in here], n, len(here))
                for side in (sources, targets)
            )
            target = np.pad(target, ((0, 0), (1, 0)), constant_values=START)
            data[n] = source, target
    return data
