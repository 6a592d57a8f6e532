"""Compares an imported Marian model with what transformers computed."""

import re

import numpy as np
import sentencepiece
import tensorflow as tf

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.ids import PAD, START
from keras_transformer.inference import GraphTokenizer
from keras_transformer.integrations.marian import model_files
from keras_transformer.integrations.marian.vocabulary import (
    rows_in_our_order,
    sentencepiece_model,
)
from keras_transformer.training import load_model

SPECIAL_TEXT = ("</s>", "<pad>", "<unk>", "<s>")


def sides_of(folder):
    """Returns the two sides of a hub folder, each with its rows."""
    sides = model_files.read(folder).sides
    return [(s, rows_in_our_order(len(s.pieces), s.special)) for s in sides]


def source_tokenizer_of(folder):
    """Returns the tokenizer of the sources of a hub folder."""
    (side, _), _ = sides_of(folder)
    return Tokenizer(sentencepiece_model(side.model, side.pieces, side.special))


def our_ids(rows, ids):
    """Returns our ids for Marian's."""
    ours = {marian: i for i, marian in reversed(list(enumerate(rows)))}
    return np.vectorize(ours.get)(ids)


def largest_error(run, folder):
    """Returns the largest difference of logits in a folder's
    `reference.npz`."""
    model = load_model(run)
    (_, source_rows), (_, target_rows) = sides_of(folder)
    reference = np.load(folder / "reference.npz")
    errors = []
    for i in range(2):
        source, mask, target, expected = (
            reference[f"{name}_{i}"]
            for name in (
                "input_ids",
                "attention_mask",
                "decoder_input_ids",
                "logits",
            )
        )
        inputs = {
            "source": np.where(mask, our_ids(source_rows, source), 0),
            "target": our_ids(target_rows, target),
        }
        inputs["target"][:, 0] = START
        found = np.asarray(model(inputs))
        # The start token is a copy of padding, which Marian begins with.
        expected = expected[..., target_rows]
        real = inputs["target"] != 0
        error = np.abs(found - expected)[real]
        # Padding and start are never generated.
        error = np.delete(error, [PAD, START], axis=-1)
        errors.append(error.max())
    return max(errors)


def check_tokens(folder, rows):
    """Checks ids of strings, `[text, ids]`: ours are those of transformers but
    for the documented differences. Returns how many strings are equal."""
    side, order = sides_of(folder)[0]
    tokenizer = source_tokenizer_of(folder)
    texts = [text for text, _ in rows]
    found = tokenizer.encode(texts)
    graph = GraphTokenizer(tokenizer)
    for i in range(0, len(texts), 500):
        in_graph = graph.encode(tf.constant(texts[i : i + 500], tf.string))
        assert in_graph.to_list() == found[i : i + 500]
    rule = TokenRule(side)
    equal = other_order = 0
    for (text, expected), ids in zip(rows, found, strict=True):
        ids = [order[i] for i in ids]
        # Where "f ff" and "ff f" have the same score, tensorflow-text may take
        # another one than the package sentencepiece.
        assert sorted(ids) == sorted(rule.ours(text)), text
        other_order += ids != rule.ours(text)
        # transformers cuts special pieces out of the text.
        if not any(special in text for special in SPECIAL_TEXT):
            assert expected == rule.theirs(text), text
        equal += ids == expected
    assert other_order <= len(rows) // 1000
    return equal


class TokenRule:
    """Writes the rules down that give a string its ids, in plain Python."""

    def __init__(self, side):
        self.ids = {piece: i for i, piece in enumerate(side.pieces)}
        self.special = side.special
        self.processor = sentencepiece.SentencePieceProcessor(
            model_proto=side.model
        )
        self.known = {
            self.processor.id_to_piece(i)
            for i in range(self.processor.vocab_size())
        }
        self.has_tags = any(re.fullmatch(">>.*<<", p) for p in side.pieces)

    def theirs(self, text):
        tags, pieces = self._pieces(text, 1)
        return [*map(self._id, tags + pieces), self.special.end]

    def ours(self, text):
        """A tag is one only where the vocabulary has tags, and others that it
        has may follow; in a run of characters that this side's SentencePiece
        does not know, those that the vocabulary has keep their ids."""
        tags, pieces = self._pieces(text, 99 if self.has_tags else 0)
        ids = list(map(self._id, tags))
        for piece in pieces:
            if piece in self.known:
                ids.append(self._id(piece))
                continue
            for i, character in enumerate(piece):
                id_ = self._id(character)
                is_same_run = i and ids[-1] == self.special.unknown
                if id_ != self.special.unknown or not is_same_run:
                    ids.append(id_)
        return [*ids, self.special.end]

    def _pieces(self, text, most_tags):
        tags = []
        while len(tags) < most_tags:
            match = re.match("(?s)( *)(>>.*?<<)", text)
            known = match and (match[2] in self.ids if tags else not match[1])
            if not known:
                break
            tags.append(match[2])
            text = text[match.end() :]
        return tags, self.processor.encode(text, out_type=str)

    def _id(self, piece):
        return self.ids.get(piece, self.special.unknown)
