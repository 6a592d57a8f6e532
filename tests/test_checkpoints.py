"""Checks that a checkpoint restores all state, or says why it cannot."""

import errno
import json
import resource

import keras
import numpy as np
import pytest

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.training import checkpoints

CONFIG = TransformerConfig(31, num_layers=1, d_model=22, num_heads=2, d_ff=17)
INPUTS = {"source": np.array([[5, 6, 3]]), "target": np.array([[2, 7]])}
LABELS = np.array([[7, 3]])


def trained(seed=1):
    """Returns a model whose state is random, as after some steps."""
    model = Transformer(CONFIG, seed=seed)
    model.compile(
        keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        run_eagerly=True,
    )
    model.optimizer.build(model.trainable_variables)
    rng = np.random.default_rng(seed)
    for kind in checkpoints.state_of(model).values():
        for variable in kind.values():
            some = rng.integers(1, 9, variable.shape)
            is_float = variable.dtype.startswith("float")
            variable.assign(some / 10 if is_float else some)
    return model


def all_state(model):
    state = checkpoints.state_of(model)
    assert all(state.values()), "a kind of state is empty"
    return [
        keras.ops.convert_to_numpy(v)
        for kind in state.values()
        for v in kind.values()
    ]


def test_resumed_training_equals_uninterrupted_training_bitwise(tmp_path):
    model = trained()
    path = checkpoints.save(tmp_path, model, 3)
    model.fit(INPUTS, LABELS, epochs=2, verbose=0)
    again = trained(seed=5)  # with other weights, moments and seeds
    assert checkpoints.restore(path, again)["step"] == 3
    again.fit(INPUTS, LABELS, epochs=2, verbose=0)
    for expected, found in zip(all_state(model), all_state(again), strict=True):
        np.testing.assert_array_equal(found, expected)


def rewrite(path, arrays, **changes):
    """Rewrites the file of a checkpoint with other arrays or metadata."""
    metadata, _ = checkpoints.read(path)
    metadata |= {"arrays": sorted(arrays), **changes}
    np.savez(path, about=np.array(json.dumps(metadata)), **arrays)


def test_arrays_are_matched_by_name(tmp_path):
    """Query and key have the same shape, so only names tell them apart."""
    model = trained()
    path = checkpoints.save(tmp_path, model, 3)
    _, arrays = checkpoints.read(path)
    assert not [name for name in arrays if "transformer" in name]
    rewrite(path, dict(reversed(arrays.items())))
    again = trained(seed=5)
    checkpoints.restore(path, again)
    for expected, found in zip(all_state(model), all_state(again), strict=True):
        np.testing.assert_array_equal(found, expected)
    name = "weights/encoder_0/self_attention/query/kernel"
    arrays["weights/mine"] = arrays.pop(name)
    rewrite(path, arrays)
    with pytest.raises(ValueError, match=r"query/kernel.*unknown \(mine"):
        checkpoints.restore(path, again)


@pytest.mark.parametrize("number", [1, 999])
def test_another_format_is_refused(tmp_path, number):
    model = trained()
    path = checkpoints.save(tmp_path, model, 1)
    rewrite(path, checkpoints.read(path)[1], format=number)
    with pytest.raises(ValueError, match=rf"format {number}, .*Train again"):
        checkpoints.restore_newest(tmp_path, model)


def test_weights_that_are_nan_are_not_saved(tmp_path):
    model = trained()
    gamma = model.weights[-2]
    gamma.assign(np.full(gamma.shape, np.nan))
    with pytest.raises(ValueError, match=r"gamma.*step 2.*learning-rate"):
        checkpoints.save(tmp_path, model, 2)
    assert list(tmp_path.iterdir()) == []


def test_weights_can_be_restored_without_an_optimizer(tmp_path):
    model = trained()
    path = checkpoints.save(tmp_path, model, 3)
    again = Transformer(CONFIG)
    checkpoints.restore(path, again, with_optimizer=False)
    np.testing.assert_array_equal(again(INPUTS), model(INPUTS))


