"""Checks that training curves and attention are drawn."""

import json
import re

import matplotlib.image
import numpy as np
import pytest

from keras_transformer.inference import attention_plot
from keras_transformer.inference.attention_plot import plot_attention
from keras_transformer.inference.piece_words import weights_of_words, words_of
from keras_transformer.training.callbacks import plot_training, read_log

LINE = {"loss": 5.0, "nll": 4.0, "val_loss": 5.5, "val_nll": 4.5, "val_bleu": 1}


@pytest.mark.parametrize("lines", [1, 2, 150])
def test_the_curves_of_a_log_of_any_length_are_drawn(tmp_path, lines):
    (tmp_path / "log.jsonl").write_text(
        "".join(
            json.dumps({"step": 4 * i, "learning_rate": i / 1000, **LINE})
            + "\n"
            for i in range(lines)
        )
    )
    path = plot_training(tmp_path)
    assert path == tmp_path / "training.png"
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"st', "Unterminated"),
        (b"5", "no object"),
        (b'{"loss": 1}', "'step'"),
        (b'{"step": "1"}', "no object with a number of step"),
        (b"\xff", "utf-8"),
        (b"[" * 100_000, "recursion"),
    ],
)
def test_a_damaged_line_of_the_log_is_named(tmp_path, line, reason):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 3}\n')
    with pytest.raises(
        ValueError, match=r"log\.jsonl' is damaged in line 2"
    ) as e:
        read_log(tmp_path)
    assert reason in str(e.value)
    assert len(str(e.value)) < 600
    assert "\n" not in str(e.value)
    path.write_bytes(b'{"step": 1}\n{"step": 3}')
    assert [entry["step"] for entry in read_log(tmp_path)] == [1, 3]


def test_nothing_is_drawn_without_a_log(tmp_path):
    assert plot_training(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_the_picture_of_a_long_sentence_does_not_fill_the_memory(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(attention_plot, "MOST_PIXELS", 1e5)
    path = tmp_path / "attention.png"
    plot_attention(["a"] * 31, ["b"] * 37, np.ones((1, 2, 37, 31)), path)
    height, width, _ = matplotlib.image.imread(path).shape
    assert 5e4 < height * width <= 1.05e5


def test_another_layer_may_be_drawn(tmp_path):
    attention = np.random.default_rng(1).dirichlet([1] * 3, (2, 1, 5))
    drawn = [
        plot_attention(
            list("abc"), list("vwxyz"), attention, tmp_path / name, **layer
        ).read_bytes()
        for name, layer in (
            ("first.png", {"layer": 0}),
            ("last.png", {"layer": 1}),
            ("default.png", {}),
        )
    ]
    assert drawn[0] != drawn[1] == drawn[2]


SIDES = ("s", 7), ("t", 5)


@pytest.mark.parametrize("heads", [1, 3, 8])
def test_the_attention_of_any_number_of_heads_is_drawn(tmp_path, heads):
    attention = np.full((2, heads, 5, 7), 1 / 7)
    path = tmp_path / "attention.svg"
    source, target = ([f"▁{side}{i}" for i in range(n)] for side, n in SIDES)
    source[0], target[0] = "▁$$", r"▁$\foo$"  # no formulas
    assert plot_attention(source, target, attention, path) == path
    picture = path.read_text()
    for text in ("s6", "t4", f"layer 2, head {heads}"):
        assert f"<!-- {text} -->" in picture
    assert "<!-- attends from: translation -->" in picture


@pytest.mark.parametrize("by_piece", [False, True])
def test_words_or_pieces_of_the_encoder_are_drawn(tmp_path, by_piece):
    source = ["▁Vi", "en", "na", "</s>"]
    path = tmp_path / "attention.svg"
    attention = np.full((1, 2, 4, 4), 1 / 4)
    plot_attention(source, None, attention, path, by_piece=by_piece)
    picture = path.read_text()
    assert "<!-- attends from: source -->" in picture
    assert ("<!-- Vienna -->" in picture) != by_piece
    assert ("<!-- en -->" in picture) == by_piece


def test_a_picture_of_twenty_words_fits_a_printed_page(tmp_path):
    """Its labels of 8 points are printed in their own size."""
    words = [f"▁word{i}" for i in range(20)]
    path = tmp_path / "attention.svg"
    plot_attention(words, None, np.full((1, 4, 20, 20), 1 / 20), path)
    width = re.search(r'width="([\d.]+)pt"', path.read_text())
    assert float(width[1]) <= 72 * 190 / 25.4  # A4 has 210 mm


PIECES = ["▁Vi", "en", "na", "▁", "1", ".", "5", "▁<", "<0xC3>", "<0xA9>"]
PIECES += [".", ")", "</s>"]


def test_pieces_are_joined_to_words():
    words = words_of(PIECES)
    texts = ["Vienna", "1.5", "<é", ".", ")", "</s>"]
    assert [word.text for word in words] == texts
    places = [place for word in words for place in word.places]
    assert places == list(range(len(PIECES)))
    assert [word.text for word in words_of(["▁", "a", "▁"])] == ["a", "␣"]


def test_the_weights_of_words_add_up_to_one():
    size = len(PIECES)
    weights = np.random.default_rng(1).dirichlet([1] * size, (2, 3, size))
    words = words_of(PIECES)
    found = weights_of_words(weights, words, words)
    assert found.shape == (2, 3, len(words), len(words))
    np.testing.assert_allclose(found.sum(axis=-1), 1)
    to_second = weights[0, 0, :3, 3:7].sum(axis=-1)  # from "Vienna" to "1.5"
    np.testing.assert_allclose(found[0, 0, 0, 1], to_second.mean())


@pytest.mark.parametrize(
    "shape", [(1, 1, 2, 3, 4), (1, 2, 4, 3), (2, 3, 4)], ids=str
)
def test_attention_of_another_shape_is_refused(tmp_path, shape):
    with pytest.raises(ValueError, match=r"attention.shape=.*S=4, T=3"):
        plot_attention("abcd", "xyz", np.ones(shape), tmp_path / "a.png")
    assert not list(tmp_path.iterdir())
