"""Checkpoints that are damaged, interrupted, in each other's way, or too large for the disk; on one rank."""

import io
import os
import pathlib
import random
import zipfile

import keras
import numpy as np
import pytest

import hvd_sparse as hvd
from tests.datacache import devices
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


@pytest.fixture(autouse=True, scope="module")
def started():
    hvd.init(local_size=1)  # given, so that recipes select


# ---- which checkpoints are kept ----


def test_epochs_past_9999_are_in_the_order_of_their_numbers(tmp_path):
    fit(compiled(), hvd.callbacks.CheckpointCallback(tmp_path), initial_epoch=9998, epochs=10_002)
    assert folders(tmp_path) == ["epoch-10000", "epoch-10001"]


def test_the_checkpoint_that_was_just_written_stays(tmp_path):
    """The directory contains a higher number, of a checkpoint whose writing was interrupted."""
    (tmp_path / "epoch-0009").mkdir()
    (tmp_path / "epoch-0009" / RESIDUALS).touch()
    trained(tmp_path, 1, keep=1)
    assert "epoch-0000" in folders(tmp_path)


def test_damaged_checkpoints_do_not_count(tmp_path):
    class Damage(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                flip(tmp_path / "epoch-0001" / WEIGHTS, random.Random(0))

    fit(compiled(), hvd.callbacks.CheckpointCallback(tmp_path, keep=2), Damage(), epochs=3)
    assert folders(tmp_path) == ["epoch-0000", "epoch-0001", "epoch-0002"]


def test_folders_of_others_stay(tmp_path):
    names = ["epoch-0000", "epoch-0000-copy", "epoch-1", "epoch-best"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes.txt").touch()
    trained(tmp_path, 3, keep=1)
    assert folders(tmp_path) == sorted([*names, "epoch-0002"])
    assert all((tmp_path / name / "notes.txt").exists() for name in names)


def test_training_that_begins_anew_beside_damaged_checkpoints_says_so(tmp_path):
    trained(tmp_path, 2)
    for name in folders(tmp_path):
        (tmp_path / name / MARKER).unlink()
    with pytest.warns(UserWarning, match=r"none intact: .*epoch-0001/whole.json.*epoch-0000/.*starts over"):
        fit(compiled(), hvd.callbacks.CheckpointCallback(tmp_path), epochs=1)


# ---- damage ----


@pytest.mark.parametrize("content", ["{", "[]", '{"epoch": 0}', "null", "\0"])
def test_a_damaged_marker_is_passed_over(tmp_path, content):
    model, states = trained(tmp_path, 2)
    (tmp_path / "epoch-0001" / MARKER).write_text(content)
    (told,) = resumed(model, tmp_path)
    assert (
        f"resumes from {tmp_path / 'epoch-0000'}" in told and f"{tmp_path / 'epoch-0001' / MARKER} is damaged" in told
    )
    assert_same(states[0], state(model))


@pytest.mark.parametrize("name", [MARKER, RESIDUALS, f"{RESIDUALS}.rank0of1"])
def test_single_bits_that_flip(tmp_path, name):
    """If a rank's own file of the newest checkpoint is damaged, the sums are used; otherwise the checkpoint before."""
    model, states = trained(tmp_path, 2)
    generator, path = random.Random(name), tmp_path / "epoch-0001" / name
    content = path.read_bytes()
    for _ in range(FLIPS):
        flip(path, generator)
        (told,) = resumed(model, tmp_path)
        assert str(path) in told
        assert_same(state(model), states[1 if "rank" in name else 0])
        path.write_bytes(content)
    assert resumed(model, tmp_path) == []
    assert_same(state(model), states[1])


def archive(tmp_path):
    """An archive, and its bytes."""
    hvd.checkpoint.write(tmp_path / "a.npz", {"format": "hvd_sparse residuals 2"}, {"x": np.arange(9)})
    return tmp_path / "a.npz", bytearray((tmp_path / "a.npz").read_bytes())


def set_in_central_directory(content, place, value):
    content[content.index(b"PK\1\2") + place] = value


DAMAGES = {
    "version": lambda content: set_in_central_directory(content, 6, 255),
    "encrypted": lambda content: set_in_central_directory(content, 8, 1),
    "method": lambda content: set_in_central_directory(content, 10, 12),
    "array": lambda content: content.__setitem__(slice(None), saved(np.arange(3))),
    "list": lambda content: content.__setitem__(slice(None), saved_as_archive(b"[]")),
}


def saved(value):
    file = io.BytesIO()
    np.save(file, value)
    return file.getvalue()


def saved_as_archive(manifest):
    file, digest = io.BytesIO(), np.zeros(32, np.uint8)
    np.savez(file, manifest=np.frombuffer(manifest, "u1"), names=np.frombuffer(b"[]", "u1"), sha256=digest)
    return file.getvalue()


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_archive_that_the_parsers_cannot_take_is_one_error(tmp_path, damage):
    path, content = archive(tmp_path)
    DAMAGES[damage](content)
    path.write_bytes(content)
    with pytest.raises(OSError, match=rf"{path} .*use an older checkpoint"):
        hvd.checkpoint.read(path)


def test_a_bit_beside_the_contents_is_noticed_too(tmp_path):
    path, content = archive(tmp_path)
    set_in_central_directory(content, 12, content[content.index(b"PK\1\2") + 12] ^ 1)
    path.write_bytes(content)
    with pytest.raises(OSError, match="checksum"):
        hvd.checkpoint.read(path)


def test_a_model_file_with_damaged_weights_is_refused(tmp_path):
    """There is one error, which names the file, whatever Keras raises."""
    compiled().save(tmp_path / "model.keras")
    content = bytearray((tmp_path / "model.keras").read_bytes())
    with zipfile.ZipFile(tmp_path / "model.keras") as whole:
        info = whole.getinfo("model.weights.h5")
        weights = whole.read(info)
    kernel = keras.saving.load_model(tmp_path / "model.keras", compile=False).weights[0].numpy().tobytes()
    content[content.index(weights) + weights.index(kernel) + 1] ^= 1
    (tmp_path / "model.keras").write_bytes(content)
    with pytest.raises(OSError, match=r"model.keras is damaged \(.*load an older file"):
        hvd.load_model(tmp_path / "model.keras")


# ---- the disk ----


def test_all_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    events = []
    replace, sync = os.replace, os.fsync

    def noted_replace(source, target):
        events.append(("name", pathlib.Path(source).resolve(), pathlib.Path(target).name))
        replace(source, target)

    def noted_sync(descriptor):
        events.append(("sync", pathlib.Path(f"/proc/self/fd/{descriptor}").resolve(), None))
        sync(descriptor)

    monkeypatch.setattr(os, "replace", noted_replace)
    monkeypatch.setattr(os, "fsync", noted_sync)
    trained(tmp_path, 1)
    folder = tmp_path.resolve() / "epoch-0000"
    named = {name: number for number, (event, _, name) in enumerate(events) if event == "name"}
    assert set(named) == {MARKER, WEIGHTS, RESIDUALS, f"{RESIDUALS}.rank0of1"}
    for number in named.values():
        assert ("sync", events[number][1], None) in events[:number]
        assert ("sync", folder, None) in events[number:]
    assert ("sync", folder.parent, None) in events
    assert max(named, key=named.get) == MARKER


FULL = """
import pathlib, sys
import keras
import hvd_sparse as hvd
from tests.datacache.devices import fill
from tests.faults.checkpoints import compiled, fit, folders, resumed, trained

hvd.init(local_size=1)
path = pathlib.Path(sys.argv[1])
model, _ = trained(path, 1)

def room(size):
    with open(path / "filler", "r+b") as file:
        file.truncate(max(0, (path / "filler").stat().st_size - size))

fill(path / "filler")
for size in (0, 4096, 12288, 20480):
    room(size)
    before = folders(path)
    try:
        fit(compiled(), hvd.callbacks.CheckpointCallback(path), epochs=2)
    except OSError as error:
        assert "No space left on device" in str(error), error
        print("refused")
    assert folders(path) == before, folders(path)
    fill(path / "filler")
assert resumed(model, path) == []
(path / "filler").unlink()
fit(compiled(), hvd.callbacks.CheckpointCallback(path), epochs=2)
assert folders(path) == ["epoch-0000", "epoch-0001"]
"""


@pytest.mark.thorough
def test_a_full_disk_is_an_error_that_leaves_the_checkpoints_before(tmp_path):
    printed = devices.run(FULL, "1m", tmp_path / "disk").splitlines()
    assert [line for line in printed if not line.startswith("hvd_sparse:")] == ["refused"] * 4
