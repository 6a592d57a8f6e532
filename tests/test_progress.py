"""Checks what a person sees of a training."""

import re

import pytest

from keras_transformer.cli.main import main
from keras_transformer.training import progress as module
from keras_transformer.training.progress import Progress, duration

LOGS = {"nll": 2.3456, "loss": 3.0, "tokens/s": 42008, "learning_rate": 1e-3}


class Quality:
    samples = [("Yes.", "Ja.", "Jawohl.")]


class Clock:
    """Time that goes on by `pace` seconds at each look."""

    def __init__(self, pace):
        self.now, self.pace = 0.0, pace

    def monotonic(self):
        self.now += self.pace
        return self.now


def shown(monkeypatch, capsys, verbose, steps, every, pace):
    """Returns what is printed of a training of some steps."""
    monkeypatch.setattr(module, "time", Clock(pace))
    monkeypatch.setattr(module, "steps_of", lambda model: 0)
    callback = Progress(steps, every, Quality(), verbose)
    callback.on_train_begin()
    for step in range(1, steps + 1):
        if step % every == 1 or every == 1:
            callback.on_epoch_begin(0)
        callback.on_train_batch_end(0, LOGS)
        if step % every == 0 or step == steps:
            validated = LOGS | {"val_nll": 2.1, "val_bleu": 31.24}
            callback.on_epoch_end(0, validated)
    callback.close()
    return capsys.readouterr().out


def test_the_steps_are_those_that_were_run(monkeypatch, capsys):
    out = shown(monkeypatch, capsys, verbose=2, steps=5, every=1000, pace=0.1)
    assert out.startswith("step 5/5  loss 2.346  validation 2.100  BLEU 31.2")
    assert "42,008 tokens/s" in out
    assert "1000" not in out


def test_translations_stand_beside_their_references(monkeypatch, capsys):
    out = shown(monkeypatch, capsys, verbose=2, steps=4, every=2, pace=0.1)
    assert out.count("  Yes.\n    translated  Ja.\n    reference   Jaw") == 2


def test_a_file_gets_a_line_every_minute(monkeypatch, capsys):
    out = shown(monkeypatch, capsys, verbose=2, steps=90, every=1000, pace=10)
    lines = [line for line in out.split("\n") if line.startswith("step")]
    assert 14 <= len(lines) <= 20  # fifteen minutes, or a few more
    assert "\r" not in out
    left = re.findall(r"(\d+) (?:min|s) left", out)
    assert left
    assert "done" in lines[-1]


def test_the_time_of_a_step_is_true(monkeypatch, capsys):
    out = shown(monkeypatch, capsys, verbose=2, steps=8, every=1000, pace=0.25)
    assert "250 ms a step" in out


def test_a_terminal_has_one_line_that_is_renewed(monkeypatch, capsys):
    out = shown(monkeypatch, capsys, verbose=1, steps=6, every=6, pace=0.5)
    first, *others = out.split("\n")
    assert first.count("\r\033[K") == 6
    assert others[0] == "  Yes."


def test_a_message_begins_on_a_line_of_its_own(monkeypatch, capsys):
    monkeypatch.setattr(module, "steps_of", lambda model: 0)
    callback = Progress(6, 6, Quality(), verbose=1)
    callback.on_train_begin()
    callback.on_epoch_begin(0)
    callback.shown = -100  # long ago
    callback.on_train_batch_end(0, LOGS)
    assert not capsys.readouterr().out.endswith("\n")
    callback.close()
    callback.close()
    assert capsys.readouterr().out == "\n"


def test_nothing_is_shown_where_nobody_looks(monkeypatch, capsys):
    assert not shown(monkeypatch, capsys, 0, steps=5, every=2, pace=70)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.4, "0 s"), (59, "59 s"), (61, "1 min"), (7260, "2 h 1 min")],
)
def test_times_are_said_as_people_say_them(seconds, expected):
    assert duration(seconds) == expected


def test_epochs_are_answered_with_what_to_write(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--out", "run", "--epochs", "3"])
    assert "instead of --epochs 3 write --steps N" in capsys.readouterr().err
