"""Horovod's functions by our names, on several ranks: results equal Horovod's own or a computation in NumPy."""

from __future__ import annotations

import contextlib
import fractions
import itertools
import os

import horovod.tensorflow as horovod
import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse.transport.process_sets import DYNAMIC_VARIABLE, is_dynamic
from tests.parallel.cases import Launch, case, thorough
from tests.parallel.training import raises

RANKS = (2, 3)
DTYPES = (tf.int32, tf.int64, tf.float16, tf.float32, tf.float64)


def vectors(shape, dtype=np.float32):
    """Small integers of all ranks, whose sums are exact."""
    return [np.random.default_rng(rank).integers(-8, 8, shape).astype(dtype) for rank in range(hvd.size())]


def own(values):
    return values[hvd.rank()]


def same(found, expected):
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


# ---- values ----


@case(ranks=RANKS)
def allreduce_is_horovods():
    for dtype in (*DTYPES, tf.int8, tf.uint8):
        each = tf.constant(own(vectors([5, 3], dtype.as_numpy_dtype)))
        for op in ("Average", "Sum", "Min", "Max", "Product"):
            found = hvd.allreduce(each, op=getattr(hvd, op))
            same(found, horovod.allreduce(each, op=getattr(horovod, op)))
            assert found.dtype == dtype
    each = own(vectors([4]))
    same(hvd.allreduce(each, prescale_factor=0.5, op=hvd.Sum), sum(vectors([4])) / 2)
    same(hvd.allreduce(each, postscale_factor=4.0, op=hvd.Sum), sum(vectors([4])) * 4)
    same(hvd.allreduce(each, compression=hvd.Compression.fp16, op=hvd.Sum), sum(vectors([4])))
    same(hvd.allreduce(tf.cast(each, tf.bfloat16), op=hvd.Sum), sum(vectors([4])))


