"""Values at given places of variables: the operations, and the loops under the sanitizers."""

import mmap
import re
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse import ops
from hvd_sparse.servers.applying import ServedPieces
from hvd_sparse.servers.pages import use_large_pages
from hvd_sparse.spec import Segment, Spec
from hvd_sparse.transport.communicator import Grid
from tests.ops import sanitizers
from tests.simulation import same_bits

OPS = Path(__file__).resolve().parents[2] / "ops"
SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=6)
SEEDS = st.integers(0, 2**32 - 1)
REFUSED = tf.errors.InvalidArgumentError
LARGE_PAGE = 2 << 20


def in_large_pages(memory):
    """The number of bytes of an array's mappings that lie in large pages, from /proc/self/smaps."""
    begin, end, total, inside = memory.ctypes.data, memory.ctypes.data + memory.nbytes, 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        addresses = re.match("([0-9a-f]+)-([0-9a-f]+) ", line)
        if addresses:
            first, last = (int(each, 16) for each in addresses.groups())
            inside = first < end and begin < last
        elif inside and line.startswith("AnonHugePages:"):
            total += 1024 * int(line.split()[1])
    return total


def gives_large_pages():
    memory = mmap.mmap(-1, 4 * LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    memory.write(bytes(len(memory)))
    return in_large_pages(np.frombuffer(memory, np.uint8)) > 0


def chosen(random, size, count=None):
    """Places in any order, and values."""
    count = random.integers(0, size + 1) if count is None else count
    places = random.permutation(size)[:count].astype(np.int32)
    return random.standard_normal(count).astype(np.float32), places


def pieces_of(random, sizes):
    return [tf.Variable(random.standard_normal(size).astype(np.float32)) for size in sizes]


def put(variables, values, places, everywhere=False):
    handles = [variable.handle for variable in variables]
    ops.library().hvd_servers_put(variables=handles, values=values, places=places, everywhere=everywhere)


def add(variable, values, places):
    ops.library().hvd_servers_add(sum=variable.handle, values=values, places=places)


def send(negated, parameters, places):
    return ops.library().hvd_servers_send(negated=negated.handle, parameters=parameters, places=places)


def whole(variables):
    return np.concatenate([variable.numpy().reshape(-1) for variable in variables])


@given(sizes=SIZES, seed=SEEDS)
def test_values_are_put_into_variables_that_lie_end_to_end(sizes, seed):
    random = np.random.default_rng(seed)
    variables = pieces_of(random, sizes)
    expected = whole(variables)
    values, places = chosen(random, sum(sizes))
    expected[places] = values
    put(variables, values, places)
    same_bits(whole(variables), expected)
    everything = random.standard_normal(sum(sizes)).astype(np.float32)
    put(variables, everything, np.zeros(0, np.int32), everywhere=True)
    same_bits(whole(variables), everything)


@given(size=st.integers(0, 300), seed=SEEDS)
def test_values_are_added_and_taken(size, seed):
    random = np.random.default_rng(seed)
    (total, negated), parameters = pieces_of(random, [size, size]), random.standard_normal(size).astype(np.float32)
    expected, copy = total.numpy(), negated.numpy()
    values, places = chosen(random, size)
    expected[places] += values
    copy[places] = -parameters[places]
    add(total, values, places)
    same_bits(send(negated, parameters, places).numpy(), parameters[places])
    same_bits(total.numpy(), expected)
    same_bits(negated.numpy(), copy)


def test_denormal_numbers_are_kept():
    total = tf.Variable([1e-41, 1.0])
    add(total, [2e-41, 1.0], [0, 1])
    same_bits(total.numpy(), np.float32([1e-41, 1.0]) + np.float32([2e-41, 1.0]))


def test_what_somebody_holds_is_not_changed_and_what_nobody_holds_is_written_in_place():
    variables = [tf.Variable(tf.range(8.0)), tf.Variable(tf.ones([2, 4]))]
    before = [variable.read_value() for variable in variables]
    put(variables, [5.0, 6.0], [3, 9])
    same_bits(before[0].numpy(), np.arange(8, dtype=np.float32))
    same_bits(before[1].numpy(), np.ones([2, 4], np.float32))
    assert variables[0].numpy()[3] == 5.0 and variables[1].numpy()[0, 1] == 6.0
    del before
    places = [np.asarray(memoryview(variable.read_value())).ctypes.data for variable in variables]
    put(variables, [7.0], [15])
    assert [np.asarray(memoryview(variable.read_value())).ctypes.data for variable in variables] == places


def test_a_graph_reads_what_was_put_before():
    variable = tf.Variable(tf.zeros([4]))

    @tf.function
    def step():
        before = variable * 1.0
        put([variable], [3.0], [2])
        return before, variable.read_value()

    before, after = step()
    assert before.numpy().sum() == 0 and after.numpy().tolist() == [0, 0, 3, 0]


@pytest.mark.parametrize("places", [[-1], [8], [0, 2**31 - 1], [-(2**31), 3]])
def test_places_outside_are_refused_and_nothing_is_written(places):
    variables = [tf.Variable(tf.zeros([5])), tf.Variable(tf.zeros([3]))]
    values = tf.ones([len(places)])
    with pytest.raises(REFUSED, match=r"places in \[0, 8\)"):
        put(variables, values, places)
    with pytest.raises(REFUSED, match="places in"):
        add(variables[0], values, places if max(places) != 8 else [5])
    with pytest.raises(REFUSED, match="places in"):
        send(variables[1], tf.zeros([3]), places)
    assert not whole(variables).any()


def test_shapes_and_types_that_do_not_fit_are_refused():
    variable = tf.Variable(tf.zeros([4]))
    nothing = np.zeros(0, np.int32)
    with pytest.raises(REFUSED, match="a value for each place"):
        put([variable], [1.0, 2.0], [1])
    with pytest.raises(REFUSED, match=r"values \[4\] and no places"):
        put([variable], tf.zeros([3]), nothing, everywhere=True)
    with pytest.raises(REFUSED, match="variables of float"):
        put([tf.Variable([1, 2])], [1.0], [0])
    with pytest.raises(REFUSED, match=r"parameters \[4\]"):
        send(variable, tf.zeros([5]), nothing)
    with pytest.raises(REFUSED, match="updated once"):
        put([variable, variable], [1.0], [0])
    with pytest.raises((REFUSED, ValueError), match="rank 1|as a vector|a value for each"):
        put([variable], [[1.0]], [[0]])


def test_large_pages_change_no_value_and_no_value_that_somebody_holds():
    variables = [tf.Variable(tf.range(3e6)), tf.Variable(tf.ones([2, 4])), tf.Variable(tf.zeros([0]))]
    held = variables[0].read_value()
    use_large_pages(variables)
    same_bits(variables[0].numpy(), np.arange(3e6, dtype=np.float32))
    put(variables, [7.0], [1_000_000])
    same_bits(held.numpy(), np.arange(3e6, dtype=np.float32))
    assert variables[0].numpy()[1_000_000] == 7.0
    with pytest.raises(REFUSED, match="variables of float"):
        use_large_pages([tf.Variable([1, 2])])


@pytest.mark.thorough
@pytest.mark.skipif(not gives_large_pages(), reason="the kernel gives no large pages")
def test_a_shards_vectors_lie_in_large_pages():
    """All that an update reads and writes, whoever allocated it; what is not on a boundary of 2 MB cannot be."""
    size = 4_000_000
    random = np.random.default_rng(0)
    variables = [keras.Variable(random.standard_normal(size).astype(np.float32))]
    spec = Spec(size, Grid.lone(), segments=(Segment("weights", (size,)),))
    shard = ServedPieces(keras.optimizers.Adam(), variables, spec)
    vectors = [*shard._pieces, *(each for held in shard._slots().values() for each in held)]
    assert len(vectors) == 3
    for vector in vectors:
        memory = np.asarray(memoryview(vector.value.read_value()))
        assert in_large_pages(memory) >= memory.nbytes - 2 * LARGE_PAGE


@pytest.mark.thorough
def test_the_loops_keep_within_their_memory(tmp_path):
    """With the sanitizers for addresses and undefined behaviour, without Python or TensorFlow."""
    sanitizers.check(tmp_path, Path(__file__).with_name("sanitize_places.cc"), [OPS / "servers" / "places_cpu.cc"])
