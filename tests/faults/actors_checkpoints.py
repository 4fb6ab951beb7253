"""Checkpoints of two ranks in which one file is damaged."""

from __future__ import annotations

import os
import pathlib
import random
import shutil
import tempfile

import keras
import numpy as np

import hvd_sparse as hvd
from tests.datacache.devices import fill
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


def _everywhere(value):
    """The values of all ranks, in rank order."""
    return hvd.topology.world().gather_descriptions(value, "test.values")


def _shared_folder():
    mine = tempfile.mkdtemp() if hvd.rank() == 0 else None
    return pathlib.Path(_everywhere(mine)[0])


def _assert_told(told, *texts):
    """Asserts that there is one warning, on rank 0."""
    assert [len(each) for each in _everywhere(told)] == [1, 0], _everywhere(told)
    for text in texts if hvd.rank() == 0 else ():
        assert text in told[0], f"expected {text!r} in: {told[0]}"


def _assert_alike(model, expected):
    """Asserts that every rank has this state, equal bit for bit on all."""
    values = [value.tobytes().hex() for value in state(model)[: len(model.weights)]]
    assert all(each == values for each in _everywhere(values)), "the replicas differ"
    assert_same(state(model), expected)


def a_rank_whose_layers_have_other_names_goes_on_to_the_bit():
    """Its file referred to an account of its own, which no rank writes, so that its state was taken for another's."""
    for _ in range(hvd.rank()):
        keras.layers.Dense(1)
    directory = _shared_folder()
    model, states = trained(directory, 1)
    names = _everywhere([each.path for each in model.weights])
    assert names[0] != names[1], names
    assert resumed(model, directory) == [], "every rank has its own state"
    _assert_alike(model, states[0])
    shutil.rmtree(directory, ignore_errors=True)


def single_bits_that_flip_in_any_file():
    directory = _shared_folder()
    model, states = trained(directory, 2)
    for name in (MARKER, WEIGHTS, RESIDUALS, f"{RESIDUALS}.rank0of2", f"{RESIDUALS}.rank1of2"):
        generator, path = random.Random(name), directory / "epoch-0001" / name
        content = path.read_bytes()
        for _ in range(FLIPS):
            if hvd.rank() == 0:
                flip(path, generator)
            _everywhere(None)
            epoch = 1 if "rank" in name else 0
            _assert_told(resumed(model, directory), str(path), f"resumes from {directory / f'epoch-000{epoch}'}")
            _assert_alike(model, states[epoch])
            if hvd.rank() == 0:
                path.write_bytes(content)
    _everywhere(None)
    assert resumed(model, directory) == []
    _assert_alike(model, states[1])
    shutil.rmtree(directory, ignore_errors=True)


def files_that_are_gone():
    directory = _shared_folder()
    model, states = trained(directory, 2)
    for name in (MARKER, WEIGHTS, RESIDUALS, f"{RESIDUALS}.rank1of2"):
        path = directory / "epoch-0001" / name
        if hvd.rank() == 0:
            path.rename(directory / "gone")
        _everywhere(None)
        epoch = 1 if "rank" in name else 0
        _assert_told(resumed(model, directory), f"{path} is missing", f"resumes from {directory / f'epoch-000{epoch}'}")
        _assert_alike(model, states[epoch])
        if hvd.rank() == 0:
            (directory / "gone").rename(path)
    _everywhere(None)
    shutil.rmtree(directory, ignore_errors=True)


def ranks_that_do_not_share_a_file_system():
    directory = pathlib.Path(tempfile.mkdtemp())
    model, states = trained(directory, 3)
    assert folders(directory) == ["epoch-0001", "epoch-0002"]
    assert resumed(model, directory) == []
    if hvd.rank() == 0:
        flip(directory / "epoch-0002" / MARKER, random.Random(0))
    _assert_told(resumed(model, directory), f"resumes from {directory / 'epoch-0001'}")
    _assert_alike(model, states[1])
    if hvd.rank() == 1:
        shutil.rmtree(directory)
    _assert_told(resumed(model, directory), f"resumes from {directory / 'epoch-0001'}", "rank 1: ", "equally")
    _assert_alike(model, states[1])


def local_variables_are_not_lost_for_a_newer_checkpoint():
    """They are only in a rank's own file; if that is damaged, they come from an older checkpoint."""

    def local(model):
        return [np.array(keras.ops.convert_to_numpy(each)) for each in model.layers[-1].weights]

    class Locals(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            kept.append(local(self.model))

    directory, kept, model = _shared_folder(), [], compiled()
    model.optimizer.register_local_var(model.layers[-1].kernel)
    model.optimizer.register_local_var(model.layers[-1].bias)
    fit(model, hvd.callbacks.CheckpointCallback(directory), Locals(), epochs=2)
    path = directory / "epoch-0001" / f"{RESIDUALS}.rank1of2"
    if hvd.rank() == 0:
        flip(path, random.Random(0))
    _everywhere(None)
    _assert_told(resumed(model, directory), str(path), f"resumes from {directory / 'epoch-0000'}")
    for value, expected in zip(local(model), kept[0], strict=True):
        np.testing.assert_array_equal(value, expected)


def a_model_that_does_not_fit_is_an_error_on_all():
    directory = _shared_folder()
    trained(directory, 1)
    other = compiled(width=3)
    try:
        resumed(other, directory)
    except ValueError as error:
        assert "rank 0: " in str(error) and "does not fit the model" in str(error), error
    else:
        raise AssertionError("expected an error")


def a_model_file_that_is_damaged_or_gone_is_the_same_error_on_all():
    directory, model = _shared_folder(), compiled()
    if hvd.rank() == 0:
        model.save(directory / "model.keras")
        content = bytearray((directory / "model.keras").read_bytes())
        content[content.index(b"TREE")] ^= 1  # in the weights, which are stored uncompressed
        (directory / "model.keras").write_bytes(content)
    _everywhere(None)
    for name, kind, told in (("model", OSError, "is damaged"), ("missing", FileNotFoundError, "does not exist")):
        try:
            hvd.load_model(directory / f"{name}.keras")
        except kind as error:
            text = str(error)
        assert text.startswith(str(directory / f"{name}.keras")) and told in text, text
        assert len(set(_everywhere(text))) == 1


def a_full_disk_is_an_error_on_all():
    directory = pathlib.Path(os.environ["SMALL_DISK"])
    model, states = trained(directory, 1)
    if hvd.rank() == 0:
        fill(directory / "filler")
        with open(directory / "filler", "r+b") as file:
            file.truncate((directory / "filler").stat().st_size - 30_000)
    _everywhere(None)
    try:
        fit(compiled(), hvd.callbacks.CheckpointCallback(directory), epochs=2)
    except OSError as error:
        told = str(error)
    else:
        told = None
    assert told is not None and "No space left on device" in told, told
    assert len(set(_everywhere(told))) == 1, "the ranks tell different things"
    assert folders(directory) == ["epoch-0000", "filler"]
    assert resumed(model, directory) == []
    _assert_alike(model, states[0])
