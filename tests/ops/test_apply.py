"""The operation and kernels of optimizer steps; tests/servers/test_fused.py compares them with Keras's optimizers."""

import ctypes
import re
import types
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse import ops
from tests.ops import native, sanitizers
from tests.simulation import same_bits

OPS = Path(__file__).resolve().parents[2] / "ops"
NAMES = ["SGD", "Momentum", "Nesterov", "Adam", "Adagrad", "RMSprop"]
NAMES += ["RMSpropMomentum", "RMSpropCentered", "RMSpropCenteredMomentum"]
EACH_NAME = pytest.mark.parametrize("name", NAMES)
NUMBERS = (0.01, 0.6, 0.3, 0.2, 0.9)
LARGE = 1_200_007


class Step(ctypes.Structure):
    """hvds_step."""

    _fields_ = [
        ("optimizer", ctypes.c_int),
        ("numbers", ctypes.c_float * 5),
        ("decays", ctypes.c_int32),
        ("decay", ctypes.c_float),
        ("decay_rate", ctypes.c_float),
    ]


def slot_count(name):
    return native.library().hvds_slot_count(NAMES.index(name))


def problem(name, size):
    """Weights and slots, and a gradient; slots are large enough for all square roots."""
    random = np.random.default_rng(size)
    values = [random.standard_normal(size).astype(np.float32)]
    values += [(9 + random.random(size)).astype(np.float32) / (1 + 9 * slot) for slot in range(slot_count(name))]
    return values, random.standard_normal(size).astype(np.float32)


def applied(name, values, gradient, parallel=None):
    """Runs hvds_apply on copies."""
    values = [native.aligned(value) for value in values]
    pointers = (ctypes.c_void_p * 3)(*(native.pointer(value) for value in values[1:]))
    step = Step(NAMES.index(name), NUMBERS, 1, 0.02, 0.01)
    threads = None if parallel is None else ctypes.byref(parallel)
    native.library().hvds_apply(
        ctypes.byref(step),
        native.pointer(values[0]),
        pointers,
        native.pointer(gradient),
        ctypes.c_int64(len(gradient)),
        threads,
    )
    return values


def applied_at(name, values, gradient, places, parallel=None):
    """Runs hvds_apply_places on copies; the gradient is that of all elements."""
    values = [native.aligned(value) for value in values]
    pointers = (ctypes.c_void_p * 3)(*(native.pointer(value) for value in values[1:]))
    step, own = Step(NAMES.index(name), NUMBERS, 1, 0.02, 0.01), gradient[places]
    threads = None if parallel is None else ctypes.byref(parallel)
    native.library().hvds_apply_places(
        ctypes.byref(step),
        native.pointer(values[0]),
        pointers,
        native.pointer(own),
        native.pointer(places),
        ctypes.c_int64(len(places)),
        threads,
    )
    return values


def apply_at(name, values, gradient, places):
    """Runs the operation on some elements, in place."""
    ops.library().hvd_servers_apply_places(
        weights=values[0].handle,
        slots=[value.handle for value in values[1:]],
        gradient=gradient,
        places=places,
        numbers=list(NUMBERS[: native.library().hvds_number_count(NAMES.index(name))]),
        decay=0.02,
        decay_rate=0.01,
        optimizer=name,
        decays=True,
    )


def apply(name, values, gradient, numbers=None, decay=0.02, decay_rate=0.01, decays=True):
    """Runs the operation in place."""
    if numbers is None:
        numbers = NUMBERS[: native.library().hvds_number_count(NAMES.index(name))]
    ops.library().hvd_servers_apply(
        weights=values[0].handle,
        slots=[value.handle for value in values[1:]],
        gradient=gradient,
        numbers=list(numbers),
        decay=decay,
        decay_rate=decay_rate,
        optimizer=name,
        decays=decays,
    )


def place_of(variable):
    """The address of a variable's elements; no reference to them is kept."""
    return np.asarray(memoryview(variable.read_value())).ctypes.data


# ---- the same bits ----


def test_it_runs_in_a_graph():
    values, gradient = problem("Adam", 30)
    eager, graph = ([tf.Variable(value) for value in values] for _ in range(2))
    apply("Adam", eager, gradient)
    tf.function(lambda given: apply("Adam", graph, given))(gradient)
    for one, other in zip(eager, graph, strict=True):
        same_bits(one.numpy(), other.numpy())


