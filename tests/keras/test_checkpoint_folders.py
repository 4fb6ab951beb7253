"""`hvd.callbacks.CheckpointCallback`: where it resumes, and what it removes."""

import json
import random

import keras
import numpy as np
import pytest

import hvd_sparse as hvd
from hvd_sparse.keras.callbacks import folders as marker
from tests.faults.checkpoints import (
    FLIPS,
    MARKER,
    RESIDUALS,
    WEIGHTS,
    assert_same,
    compiled,
    fit,
    flip,
    folders,
    resumed,
    state,
    trained,
)

OWN = f"{RESIDUALS}.rank0of1"


def as_if_of_two_ranks(folder):
    """Has a checkpoint say that two ranks wrote it."""
    manifest, arrays = hvd.checkpoint.read(folder / RESIDUALS)
    digest = hvd.checkpoint.write(folder / RESIDUALS, {**manifest, "ranks": 2}, arrays)
    told = json.loads((folder / MARKER).read_text())
    marker.write_marker(folder, told["epoch"], 2, {**told["files"], RESIDUALS: digest}, told["optimizers"])


def test_single_bits_that_flip_in_the_weights(tmp_path):
    """For the other files see tests/faults/test_checkpoints.py."""
    model, states = trained(tmp_path, 2)
    generator, path = random.Random(0), tmp_path / "epoch-0001" / WEIGHTS
    content = path.read_bytes()
    for _ in range(FLIPS):
        flip(path, generator)
        (told,) = resumed(model, tmp_path)
        assert f"{path} is damaged" in told
        assert_same(state(model), states[0])
        path.write_bytes(content)


def test_local_variables_that_other_ranks_had_begin_anew_with_a_warning(tmp_path):
    trained(tmp_path, 1)
    as_if_of_two_ranks(tmp_path / "epoch-0000")
    (told,) = resumed(compiled(), tmp_path)
    assert told.count("was written by 2 ranks") == 1 and "random seeds" in told, "its dropout begins afresh"
    model = compiled()
    model.optimizer.register_local_var(model.layers[-1].kernel)
    (told,) = resumed(model, tmp_path)
    assert f"{tmp_path / 'epoch-0000'} was written by 2 ranks" in told and "local variables, starts afresh" in told


def test_a_seal_that_is_cut_off_is_missed(tmp_path):
    trained(tmp_path, 1)
    path = tmp_path / "epoch-0000" / RESIDUALS
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(OSError, match="damaged|not an intact archive"):
        hvd.checkpoint.read(path)


def test_numpy_alone_reads_an_archive(tmp_path):
    hvd.checkpoint.write(tmp_path / "a.npz", {"format": "hvd_sparse residuals 2"}, {"x": np.arange(3)})
    with np.load(tmp_path / "a.npz", allow_pickle=False) as archive:
        assert archive["array0"].tolist() == [0, 1, 2]


def test_a_checkpoint_can_be_required(tmp_path):
    callback = hvd.callbacks.CheckpointCallback(tmp_path, required=True)
    with pytest.raises(FileNotFoundError, match="no intact checkpoint to resume from: there are none"):
        fit(compiled(), callback, epochs=1)
    trained(tmp_path, 1)
    fit(compiled(), callback, epochs=2)
    for name in folders(tmp_path):
        (tmp_path / name / WEIGHTS).unlink()
    with pytest.raises(FileNotFoundError, match="no intact checkpoint to resume from: .*epoch-0001.* is missing"):
        fit(compiled(), callback, epochs=3)


def test_what_others_put_into_our_folders_stays(tmp_path):
    class Note(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            (tmp_path / f"epoch-{epoch:04d}" / "notes.txt").touch()

    fit(compiled(), hvd.callbacks.CheckpointCallback(tmp_path, keep=1), Note(), epochs=2)
    assert folders(tmp_path / "epoch-0000") == ["notes.txt"]
    assert folders(tmp_path / "epoch-0001") == sorted([MARKER, WEIGHTS, RESIDUALS, OWN, "notes.txt"])


def test_an_interrupted_checkpoint_goes_when_it_is_old(tmp_path):
    (tmp_path / "epoch-0000").mkdir()
    (tmp_path / "epoch-0000" / f"{RESIDUALS}.123.tmp").touch()
    fit(compiled(), hvd.callbacks.CheckpointCallback(tmp_path, keep=2), initial_epoch=1, epochs=4)
    assert folders(tmp_path) == ["epoch-0002", "epoch-0003"]


def test_what_is_damaged_stays_while_fewer_are_whole_than_are_kept(tmp_path):
    trained(tmp_path, 1)
    (tmp_path / "epoch-0000" / WEIGHTS).unlink()
    fit(compiled(), hvd.callbacks.CheckpointCallback(tmp_path, keep=3), initial_epoch=1, epochs=3)
    assert folders(tmp_path) == ["epoch-0000", "epoch-0001", "epoch-0002"]
    fit(compiled(), hvd.callbacks.CheckpointCallback(tmp_path, keep=3), epochs=4)
    assert folders(tmp_path) == ["epoch-0001", "epoch-0002", "epoch-0003"]


def test_an_epoch_that_is_saved_again_is_whole(tmp_path):
    model, _ = trained(tmp_path, 1)
    callback = hvd.callbacks.CheckpointCallback(tmp_path)
    callback.set_model(model)
    callback.on_epoch_end(0)
    assert resumed(model, tmp_path) == []


def test_the_weights_are_those_that_keras_writes(tmp_path):
    model, _ = trained(tmp_path, 1)
    values = [np.array(each) for each in model.get_weights()]
    model.set_weights([np.zeros_like(each) for each in values])
    model.load_weights(tmp_path / "epoch-0000" / WEIGHTS)
    for value, expected in zip(model.get_weights(), values, strict=True):
        np.testing.assert_array_equal(value, expected)


def test_a_model_file_is_loaded_right_or_refused(tmp_path):
    compiled().save(tmp_path / "model.keras")
    content, generator = (tmp_path / "model.keras").read_bytes(), random.Random(0)
    expected = hvd.load_model(tmp_path / "model.keras").get_weights()
    for _ in range(FLIPS):
        flip(tmp_path / "model.keras", generator)
        try:
            found = hvd.load_model(tmp_path / "model.keras").get_weights()
        except OSError as error:
            assert "model.keras is damaged" in str(error)
        else:
            assert all(np.array_equal(*each) for each in zip(found, expected, strict=True))
        (tmp_path / "model.keras").write_bytes(content)
    with pytest.raises(FileNotFoundError, match="missing.keras does not exist"):
        hvd.load_model(tmp_path / "missing.keras")
