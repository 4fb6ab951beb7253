"""Ranks that waited for each other got no message: here they wait until one is printed, and are then released."""

from __future__ import annotations

import io
import os
import sys
import threading
import time

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd


class _Heard(io.TextIOBase):
    """Replaces stderr; once it has named both ranks, it shuts Horovod down, which ends all waiting."""

    def __init__(self, named=("rank 0 waits", "rank 1 waits")):
        self.text = ""
        self._named = named
        self.stopping = threading.Thread(target=hvd.shutdown)

    def write(self, text):
        self.text += text
        if all(text in self.text for text in self._named) and not self.stopping.ident:
            self.stopping.start()
        return len(text)


def _stall(act, *texts, named=("rank 0 waits", "rank 1 waits")):
    """Asserts that rank 0 prints `texts` once both ranks wait in `act`."""
    hvd.init()
    rank, heard, stderr = hvd.rank(), _Heard(named), sys.stderr
    sys.stderr = heard if rank == 0 else stderr
    try:
        act(rank)
    except Exception as error:
        assert "shut down" in str(error), str(error)
    else:
        raise AssertionError("the ranks did not wait for each other")
    finally:
        sys.stderr = stderr
    if rank == 0:
        heard.stopping.join()
    else:
        hvd.shutdown()
    for text in texts if rank == 0 else ():
        assert text in heard.text, heard.text


def _train(rank):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    x, y = np.zeros((6, 3), "f4"), np.zeros((6, 2), "f4")
    model.fit(x, y, batch_size=1, verbose=0, callbacks=[_Averages()] if rank == 1 else None)


class _Averages(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 4:
            hvd.allreduce(tf.constant(1.0), name="loss")


def a_rank_waits_in_another_collective():
    """It averages something of its own while the other rank trains."""
    _stall(
        _train,
        "rank 0 waits in a step of fit (epoch 1, batch 5, actors_stalls.py line",
        "rank 1 waits in the collective loss (_Averages.on_train_batch_begin, epoch 1",
        "steps_per_epoch",
    )


def _meet(rank):
    value = tf.constant([1.0])
    hvd.allreduce(value, name="loss") if rank == 0 else hvd.broadcast(value, 0, name="start")


def eager_collectives_differ():
    _stall(_meet, "rank 0 waits in the collective loss (", "rank 1 waits in the collective start (", "actors_stalls.py")


class _Sleeps(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 4:
            time.sleep(20)  # until the other rank has ended Horovod, even on a busy machine


def _train_beside_one_that_sleeps(rank):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    x, y = np.zeros((6, 3), "f4"), np.zeros((6, 2), "f4")
    model.fit(x, y, batch_size=1, verbose=0, callbacks=[_Sleeps()] if rank == 1 else None)


def a_rank_in_fit_waits_for_one_that_does_something_else():
    """Only the operations of a step wait, and Python does not know for what."""
    os.environ["HVD_SPARSE_STALL_SECONDS"] = "3"
    _stall(
        _train_beside_one_that_sleeps,
        "rank 0 waits in a step of fit (epoch 1, batch 5, actors_stalls.py line",
        named=("rank 0 waits", "rank 1 does not wait for others"),
    )


def control_a_step_that_computes_for_long_is_no_stall():
    os.environ["HVD_SPARSE_STALL_SECONDS"] = "1"
    hvd.init()
    heard, stderr = _Heard(), sys.stderr
    sys.stderr = heard
    try:
        _compute()
    finally:
        sys.stderr = stderr
        hvd.shutdown()
    assert "have been waiting" not in heard.text, heard.text


def _compute():
    if hvd.rank() == 1:
        time.sleep(5)
        return
    large = tf.random.uniform([600, 600])
    tf.function(lambda: tf.foldl(lambda found, _: tf.linalg.l2_normalize(found @ large), tf.range(400), large))()