@EACH_NAME
def test_any_threads_and_instructions_give_the_same_bits(name):
    values, gradient = problem(name, LARGE)
    expected = [tf.Variable(value) for value in values]
    apply(name, expected, gradient)
    for isa in native.isas():
        with native.isa(native.ISAS[isa]):
            for threads in (1, 2, 7, 64):
                parallel = native.Parallel(threads)
                for one, other in zip(applied(name, values, gradient, parallel), expected, strict=True):
                    same_bits(one, other.numpy())
                assert parallel.tasks_run == (0 if threads == 1 else min(threads, 9))


@EACH_NAME
@pytest.mark.parametrize("size", [0, 1, 3, 15, 16, 17, 63, 10_007])
def test_vectors_of_any_length_may_lie_anywhere(name, size):
    values, gradient = problem(name, LARGE)
    expected = [value[:size] for value in applied(name, values, gradient)]
    skewed = native.aligned(np.concatenate([[0], gradient]).astype(np.float32))[1 : size + 1]
    for isa in native.isas():
        with native.isa(native.ISAS[isa]):
            for one, other in zip(applied(name, [value[:size] for value in values], skewed), expected, strict=True):
                same_bits(one, other)


@EACH_NAME
@pytest.mark.parametrize("count", [0, 1, 129, 161, 60_001])
def test_a_step_at_places_is_the_same_there_and_none_elsewhere(name, count):
    values, gradient = problem(name, 2 * count + 1)
    places = np.random.default_rng(count).permutation(2 * count + 1)[:count].astype(np.int32)
    expected = [value.copy() for value in values]
    for one, all_of_it in zip(expected, applied(name, values, gradient), strict=True):
        one[places] = all_of_it[places]
    held = [tf.Variable(value) for value in values]
    apply_at(name, held, gradient[places], places)
    for one, other in zip(held, expected, strict=True):
        same_bits(one.numpy(), other)
    for isa in native.isas():
        with native.isa(native.ISAS[isa]):
            parallel = native.Parallel(7)
            for one, other in zip(applied_at(name, values, gradient, np.sort(places), parallel), expected, strict=True):
                same_bits(one, other)
            assert parallel.tasks_run == (3 if count > 3 * 16384 else 0)


def test_denormal_numbers_are_zero_on_any_thread():
    tiny = np.full(LARGE, 1e-41, np.float32)
    for parallel in (None, native.Parallel(3)):
        for value in applied("Momentum", [tiny, tiny], tiny, parallel):
            assert not value.any()


# ---- variables ----


@pytest.mark.parametrize("decays", [False, True])
def test_weights_may_decay_before(decays):
    weights = tf.Variable([2.0, -3.0])
    apply("SGD", [weights], [1.0, 1.0], [0.5], 0.5, 0.25, decays)
    expected = [2.0 - 0.25 - 0.5, -3.0 + 0.375 - 0.5] if decays else [1.5, -3.5]
    np.testing.assert_array_equal(weights, expected)


def test_what_somebody_holds_is_not_changed():
    values, gradient = problem("Adam", LARGE)
    expected = applied("Adam", values, gradient)
    held = [tf.Variable(value) for value in values]
    before = [value.read_value() for value in held]
    apply("Adam", held, gradient)
    for value, old, new, tensor in zip(held, values, expected, before, strict=True):
        same_bits(tensor.numpy(), old)
        same_bits(value.numpy(), new)


def test_a_variable_may_be_its_own_gradient():
    weights = tf.Variable([1.0, 2.0])
    apply("SGD", [weights], weights.read_value(), [0.5], decays=False)
    np.testing.assert_array_equal(weights, [0.5, 1.0])


def test_what_nobody_holds_is_written_in_place():
    values, gradient = problem("Adam", LARGE)
    held = [tf.Variable(value) for value in values]
    apply("Adam", held, gradient)  # afterwards no operation that made the variables holds their initial values
    before = [place_of(value) for value in held]
    apply("Adam", held, gradient)
    assert [place_of(value) for value in held] == before


# ---- invalid arguments ----

ONE = [1.0]


