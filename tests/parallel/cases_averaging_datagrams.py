"""Model averaging by datagrams on real ranks: the results of training, and what happens when a rank stops."""

from __future__ import annotations

import os
import signal

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse.averaging import Datagrams, ModelAveraging, Reliable, Telemetry
from tests.parallel.cases import case, thorough
from tests.parallel.training import network, on_every_rank, own_data, shared_folder

LONG = 300.0  # seconds: time limits that even a busy machine does not reach
UNHURRIED = Datagrams("127.0.0.1", slack=LONG, least=LONG, patience=LONG)


def trained(transport) -> tuple[list[np.ndarray], dict]:
    """The weights after some steps, and the telemetry."""
    keras.utils.set_random_seed(hvd.rank())
    model, telemetry = network(), Telemetry()
    model.compile(ModelAveraging(keras.optimizers.SGD(0.05), transport, telemetry=telemetry), "mse")
    x, y = own_data()
    model.fit(x, y, batch_size=8, epochs=2, verbose=0)
    told = telemetry.read()
    hvd.averaging.close(model.optimizer)
    assert telemetry.read()["channel"] == {}
    return [variable.numpy() for variable in model.weights], told


@case(ranks=(2, 4))
def without_loss_training_has_the_bits_of_reliable_averaging():
    sure, nothing = trained(Reliable())
    quick, told = trained(UNHURRIED)
    pieces = 2 * (told["round"] + 1) * (hvd.size() - 1)  # in each phase of each round, one from each other rank
    assert nothing["channel"] == {} and told["channel"]["datagrams"]["accepted"] >= pieces
    assert told["total_lost"] == {"reduce_scatter": 0.0, "all_gather": 0.0}
    for one, other in zip(sure, quick, strict=True):
        np.testing.assert_array_equal(one, other)


@case(ranks=(3,), quick=thorough)
def a_rank_that_is_stopped_is_silent_and_goes_on_where_the_others_are():
    transport = Datagrams("127.0.0.1", rate=1e9, multiple=LONG, slack=LONG, patience=0.5)
    channel = transport.open(1000, hvd.topology.world(), True, "stopped")
    processes, over = on_every_rank(os.getpid()), shared_folder() / "over"
    own = tf.fill([1000], float(hvd.rank()))
    averaged = channel.average(own, tf.constant(0, tf.int64))
    np.testing.assert_array_equal(averaged.vector.numpy(), np.ones(1000, np.float32))
    if hvd.rank() == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    rounds, missed, while_stopped = [0], False, 20
    while not over.exists():
        averaged = channel.average(own, tf.constant(rounds[-1] + 1, tf.int64))
        rounds.append(int(averaged.round))
        if hvd.rank() == 0 and rounds[-1] >= while_stopped and channel.report()["silent"] == [2]:
            missed = True
            os.kill(processes[2], signal.SIGCONT)
        others = np.delete(averaged.expected.numpy()[0], hvd.rank())
        if missed and others.all():
            over.touch()
    assert rounds == sorted(set(rounds)), "rounds only grow"
    # Datagrams received while it was stopped wait in its socket, so it may still take part in the first of them.
    assert hvd.rank() != 2 or len(rounds) <= rounds[-1], "it was to leave out rounds that the others had without it"
    channel.close()