def test_only_the_newest_checkpoints_are_kept(tmp_path):
    model = trained()
    (tmp_path / "mine.txt").write_text("not a checkpoint")
    for step in (1, 2, 30, 100):
        checkpoints.save(tmp_path, model, step, keep=2)
    assert [step for step, _ in checkpoints.steps(tmp_path)] == [30, 100]
    assert (tmp_path / "mine.txt").exists()


def test_a_checkpoint_between_the_regular_ones_is_kept_until_the_next_save(
    tmp_path,
):
    """So the checkpoint of a signal displaces no regular one for long."""
    model = trained()
    kept = []
    for step in (4, 8, 9, 11, 12):
        checkpoints.save(tmp_path, model, step, keep=2, every=4)
        kept.append([number for number, _ in checkpoints.steps(tmp_path)])
    assert kept == [[4], [4, 8], [8, 9], [8, 11], [8, 12]]


def test_a_checkpoint_is_kept_though_a_damaged_one_is_of_a_later_step(tmp_path):
    model = trained()
    for step in (8, 12, 10):
        checkpoints.save(tmp_path, model, step, keep=1, every=4, protected=8)
    assert [step for step, _ in checkpoints.steps(tmp_path)] == [8, 10]


def test_a_system_error_is_not_reported_as_damage(tmp_path, monkeypatch):
    """The error may be temporary, so an older checkpoint is no replacement."""
    path = checkpoints.save(tmp_path, trained(), 3)

    def stale(*_, **__):
        raise OSError(errno.ESTALE, "Stale file handle", str(path))

    monkeypatch.setattr(checkpoints.np, "load", stale)
    with pytest.raises(OSError, match="Stale"):
        checkpoints.restore_newest(tmp_path, trained())


def test_a_flipped_byte_is_detected_or_harmless(tmp_path):
    rng = np.random.default_rng(1)
    path = tmp_path / "step-00000001.npz"
    arrays = {f"weights/{n}": rng.normal(size=(n, 31)) for n in (5, 7, 11)}
    checkpoints.write(path, arrays, {"step": 1})
    original, (_, expected) = path.read_bytes(), checkpoints.read(path)
    found = 0
    directory = original.index(b"PK\x01\x02")  # names and sizes of the members
    places = [
        *range(0, directory, directory // 70),
        *range(directory, len(original), 7),
    ]
    for place in places:
        data = bytearray(original)
        data[place] ^= 1 + place % 255
        path.write_bytes(data)
        try:
            _, arrays = checkpoints.read(path)
        except checkpoints.DamagedCheckpointError:
            found += 1
            continue
        assert arrays.keys() == expected.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, expected[name])
    assert found > len(places) / 2  # no reader uses the other bytes


@pytest.mark.parametrize("damage", ["cut", "empty"])
def test_a_damaged_file_is_named_and_skipped(tmp_path, damage):
    model = trained()
    checkpoints.save(tmp_path, model, 1)
    path = checkpoints.save(tmp_path, model, 2)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] if damage == "cut" else b"")
    with pytest.raises(ValueError, match=r"step-00000002.*damaged"):
        checkpoints.restore(path, model)
    with pytest.warns(UserWarning, match=r"step-00000002.*damaged"):
        assert checkpoints.restore_newest(tmp_path, model)["step"] == 1


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path):
    """A limit on the size of files makes the save fail halfway."""
    model = trained()
    path = checkpoints.save(tmp_path, model, 1)
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))
    try:
        with pytest.raises(OSError, match=r"step-00000002\.npz"):
            checkpoints.save(tmp_path, model, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before


def test_a_checkpoint_of_another_model_is_refused_with_both_shapes(tmp_path):
    path = checkpoints.save(tmp_path, trained(), 1)
    other = Transformer(
        TransformerConfig(37, num_layers=1, d_model=22, num_heads=2, d_ff=17)
    )
    with pytest.raises(ValueError, match=r"\(37, 22\).*\(31, 22\)"):
        checkpoints.restore(path, other, with_optimizer=False)


def test_an_empty_folder_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="found 0"):
        checkpoints.restore_newest(tmp_path, trained())
