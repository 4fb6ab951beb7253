"""The exchange of the first bucket starts before the last gradient is computed."""

from __future__ import annotations

import json
import os
import pathlib
import tempfile
import threading

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse import aggregators
from tests.parallel.cases import LIMIT, Launch, case, thorough
from tests.parallel.training import L, distributed, own_data


class Signalling(aggregators.AllReduce):
    """A dense exchange that signals when the first bucket's mean has arrived."""

    arrived = threading.Event()

    def exchange_apart(self, tensors, state, residual):
        exchange = super().exchange_apart(tensors, state, residual)
        if not state.spec.name.endswith("bucket0"):
            return exchange

        def signal(mean):
            self.arrived.set()
            return mean

        first, *others = exchange.mean
        return exchange._replace(mean=[through_python(signal, first), *others])


def through_python(function, tensor):
    """Calls Python in a graph; not stateful, as a `tf.function` would run stateful calls in the order of tracing."""
    return tf.ensure_shape(tf.numpy_function(function, [tensor], tf.float32, stateful=False), tensor.shape)


@tf.custom_gradient
def waits_in_the_backward_pass(x):
    """Delays the gradients of the layers before it until the first bucket's mean has arrived."""

    def wait(upstream):
        assert Signalling.arrived.wait(timeout=LIMIT / 2), "the first bucket's exchange waits for the last gradient"
        return upstream

    def backward(upstream):
        return through_python(wait, upstream)

    return tf.identity(x), backward


@case(
    ranks=(2,),
    over=lambda ranks: [{"measured": measured} for measured in (False, True)],
    launch=Launch(),
    quick=lambda ranks, measured: measured,
)
def the_first_exchange_ends_before_the_last_gradient_exists(measured):
    """The backward pass cannot continue until the first bucket is exchanged; the timeline must show the same order.

    It must also show that large messages are sent separately.
    """
    path = pathlib.Path(tempfile.gettempdir()) / f"timeline.{os.getppid()}.{os.getpid()}.json"
    os.environ["HOROVOD_TIMELINE"] = str(path)
    hvd.init(local_size=2)
    telemetry = hvd.Telemetry() if measured else None
    inputs = keras.Input((6,), batch_size=8)
    hidden = L.Dense(16, name="early")(inputs)
    hidden = L.Lambda(waits_in_the_backward_pass, output_shape=(16,))(hidden)
    model = keras.Model(inputs, L.Dense(2, name="late")(hidden))
    optimizer = distributed(keras.optimizers.SGD(0.05), Signalling(), telemetry=telemetry, first_bucket_bytes=1)
    model.compile(optimizer, "mse")
    for _ in range(2):
        Signalling.arrived.clear()
        model.train_on_batch(*own_data(8))
    placement = optimizer.exchange.account()["places"]
    assert placement[0][2].endswith("bucket 1") and placement[-1][2].endswith("bucket 0")
    for _ in range(8):
        gather_large_messages()
    rank = hvd.rank()
    hvd.stop_timeline()  # writes what is queued and closes the file; `shutdown` alone drops what is still queued
    hvd.shutdown()
    if rank == 0:  # only the first rank writes a timeline
        first, last = (spans(path, f"bucket{tensor}") for tensor in ("0.allreduce.0", "1.allreduce.0"))
        assert len(first) == len(last) == 2
        for (_, first_end), (last_start, _) in zip(first, last, strict=True):
            assert first_end < last_start
        told = path.read_text()
        assert told.count("NEGOTIATE_ALLGATHER") >= 64 and "MEMCPY_IN_FUSION_BUFFER" not in told[told.index("large.") :]
        path.unlink()


@tf.function(autograph=False)
def gather_large_messages():
    """Gathers eight messages that are ready together, each above a megabyte, so that Horovod does not fuse them."""
    own = tf.fill([200_000], float(hvd.rank()))
    gathered = [hvd.topology.world().allgather(own + number, f"large.{number}") for number in range(8)]
    return tf.add_n([tf.reduce_sum(each) for each in gathered])


@case(ranks=(4,), launch=Launch(), quick=thorough)
def a_deterministic_dense_mean_has_the_bits_of_one_vector():
    """Without determinism the large gradient is sent separately, and its ring adds in another order."""
    tf.config.experimental.enable_op_determinism()
    hvd.init(local_size=2)
    shapes = [(37, 11), (5,), (520, 600), (301,), (64, 9)]
    variables = [tf.Variable(tf.zeros(shape), name=f"v{number}") for number, shape in enumerate(shapes)]
    random = np.random.default_rng(hvd.rank())
    gradients = [tf.constant(random.standard_normal(shape), tf.float32) for shape in shapes]
    exchange = hvd.GradientExchange(
        hvd.recipes.dense(), name="deterministic", bucket_bytes=2**23, first_bucket_bytes=2**23
    )
    eager = [mean.numpy() for mean in exchange(gradients, variables)]
    in_graph = tf.function(lambda *values: exchange(values, variables))
    for _ in range(5):
        means = in_graph(*gradients)
        assert [mean.numpy().tobytes() for mean in means] == [mean.tobytes() for mean in eager]
    hvd.shutdown()


def spans(path, tensor):
    """Begin and end of a tensor's exchanges in Horovod's timeline, in microseconds."""
    events = [event for event in json.loads(path.read_text()) if event]
    names = {event["pid"]: event["args"].get("name", "") for event in events if event.get("name") == "process_name"}
    found, begun = [], []
    for event in events:
        if tensor not in names[event["pid"]] or event["ph"] not in "BE":
            continue
        if event["ph"] == "B":
            begun.append(event)
        else:
            begin = begun.pop()
            if begin["name"] == "ALLREDUCE":
                found.append((begin["ts"], event["ts"]))
    return found
