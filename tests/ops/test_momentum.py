"""Momentum on the sender's side and the clearing of sent elements: equal to NumPy bit for bit."""

import ctypes
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse.compression.momentum import advanced, cleared
from hvd_sparse.spec import MomentumRule
from tests.ops import native, sanitizers
from tests.ops.test_sparse import DTYPES, floats, names, reference_sum_parts
from tests.simulation import same_bits

OPS = Path(__file__).resolve().parents[2] / "ops"
SIZES = [0, 1, 2, 7, 15, 16, 17, 63, 65, 10_007]
LARGE = 1_200_007  # large enough for several tasks, and for stores that bypass the caches
DECAY, GAIN = 0.9, 0.7
EACH_NESTEROV = pytest.mark.parametrize("nesterov", [False, True], ids=["heavy ball", "Nesterov"])
HUGE = 3e38


def reference(parts, velocity, nesterov, decay=DECAY, gain=GAIN):
    """The new velocity and the update, each operation rounded to float32."""
    with np.errstate(all="ignore"):
        gained = np.float32(gain) * reference_sum_parts(parts)[0]
        after = np.float32(decay) * velocity + gained
        return after, np.float32(decay) * after + gained if nesterov else after


def problem(count, size, dtype):
    random = np.random.default_rng([count, size])
    return floats(random, (count, size), dtype), floats(random, size, np.float32)


def advance(parts, velocity, nesterov, parallel=None, in_place=False):
    """hvds_momentum: the new velocity, the update and the culprit."""
    count, size = parts.shape
    after = velocity if in_place else native.aligned(np.full(size, 7, np.float32))
    moves = native.aligned(np.full(size, 7, np.float32)) if nesterov else None
    culprit = native.library().hvds_momentum(
        native.pointer(parts),
        native.code(parts),
        count,
        ctypes.c_int64(size),
        native.pointer(velocity),
        ctypes.c_float(DECAY),
        ctypes.c_float(GAIN),
        native.pointer(after),
        native.pointer(moves) if nesterov else None,
        None if parallel is None else ctypes.byref(parallel),
    )
    return after, moves if nesterov else after, culprit


def clear(vector, indices, to, parallel=None):
    """hvds_clear: the position of the first index that is out of range, or -1."""
    function = native.library().hvds_clear
    function.restype = ctypes.c_int64
    return function(
        native.pointer(vector),
        ctypes.c_int64(len(vector)),
        native.pointer(indices),
        ctypes.c_int64(len(indices)),
        native.pointer(to),
        None if parallel is None else ctypes.byref(parallel),
    )


# ---- hvds_momentum ----


@EACH_NESTEROV
@pytest.mark.parametrize("dtype", DTYPES, **names)
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_it_is_the_arithmetic_of_numpy(count, dtype, nesterov):
    for size in SIZES:
        parts, velocity = problem(count, size, dtype)
        after, moves, culprit = advanced(parts, velocity, MomentumRule(DECAY, GAIN, nesterov))
        expected = reference(parts, velocity, nesterov)
        same_bits(after.numpy(), expected[0])
        same_bits(moves.numpy(), expected[1])
        assert culprit.numpy() == 0


@EACH_NESTEROV
@pytest.mark.parametrize("isa", native.isas())
@pytest.mark.parametrize("dtype", DTYPES, **names)
def test_any_threads_and_instructions_give_the_same_bits(dtype, isa, nesterov):
    parts, velocity = problem(3, LARGE, dtype)
    expected = reference(parts, velocity, nesterov)
    with native.isa(native.ISAS[isa]):
        for threads in (1, 2, 7, 64):
            parallel = native.Parallel(threads)
            after, moves, culprit = advance(parts, velocity, nesterov, parallel)
            same_bits(after, expected[0])
            same_bits(moves, expected[1])
            assert culprit == 0
            assert parallel.tasks_run == (0 if threads == 1 else min(threads, 9))


@EACH_NESTEROV
@pytest.mark.parametrize("isa", native.isas())
def test_vectors_may_lie_anywhere_and_take_the_place_of_the_velocity(isa, nesterov):
    parts, velocity = problem(2, LARGE, np.float32)
    expected = reference(parts, velocity, nesterov)
    skewed = native.aligned(np.concatenate([[0], velocity]).astype(np.float32))[1:]
    with native.isa(native.ISAS[isa]):
        after, moves, _ = advance(parts, skewed, nesterov, native.Parallel(3), in_place=True)
    same_bits(after, expected[0])
    same_bits(moves, expected[1])
    assert after is skewed


