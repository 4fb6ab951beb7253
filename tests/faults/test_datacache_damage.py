"""Damage on disk is detected before the data is used: checkpoints of training, and the cache's own files."""

import os

import pytest

from tests.datacache import damage, devices, flips

FLIPS = int(os.environ.get("DATACACHE_FLIPS", "40"))
DAMAGED = int(os.environ.get("DATACACHE_DAMAGED", "30"))
FEW = 3  # trials in the quick tier


@pytest.mark.parametrize(
    "ranks, count", [(3, FEW), *(pytest.param(ranks, FLIPS, marks=pytest.mark.thorough) for ranks in (1, 3))]
)
def test_a_flipped_bit_of_a_checkpoint_is_never_loaded(ranks, count):
    """All ranks resume from the same checkpoint, the previous one."""
    assert flips.run(count, ranks) == []


def test_a_file_that_was_damaged_before_it_is_opened_is_made_anew():
    """No process dies, nothing is raised, and no sample is wrong."""
    assert damage.run(list(range(DAMAGED))) == {}


SMALL_DISK = """
import os, pathlib, sys
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
import keras, numpy as np
import datacache
from tests.datacache.devices import fill

disk, local = map(pathlib.Path, sys.argv[1:])
source = datacache.Indexed(lambda index: bytes([index]), 40, "numbers", labels=range(40))
with datacache.DataCache(
    source, lambda payload: np.frombuffer(payload, np.uint8), local, memory_bytes=0, world=datacache.World()
) as cache:
    training = cache.training(disk / "kept", 5, save_every=2)
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(100_000), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)

    class Fill(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                fill(disk / "filler")

    try:
        steps = training.steps_per_epoch
        model.fit(training.dataset(), steps_per_epoch=steps, callbacks=[training, Fill()], verbose=0)
    except datacache.NoSpaceError as error:
        print(error)
    training = cache.training(disk / "kept", 5, save_every=2)
    print(training.position, sorted(os.listdir(disk / "kept")))
"""


def test_a_disk_that_fills_while_a_checkpoint_is_written(tmp_path):
    """It is reported, and the previous checkpoint remains."""
    said = devices.run(SMALL_DISK, "3m", tmp_path / "disk", tmp_path / "local").splitlines()
    assert "has no room for epoch-000000-position-000000000020.weights.h5" in said[0]
    assert said[1] == "10 ['epoch-000000-position-000000000010.weights.h5']"