@case(ranks=RANKS)
def allreduce_of_rows_is_their_gathering():
    rank, size = hvd.rank(), hvd.size()
    slices = tf.IndexedSlices(np.full([rank + 1, 2], 2.0 * size, np.float32), np.arange(rank + 1), [9, 2])
    mean = hvd.allreduce(slices)
    same(mean.indices, np.concatenate([np.arange(each + 1) for each in range(size)]))
    same(mean.values, np.full([size * (size + 1) // 2, 2], 2.0))
    halved = hvd.allreduce(tf.IndexedSlices(tf.cast(slices.values, tf.bfloat16), slices.indices, [9, 2]))
    assert halved.values.dtype == tf.bfloat16 and tf.reduce_all(halved.values == 2.0)
    dense, rows = hvd.grouped_allreduce([1.0, slices], op=hvd.Sum)
    assert float(dense) == size and float(rows.values[0, 0]) == 2.0 * size
    with raises(NotImplementedError, "Sum and Average"):
        hvd.allreduce(slices, op=hvd.Max)


@case(ranks=RANKS)
def groups_may_mix_dtypes():
    floats, whole = vectors([3]), vectors([2, 2], np.int64)
    found = hvd.grouped_allreduce([own(floats), own(whole), own(floats) * 2, True + hvd.rank()], op=hvd.Sum)
    for each, expected in zip(found, [sum(floats), sum(whole), sum(floats) * 2], strict=False):
        same(each, expected)
    gathered = hvd.grouped_allgather([own(floats), own(whole)])
    same(gathered[0], np.concatenate(floats))
    same(gathered[1], np.concatenate(whole))
    assert hvd.grouped_allreduce([]) == [] == hvd.grouped_allgather([]) == hvd.grouped_reducescatter([])


@case(ranks=RANKS)
def what_is_only_moved_keeps_its_bits():
    for dtype in ("bfloat16", "uint32", "uint64", "bool", "int16"):
        values = [tf.cast(each, dtype) for each in vectors([hvd.size(), 2], np.uint8)]
        assert tf.reduce_all(hvd.broadcast(own(values), 1) == values[1])
        assert tf.reduce_all(hvd.allgather(own(values)) == tf.concat(values, axis=0))
        received = hvd.alltoall(own(values))
        assert tf.reduce_all(received == tf.stack([each[hvd.rank()] for each in values]))
    received, lengths = hvd.alltoall(list(range(hvd.size())), splits=np.ones(hvd.size(), np.int64))
    same(received, [hvd.rank()] * hvd.size())
    same(lengths, [1] * hvd.size())


@case(ranks=RANKS)
def reducescatter_gives_each_rank_its_rows():
    for rows in (1, 7):
        share = np.array_split(np.arange(rows), hvd.size())[hvd.rank()]
        for dtype in (tf.int64, tf.float16, tf.float32):
            values = vectors([rows, 3], dtype.as_numpy_dtype)
            found = hvd.reducescatter(own(values), op=hvd.Sum)
            same(found, sum(values)[share])
            assert found.dtype == dtype
            mean = hvd.reducescatter(own(values), op=hvd.Average)
            same(mean, hvd.allreduce(own(values)).numpy()[share])
    same(hvd.reducescatter(own(values), op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5), sum(values)[share])
    first, second = hvd.grouped_reducescatter([own(values), [hvd.rank()] * rows], op=hvd.Sum)
    same(first, sum(values)[share])
    same(second, np.full(len(share), sum(range(hvd.size()))))
    traced = tf.function(lambda each: hvd.reducescatter(each, op=hvd.Sum), input_signature=[tf.TensorSpec([None, 3])])
    same(traced(own(vectors([rows, 3]))), sum(vectors([rows, 3]))[share])


@case(ranks=RANKS)
def reducescatter_refuses_what_differs():
    with raises(tf.errors.FailedPreconditionError, "shape"):
        hvd.reducescatter(tf.ones([17 + hvd.rank(), 2]))
    with raises(tf.errors.FailedPreconditionError, "type"):
        hvd.reducescatter(tf.ones([4], tf.float32 if hvd.rank() else tf.int32))
    with raises(ValueError, "hvd.Average or hvd.Sum", "hvd.Max"):
        hvd.reducescatter(tf.ones([4]), op=hvd.Max)
    with raises(ValueError, "scalar"):
        hvd.reducescatter(1.0)


@case(ranks=RANKS)
def gradients_are_horovods():
    size = hvd.size()
    variable = tf.Variable(own(vectors([2 * size, 2])))
    collectives = {
        "allreduce": lambda module, value: module.allreduce(value, op=module.Sum),
        "mean": lambda module, value: module.allreduce(value),
        "allgather": lambda module, value: module.allgather(value),
        "broadcast": lambda module, value: module.broadcast(value, 1),
        "alltoall": lambda module, value: module.alltoall(value),
        "reducescatter": lambda module, value: module.reducescatter(value, op=module.Sum, prescale_factor=2.0),
        "shared mean": lambda module, value: module.reducescatter(value),
    }
    for name, collective in collectives.items():
        with tf.GradientTape(persistent=True) as tape:
            ours, theirs = (collective(module, variable) for module in (hvd, horovod))
        upstream = tf.reshape(tf.range(tf.size(ours), dtype=tf.float32), tf.shape(ours)) + hvd.rank()
        found, expected = (tape.gradient(each, variable, upstream) for each in (ours, theirs))
        np.testing.assert_allclose(found, expected, rtol=1e-6, err_msg=name)


@case(ranks=RANKS)
def collectives_of_keras_variables():
    each = np.arange(4, dtype=np.float32).reshape(2, 2)
    variable = keras.Variable(each + hvd.rank())
    assert hvd.allgather(variable).shape == (2 * hvd.size(), 2)
    same(hvd.broadcast(variable, root_rank=1), each + 1)
    with tf.GradientTape() as tape:
        mean = tf.reduce_sum(hvd.allreduce(variable))
    same(tape.gradient(mean, variable.value), np.ones([2, 2]))


@case(ranks=RANKS)
def ops_are_refused_by_name():
    with raises(NotImplementedError, "hvd.Adasum needs MPI", "op=hvd.Average"):
        hvd.allreduce(1.0, op=hvd.Adasum)
    with raises(ValueError, "hvd.Average", "hvd.Adasum", "got 17"):
        hvd.allreduce(1.0, op=17)
    with raises(ValueError, "pass op only"):
        hvd.allreduce(1.0, average=True, op=hvd.Sum)


# ---- objects ----


@case(ranks=RANKS)
def objects_travel_with_their_types():
    thing = {
        "a": (1, 2.5, None, True),
        3: [b"\0\xff", "ü", float("inf")],
        (1, "k"): {4},
        "array": np.arange(6).reshape(2, 3),
    }
    got = hvd.broadcast_object(thing if hvd.rank() == 1 else object(), root_rank=1)
    assert got["a"] == (1, 2.5, None, True) and type(got["a"]) is tuple and got["a"][3] is True
    assert got[3] == [b"\0\xff", "ü", float("inf")] and got[1, "k"] == {4}
    assert got["array"].dtype == np.int64 and got["array"].shape == (2, 3)
    gathered = hvd.allgather_object(("rank", hvd.rank(), np.float16(hvd.rank())))
    assert gathered == [("rank", rank, rank) for rank in range(hvd.size())] and type(gathered[0][2]) is np.float16
    with tf.Graph().as_default():
        assert hvd.broadcast_object_fn(root_rank=0)(hvd.rank()) == 0


@case(ranks=RANKS)
def objects_that_cannot_travel_are_one_error():
    with raises(TypeError, "the part ['epoch'] of the object, a fractions.Fraction", "pickled=True"):
        hvd.broadcast_object({"epoch": fractions.Fraction(1, 3)} if hvd.rank() == 0 else 5)
    with raises(TypeError, "object of rank 1", "builtins.complex"):
        hvd.allgather_object(1j if hvd.rank() == 1 else 1.0)
    assert hvd.broadcast_object(complex(hvd.rank(), 1), pickled=True) == 1j
    assert hvd.allgather_object(complex(hvd.rank()), pickled=True) == [complex(rank) for rank in range(hvd.size())]


# ---- variables ----


@case(ranks=RANKS)
def broadcasts_fill_several_messages():
    """One larger than a message, an empty one, and many small ones of all kinds."""
    rank = hvd.rank()
    shapes = [[2**20 + 3], [0, 4], [], [3, 1], [2**19], [2**19]]
    variables = [tf.Variable(np.full(shape, rank + number, np.float32)) for number, shape in enumerate(shapes)]
    variables += [tf.Variable(np.full([3], rank == 1)), tf.Variable(tf.cast([rank, 7.0], tf.bfloat16))]
    assert hvd.broadcast_variables(variables, root_rank=1, inplace=True) is None
    for number, shape in enumerate(shapes):
        same(variables[number], np.full(shape, 1 + number))
    assert variables[-2].numpy().all() and float(variables[-1][0]) == 1.0
    values = hvd.broadcast_([keras.Variable(float(rank))], 0)
    assert float(values[0]) == 0.0


@case(ranks=RANKS)
def variables_are_broadcast_inside_a_function():
    variables = [keras.Variable(np.full([3], 1.0 + hvd.rank(), np.float32)), tf.Variable(hvd.rank() == 1)]

    @tf.function
    def step(is_first):
        if is_first:
            hvd.broadcast_variables(variables[:1], root_rank=1)
            hvd.broadcast_variables(variables[1:], root_rank=0)
        return variables[0] * 2.0, variables[1].read_value()

    for is_first in (True, False):
        number, truth = step(is_first)
        same(number, [4.0, 4.0, 4.0])
        assert not truth


@case(ranks=RANKS)
def broadcasts_are_refused_alike():
    with raises(ValueError, "Expected one of the ranks", "as root_rank, got 9"):
        hvd.broadcast_variables([], 9)
    with raises(ValueError, "broadcasts from rank 0", "from rank 1"):
        hvd.broadcast_variables([tf.Variable(1.0)], min(hvd.rank(), 1))
    with raises(ValueError, "at position 0", "float32", "not a variable"):
        hvd.broadcast_variables([tf.Variable(1.0) if hvd.rank() else tf.constant(1.0)], 0)
    with raises(ValueError, "at position 0", "string", "hvd.broadcast_object"):
        hvd.broadcast_variables([tf.Variable("text")], 0)
    assert int(hvd.allreduce(1, op=hvd.Sum)) == hvd.size()


@case(ranks=(2, 4))
def gradients_of_tensors_are_averaged_in_a_session():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.constant(float(hvd.rank()))
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x * x
        (mean,) = session.run(hvd.DistributedGradientTape(tape).gradient(y, [x]))
    assert mean == hvd.size() - 1


# ---- process sets ----


@case(ranks=(3,), quick=thorough)
def a_process_set_is_a_world_of_its_own():
    pair = hvd.add_process_set([2, 0])
    alone = hvd.add_process_set(hvd.ProcessSet([1]))
    assert pair.ranks == [0, 2] and pair.size() == 2 and pair.included() == (hvd.rank() != 1)
    if hvd.rank() == 1:
        assert hvd.allreduce(5.0, process_set=alone) == 5.0
        kinds = (ValueError, tf.errors.InvalidArgumentError)  # Horovod raises the latter
        for refused, kind in itertools.product((hvd.broadcast_object, hvd.allgather_object), kinds):
            with raises(kind, "Rank 1 is not in the process set of the ranks [0, 2]"):
                refused(1, process_set=pair)
    else:
        variable = tf.Variable(float(hvd.rank()))
        hvd.broadcast_variables([variable], root_rank=2, process_set=pair)
        assert float(variable) == 2.0
        assert float(hvd.allreduce(hvd.rank(), op=hvd.Sum, process_set=pair)) == 2.0
        assert hvd.allgather_object(hvd.rank(), process_set=pair) == [0, 2]
        assert hvd.broadcast_object(hvd.rank(), root_rank=2, process_set=pair) == 2
        same(
            hvd.reducescatter(np.arange(4.0), op=hvd.Sum, process_set=pair), [0.0, 2.0] if pair.rank() == 0 else [4, 6]
        )
        assert hvd.grouped_allgather([[hvd.rank()]], process_set=pair)[0].numpy().tolist() == [0, 2]
        with raises(ValueError, "Expected one of the ranks [0, 2] as root_rank, got 1"):
            hvd.broadcast_object(1, root_rank=1, process_set=pair)
    assert hvd.remove_process_set(pair) and hvd.remove_process_set(alone)
    assert pair.process_set_id is None and not hvd.remove_process_set(pair)
    with raises(ValueError, "is not part of Horovod", "hvd.add_process_set"):
        hvd.broadcast_object(1, process_set=pair)


@case(ranks=(2,))
def process_sets_that_cannot_be():
    for ranks in ([0, 1], [], [0, 5], [-1]):
        with raises(ValueError, "some of the ranks 0 to 1", "hvd.global_process_set is that of all"):
            hvd.add_process_set(ranks)
    kept = hvd.add_process_set([0])
    with raises(ValueError, "duplicate"):
        hvd.add_process_set([0])
    assert hvd.remove_process_set(kept)
    assert not hvd.remove_process_set(hvd.global_process_set)


@case(ranks=(3,), quick=thorough)
def process_sets_are_shared_with_the_grid():
    """The grid makes a set of each rank if a node is one rank; users may add the same sets and remove theirs."""
    node = hvd.add_process_set([0, 1])
    assert hvd.remove_process_set(node)
    hvd.init(process_sets=[[0, 1], hvd.ProcessSet([1, 2])])
    with raises(ValueError, "duplicate"):
        hvd.add_process_set([0, 1])


def stopped():
    """Shuts Horovod down on all ranks, after all of them have called this."""
    hvd.allreduce(1, op=hvd.Sum)
    hvd.shutdown()


@contextlib.contextmanager
def started_anew(**options):
    """Restarts Horovod for a case, and afterwards once more with the settings that other cases need."""
    dynamic = os.environ.pop(DYNAMIC_VARIABLE, "")
    stopped()
    try:
        hvd.init(**options)
        yield
    finally:
        stopped()
        os.environ[DYNAMIC_VARIABLE] = dynamic
        hvd.init()


@case(ranks=(3,), quick=thorough)
def process_sets_known_at_the_start():
    pair = hvd.ProcessSet([0, 2])
    with started_anew(comm=[0, 1, 2], process_sets=[pair, [1]], local_size=1):
        assert not is_dynamic(), "small messages are not slower"
        if pair.included():
            assert float(hvd.allreduce(1.0, op=hvd.Sum, process_set=pair)) == 2.0
        with raises(ValueError, "can be added after the start only", "process_sets='dynamic'"):
            hvd.add_process_set([1, 2])


@case(ranks=(2,))
def starts_that_cannot_be():
    for refused, parts in (
        ({"comm": [0]}, ["comm to be None or the list of all ranks", "got [0] of 2 ranks", "process_sets="]),
        ({"comm": object()}, ["comm to be None or the list of all ranks", "got object"]),
        ({"process_sets": "static"}, ["'dynamic'", "got 'static'"]),
        ({"process_sets": [[0], [0]]}, ["pass each only once"]),
        ({"process_sets": [[hvd.rank()]]}, ["disagree on process_sets", "rank 0: [[0]], rank 1: [[1]]"]),
    ):
        with raises(ValueError, *parts):
            hvd.init(**refused)
    assert int(hvd.allreduce(1, op=hvd.Sum)) == 2


# ---- join, and Horovod's queries ----


# In its own launch, as join is refused after gradients were exchanged, as in other cases.
@case(ranks=(2,), launch=Launch(), quick=thorough)
def a_rank_that_has_joined_adds_zeros():
    hvd.init()
    last = hvd.size() - 1
    for batch in range(1 + hvd.rank()):
        total = float(hvd.allreduce(1.0, op=hvd.Sum, name=f"batch.{batch}"))
        assert total == hvd.size() - batch, total
    assert int(hvd.join()) == last
    assert hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))


@case(ranks=RANKS)
def join_is_refused_where_gradients_are_gathered():
    variable = tf.Variable(tf.ones([4]))
    exchange = hvd.GradientExchange(hvd.recipes.topk(0.5))
    exchange([tf.ones([4])], [variable])
    with raises(RuntimeError, "the same number of batches", "op=hvd.Min"):
        hvd.join()


@case(ranks=RANKS)
def questions_are_answered():
    assert hvd.gloo_enabled() and hvd.gloo_built() and hvd.is_homogeneous()
    assert not hvd.mpi_enabled() and not hvd.cuda_built() and not hvd.nccl_built()
    assert int(hvd.rank_op()) == hvd.rank() and int(hvd.size_op()) == hvd.size()
    assert int(hvd.local_rank_op()) == hvd.local_rank() and int(hvd.local_size_op()) == hvd.local_size()
    assert int(hvd.process_set_included_op()) == 1
    assert hvd.check_num_rank_power_of_2(4) and not hvd.check_num_rank_power_of_2(3)