FAULTS = {
    "a NaN": ([(1, 5, np.nan)], 2),
    "an infinity in the last element": ([(2, -1, -np.inf)], 3),
    "of two the lower part": ([(2, 0, np.nan), (0, 99, np.inf)], 1),
    "infinities that cancel": ([(1, 8, np.inf), (2, 8, -np.inf)], 2),
    "the sum alone": ([(0, 5, HUGE), (1, 5, HUGE)], 4),
    "the velocity alone": ([(None, 5, HUGE), (0, 5, HUGE)], 4),
    "a sum that comes back": ([(0, 5, HUGE), (1, 5, -HUGE)], 0),
}


@EACH_NESTEROV
@pytest.mark.parametrize("isa", native.isas())
@pytest.mark.parametrize("case", FAULTS)
def test_who_is_to_blame_is_told(case, isa, nesterov):
    places, culprit = FAULTS[case]
    parts, velocity = np.ones((3, 107), np.float32), np.ones(107, np.float32)
    for part, index, value in places:
        (velocity if part is None else parts[part])[index] = value
    with native.isa(native.ISAS[isa]):
        assert advance(parts, velocity, nesterov)[2] == culprit
        found = advanced(parts, velocity, MomentumRule(DECAY, GAIN, nesterov))[2]
    assert found.numpy() == culprit


@pytest.mark.parametrize("dtype", DTYPES, **names)
def test_parts_that_are_to_blame_are_those_of_a_sum(dtype):
    parts = np.ones((3, LARGE), dtype)
    parts[1, -1] = np.nan
    assert advance(parts, np.zeros(LARGE, np.float32), False, native.Parallel(4))[2] == reference_sum_parts(parts)[1]


def test_a_gain_of_nothing_hides_no_fault():
    parts = np.array([[1, np.inf]], np.float32)
    assert advanced(parts, np.zeros(2, np.float32), MomentumRule(0.0, 0.0))[2].numpy() == 1


def test_denormal_numbers_are_kept_on_the_threads_of_tensorflow():
    parts, velocity = np.full((2, LARGE), 1e-41, np.float32), np.full(LARGE, 1e-42, np.float32)
    after, _, _ = tf.function(advanced)(tf.constant(parts), tf.constant(velocity), MomentumRule(DECAY, GAIN))
    same_bits(after.numpy(), reference(parts, velocity, False)[0])
    assert after.numpy().all()


def test_a_variable_is_not_written():
    variable = tf.Variable(tf.ones([LARGE]))
    advance_by_graph = tf.function(lambda parts: advanced(parts, variable, MomentumRule(DECAY, GAIN))[0])
    after = cleared(advance_by_graph(tf.ones([1, LARGE])), tf.range(9))
    np.testing.assert_array_equal(variable, np.ones(LARGE))
    np.testing.assert_array_equal(after[:9], np.zeros(9))
    cleared(variable, tf.range(9))
    np.testing.assert_array_equal(variable, np.ones(LARGE))


# ---- hvds_clear ----


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("size, count", [(0, 0), (1, 0), (1, 1), (LARGE, 50_000), (LARGE, LARGE)])
def test_what_is_at_the_indices_is_cleared(size, count, in_place, threads):
    random = np.random.default_rng(size)
    vector = floats(random, size, np.float32)
    indices = random.permutation(size)[:count].astype(np.int32)
    expected = vector.copy()
    expected[indices] = 0
    given = vector.copy()
    to = given if in_place else np.full(size, 7, np.float32)
    assert clear(given, indices, to, native.Parallel(threads)) == -1
    same_bits(to, expected)
    assert in_place or given.tobytes() == vector.tobytes()


@pytest.mark.parametrize("bad", [-1, 100, -(2**31), 2**31 - 1])
def test_nothing_is_cleared_where_an_index_is_outside(bad):
    vector = np.ones(100, np.float32)
    assert clear(vector, np.array([5, bad, 6, bad], np.int32), vector) == 1
    assert vector.all()


def place_of(tensor):
    """The address of a tensor's elements when the graph runs."""
    return tf.numpy_function(lambda array: np.int64(array.__array_interface__["data"][0]), [tensor], tf.int64)


