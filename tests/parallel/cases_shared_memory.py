"""Ranks of one host exchange through shared memory: results equal Horovod's, and it can fall back to Horovod."""

import os

import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse.transport import shared_memory
from hvd_sparse.transport.shared_memory import SharedMemoryCommunicator
from tests.parallel.cases import case

DTYPES = (tf.float32, tf.float16, tf.bfloat16, tf.float64, tf.int32, tf.int64, tf.uint8, tf.bool)


def _node() -> SharedMemoryCommunicator:
    node = hvd.topology.node()
    assert isinstance(node, SharedMemoryCommunicator), "ranks of one host are expected to share memory here"
    return node


def _rows(dtype: tf.DType, rows: int, seed: int) -> tf.Tensor:
    numbers = np.random.default_rng(seed).integers(0, 2, [rows, 3])
    return tf.cast(tf.constant(numbers), dtype)


@case(ranks=(3, 4))
def results_are_those_of_the_carrier() -> None:
    node = _node()
    splits = [(5 * rank + 3) % 7 for rank in range(node.size)]  # with 4 ranks, one of them is 0
    for number, dtype in enumerate(DTYPES):
        tensor = _rows(dtype, sum(splits), node.rank + 10 * number)
        for run in (lambda call: call(), lambda call: tf.function(call, jit_compile=False)()):
            own = run(lambda tensor=tensor: node.alltoall(tensor, splits, "own"))
            carried = run(lambda tensor=tensor: node._carrier.alltoall(tensor, splits, "carried"))
            np.testing.assert_array_equal(own.numpy(), carried.numpy())
            short = tensor[: splits[node.rank]]
            own = run(lambda short=short: node.allgather(short, "own.gather", splits))
            carried = run(lambda short=short: node._carrier.allgather(short, "carried.gather"))
            np.testing.assert_array_equal(own.numpy(), carried.numpy())


@case(ranks=(4,))
def results_that_are_held_stay_as_they_are() -> None:
    node = _node()
    held = [node.allgather(tf.fill([1000], float(round)), "held", [1000] * node.size) for round in range(5)]
    for round, gathered in enumerate(held):
        np.testing.assert_array_equal(gathered.numpy(), np.full(1000 * node.size, round, np.float32))


@case(ranks=(4,))
def exchanges_may_begin_in_any_order() -> None:
    """More exchanges at once than TensorFlow has threads, in a different order on every rank."""
    node = _node()
    numbers = np.random.default_rng(node.rank).permutation(40)

    @tf.function(jit_compile=False)
    def all_at_once(vector: tf.Tensor) -> list[tf.Tensor]:
        gathered = {}
        for number in numbers:
            gathered[number] = node.allgather(vector + float(number), f"many.{number}", [10] * node.size)
        return [gathered[number] for number in range(40)]

    for number, result in enumerate(all_at_once(tf.fill([10], float(node.rank)))):
        np.testing.assert_array_equal(result.numpy(), np.repeat(np.arange(node.size), 10) + number)


@case(ranks=(4,))
def one_rank_that_does_not_want_to_takes_all_back_to_horovod() -> None:
    carrier = _node()._carrier
    if hvd.rank() == 1:
        os.environ[shared_memory.SWITCH_VARIABLE] = "0"
    try:
        connected = shared_memory.connect(carrier, "unwilling")
    finally:
        os.environ.pop(shared_memory.SWITCH_VARIABLE, None)
    assert connected is carrier


@case(ranks=(2,))
def starting_again_connects_again() -> None:
    before = _node()
    hvd.shutdown()
    hvd.init()
    after = _node()
    assert after is not before and after.group != before.group
    gathered = after.allgather(tf.constant([hvd.rank()]), "again", [1, 1])
    np.testing.assert_array_equal(gathered.numpy(), [0, 1])
    try:
        before.allgather(tf.constant([hvd.rank()]), "before", [1, 1])
    except tf.errors.AbortedError as error:
        assert "was Horovod shut down?" in str(error)
    else:
        raise AssertionError("a group that was left still exchanges")