def variable(value=ONE, dtype=tf.float32):
    return tf.Variable(value, dtype=dtype)


def twice():
    both = variable()
    return [both, both]


BAD_CALLS = {
    "a gradient of another shape": (
        lambda: apply("SGD", [variable()], [1.0, 2.0]),
        "Expected weights of float and of the gradient's shape [2], got float [1]",
    ),
    "a slot of another shape": (
        lambda: apply("Momentum", [variable(), variable([1.0, 2.0])], ONE),
        "Expected each slot of float and of the gradient's shape [1], got float [2]",
    ),
    "weights of another dtype": (
        lambda: apply("SGD", [variable(dtype=tf.float64)], ONE),
        "Expected weights of float and of the gradient's shape [1], got double [1]",
    ),
    "a slot too few": (lambda: apply("Adam", [variable()], ONE), "2 slots and 4 numbers for Adam, got 0 and 4"),
    "a number too many": (
        lambda: apply("SGD", [variable()], ONE, [1.0, 2.0]),
        "0 slots and 1 numbers for SGD, got 0 and 2",
    ),
    "a number that is none": (
        lambda: apply("SGD", [variable()], ONE, [ONE]),
        "Expected each of numbers as one number, got shape [1]",
    ),
    "a decay that is no number": (
        lambda: apply("SGD", [variable()], ONE, decay=ONE),
        "Expected decay as one number, got shape [1]",
    ),
    "a rate of decay that is no number": (
        lambda: apply("SGD", [variable()], ONE, decay_rate=ONE),
        "Expected decay_rate as one number, got shape [1]",
    ),
    "places that are outside": (
        lambda: apply_at("SGD", [variable()], ONE, [1]),
        "Expected places in [0, 1), got one that is not.",
    ),
    "places that are below": (lambda: apply_at("SGD", [variable()], ONE, [-1]), "Expected places in [0, 1)"),
    "a value too many": (
        lambda: apply_at("SGD", [variable()], [1.0, 2.0], [0]),
        "Expected a value for each place, got values of shape [2] and places of [1]",
    ),
    "weights that are not flat": (
        lambda: apply_at("SGD", [variable([ONE])], ONE, [0]),
        "Expected weights of float and of the flat weights' shape [1], got float [1,1]",
    ),
    "a slot that is smaller": (
        lambda: apply_at("Momentum", [variable([1.0, 2.0]), variable()], ONE, [1]),
        "Expected each slot of float and of the flat weights' shape [2], got float [1]",
    ),
    "a variable twice": (
        lambda: apply("Momentum", twice(), ONE),
        "Expected each variable to be updated once, got 1 different ones among 2 weights and slots",
    ),
    "another optimizer": (lambda: apply("Lion", [variable()], ONE, [1.0]), '"Lion" is not in the list of allowed'),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_arguments_are_refused_in_words(case):
    call, text = BAD_CALLS[case]
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(text)):
        call()


def test_a_refusal_changes_nothing():
    weights, slot = variable(), variable([1.0, 2.0])
    with pytest.raises(tf.errors.InvalidArgumentError):
        apply("Momentum", [weights, slot], ONE)
    np.testing.assert_array_equal(weights, ONE)


def test_weights_without_a_value_are_refused():
    handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[1], shared_name="without a value")
    tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(ONE))
    tf.raw_ops.DestroyResourceOp(resource=handle)
    with pytest.raises(tf.errors.NotFoundError):
        apply("SGD", [types.SimpleNamespace(handle=handle)], ONE)


@pytest.mark.parametrize("name", ["numbers", "decay", "decay_rate"])
def test_numbers_that_cannot_be_are_refused_when_a_graph_is_made(name):
    weights = variable()
    given = {name: [ONE] if name == "numbers" else ONE}
    with pytest.raises(ValueError, match="[Ss]hape"):
        tf.function(lambda: apply("SGD", [weights], ONE, **given)).get_concrete_function()


# ---- memory ----


@pytest.mark.thorough
def test_the_kernels_keep_within_their_memory(tmp_path):
    """The same kernels with the sanitizers for addresses and undefined behaviour, without Python or TensorFlow."""
    sanitizers.check(tmp_path, Path(__file__).with_name("sanitize_apply.cc"), OPS.glob("servers/apply_cpu*.cc"))
