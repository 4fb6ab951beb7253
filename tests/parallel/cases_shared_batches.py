"""Epochs whose batches are shared between ranks: which rank takes which batch, the order, and the path of samples."""

from __future__ import annotations

import time

import numpy as np

import datacache
import hvd_sparse as hvd
from tests.parallel.cases import case
from tests.parallel.training import on_every_rank, raises, shared_folder

SAMPLES, BATCH = 41, 4
AHEAD = 2  # batches a rank has taken besides the one in use: the rows of one and the samples of another


def decode(payload: bytes) -> tuple[np.ndarray, int]:
    """A sample of a file, and its number."""
    (number,) = np.frombuffer(payload, np.float32)
    return np.full(3, number, np.float32), int(number)


@case(ranks=(3,))
def every_sample_is_taken_once_an_epoch_and_a_rank_that_pauses_takes_few():
    folder = shared_folder()
    if hvd.rank() == 0:
        (folder / "source" / "all").mkdir(parents=True)
        for number in range(SAMPLES):
            (folder / "source" / "all" / f"{number:02}.bin").write_bytes(np.float32(number).tobytes())
    on_every_rank(None)
    source = datacache.ImageFolder(folder / "source", suffixes=(".bin",))
    with datacache.DataCache(source, decode, local_dir=folder / "cache") as cache:
        shared = hvd.servers.SharedBatches(len(cache), BATCH)
        orders = [_taken(cache, shared, folder / f"over{number}") for number in range(2)]
        shared.close()
        resumed = hvd.servers.SharedBatches(len(cache), BATCH, first_epoch=1)
        again = _taken(cache, resumed, folder / "over again")
        resumed.close()
    assert orders[0] != orders[1] == again, "an order for each epoch, and a number for each order"


def _taken(cache, shared, over) -> set[tuple[int, ...]]:
    """The batches that all ranks take in an epoch; the last rank pauses at its first one until none are left."""
    own: list[tuple[int, ...]] = []
    for samples, labels in cache.select(shared.dataset()):
        np.testing.assert_array_equal(samples, np.repeat(labels[:, None], 3, axis=1))
        own.append(tuple(labels.numpy().tolist()))
        while hvd.rank() == 2 and not over.exists():
            time.sleep(0.01)
    over.touch()
    assert hvd.rank() != 2 or len(own) <= 1 + AHEAD
    found = [tuple(batch) for each in on_every_rank(own) for batch in each]
    assert len(found) == shared.batches == 11
    assert sorted(sample for batch in found for sample in batch) == list(range(SAMPLES))
    return set(found)


@case(ranks=(3,))
def ranks_that_want_other_batches_are_told_on_every_rank():
    with raises(ValueError, "rank 2", "batch_size"):
        hvd.servers.SharedBatches(SAMPLES, BATCH + (hvd.rank() == 2))
    with raises(ValueError, "first_epoch of at least 0, got 41, 4 and -1"):
        hvd.servers.SharedBatches(SAMPLES, BATCH, first_epoch=-1)