@EACH_NESTEROV
@pytest.mark.parametrize("held", [False, True])
def test_a_velocity_that_nobody_else_holds_is_cleared_in_place(held, nesterov):
    variable = tf.Variable(tf.ones([LARGE]))

    @tf.function
    def step(parts):
        after, moves, culprit = advanced(parts, variable, MomentumRule(DECAY, GAIN, nesterov))
        with tf.control_dependencies([culprit, tf.reduce_sum(moves)]):
            before = place_of(after)
        with tf.control_dependencies([before]):
            result = cleared(after, tf.range(9))
        behind = place_of(result)
        variable.assign(result)
        return before, behind, after if held else culprit

    for _ in range(4):
        before, behind, _ = step(tf.ones([2, LARGE]))
        assert (before.numpy() == behind.numpy()) != held
    assert not variable[:9].numpy().any() and variable[9:].numpy().all()


# ---- invalid arguments ----

ROW, ONE = np.ones((1, 1), np.float32), np.ones(1, np.float32)
RULE = MomentumRule(DECAY)
BAD_CALLS = {
    "parts of one dimension": (lambda: advanced(ONE, ONE, RULE), "parts [n, d] with n of at least 1, got shape [1]"),
    "no part": (lambda: advanced(ROW[:0], ONE, RULE), "parts [n, d] with n of at least 1, got shape [0,1]"),
    "a velocity of another length": (
        lambda: advanced(np.ones((3, 2), np.float32), ONE, RULE),
        "Expected a velocity [2], as parts are [3, 2], got shape [1]",
    ),
    "a velocity of two dimensions": (lambda: advanced(ROW, ROW, RULE), "Expected a velocity [1], as parts are [1, 1]"),
    "a decay that is no scalar": (
        lambda: advanced(ROW, ONE, MomentumRule(ONE)),
        "Expected decay and gain to be scalars, got shapes [1] and []",
    ),
    "a gain that is no scalar": (
        lambda: advanced(ROW, ONE, MomentumRule(DECAY, ONE)),
        "Expected decay and gain to be scalars, got shapes [] and [1]",
    ),
    "a matrix to clear": (lambda: cleared(ROW, [0]), "Expected a vector [d] and indices [k], got shapes [1,1] and [1]"),
    "a lone index": (lambda: cleared(ONE, 0), "Expected a vector [d] and indices [k], got shapes [1] and []"),
    "an index too high": (lambda: cleared(ONE, [0, 1]), "Expected indices in [0, 1), got 1 at position 1 of 2"),
    "a negative index": (lambda: cleared(ONE, [-1]), "Expected indices in [0, 1), got -1 at position 0 of 1"),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_arguments_are_refused_in_words(case):
    call, text = BAD_CALLS[case]
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(text)):
        call()


def test_shapes_are_known_when_a_graph_is_made():
    shapes = []

    @tf.function
    def graph(parts, velocity):
        shapes.extend(each.shape.as_list() for each in advanced(parts, velocity, RULE))
        shapes.append(cleared(velocity, tf.range(2)).shape.as_list())

    graph.get_concrete_function(tf.TensorSpec([2, None], tf.float16), tf.TensorSpec([5], tf.float32))
    assert shapes == [[5], [5], [], [5]]


@pytest.mark.parametrize(
    "make",
    [
        lambda: advanced(tf.zeros([3]), tf.zeros([3]), RULE),
        lambda: advanced(tf.zeros([2, 3]), tf.zeros([2]), RULE),
        lambda: advanced(tf.zeros([2, 3]), tf.zeros([3]), MomentumRule(tf.zeros([1]))),
        lambda: cleared(tf.zeros([3, 1]), tf.range(1)),
        lambda: cleared(tf.zeros([3]), tf.zeros([1, 1], tf.int32)),
    ],
)
def test_shapes_that_cannot_be_are_refused_when_a_graph_is_made(make):
    with pytest.raises(ValueError, match="[Ss]hape|[Dd]imension"):
        tf.function(make).get_concrete_function()


def test_nothing_has_a_gradient():
    parts = tf.Variable([[1.0, 2.0]])
    with tf.GradientTape() as tape:
        after = cleared(advanced(parts, tf.zeros([2]), RULE)[0], [0])
    assert tape.gradient(after, parts) is None


# ---- memory ----


@pytest.mark.thorough
def test_the_kernels_keep_within_their_memory(tmp_path):
    """The same kernels with the sanitizers for addresses and undefined behaviour, without Python or TensorFlow."""
    sanitizers.check(tmp_path, Path(__file__).with_name("sanitize_momentum.cc"), OPS.glob("momentum/momentum_cpu*.cc"))
