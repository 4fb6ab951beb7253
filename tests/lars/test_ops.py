"""The operations of lars/ops.py: equal to NumPy bit for bit."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from lars import ops
from tests.lars import passes
from tests.simulation import same_bits

SHAPES = [(3, 3, 64, 70), (70,), (), (0, 5), (257, 300), (65536,), (65537,), (31,)]
RULE = passes.LambRule(beta_1=0.9, beta_2=0.999, epsilon=1e-6, step=3)


def lists(seed, count, dtypes=("float32",), shapes=SHAPES):
    """`count` lists of arrays of the same shapes."""
    random = np.random.default_rng(seed)
    chosen = [passes.DTYPES[dtype] for dtype in dtypes]
    return [passes.tensors(random, shapes, chosen) for _ in range(count)]


def variables(arrays):
    return [tf.Variable(array) for array in arrays]


def squares(arrays):
    """A list of second moments, none of them negative."""
    return [np.abs(array) for array in arrays]


def numbers(seed):
    """A ratio and a decay for each of SHAPES."""
    random, count = np.random.default_rng(seed), len(SHAPES)
    return random.uniform(0.01, 2, count), random.choice([0, 1e-4, 0.01], count)


def blocks(shapes=SHAPES):
    return sum(ops.block_counts([int(np.prod(shape)) for shape in shapes]))


def in_graph(function):
    """A function's tensor, computed by a tf.function; if it returns an operation, such as an update, that is run."""

    @tf.function
    def traced():
        result = function()
        return result if tf.is_tensor(result) else None

    return traced()


@pytest.fixture(params=["eager", "graph"])
def call(request):
    return (lambda function: function()) if request.param == "eager" else in_graph


ALONE = [pytest.param((name,), marks=pytest.mark.thorough) for name in ("float64", "float16", "bfloat16")]
EACH_DTYPE = pytest.mark.parametrize("dtypes", [("float32",), tuple(passes.DTYPES), *ALONE], ids="-".join)


def test_blocks_are_those_of_the_native_code():
    assert ops.BLOCK == passes.BLOCK
    assert ops.block_counts([0, 1, 65535, 65536, 65537, 10 * 65536]) == [0, 1, 1, 1, 2, 10]
    with pytest.raises(ValueError, match="at least 0, got -1"):
        ops.block_counts([3, -1])


# ---- LARS ----


@EACH_DTYPE
def test_lars_partials_are_those_of_numpy(call, dtypes):
    weights, gradients = lists(1, 2, dtypes)
    held = variables(weights)
    found = call(lambda: ops.lars_partials(held, gradients, 0, blocks()))
    same_bits(found.numpy(), np.stack([passes.partials(weights), passes.partials(gradients)], axis=1))


def test_any_ranges_give_the_same_bits():
    weights, gradients = lists(2, 2)
    held, total = variables(weights), blocks()
    whole = ops.lars_partials(held, gradients, 0, total).numpy()
    for ranks in range(1, 9):
        bounds = [total * rank // ranks for rank in range(ranks + 1)]
        shares = itertools.pairwise(bounds)
        parts = [ops.lars_partials(held, gradients, tf.constant(a), tf.constant(b)) for a, b in shares]
        same_bits(np.concatenate(parts), whole)


def test_a_range_may_be_empty():
    weights, gradients = lists(2, 2)
    assert ops.lars_partials(variables(weights), gradients, 3, 3).shape == (0, 2)
    assert ops.lars_partials([], [], 0, 0).shape == (0, 2)


def test_partials_tell_what_is_not_finite():
    weights, gradients = lists(2, 2)
    gradients[4][7, 7] = np.nan
    weights[0][0, 0, 0, 0] = np.inf
    found = ops.lars_partials(variables(weights), gradients, 0, blocks()).numpy()
    assert np.isinf(found[0, 0]) and np.isnan(found).sum() == 1
    norms = ops.layer_sums(found, [array.size for array in weights]).numpy()
    assert np.argwhere(np.isnan(norms)).tolist() == [[4, 1]]


def test_squares_of_float32_do_not_overflow():
    weights = [np.full(1000, 3e38, np.float32), np.full(1000, 1e-45, np.float32)]
    found = ops.lars_partials(variables(weights), weights, 0, 2).numpy()
    np.testing.assert_allclose(found[0], 1000 * np.float64(np.float32(3e38)) ** 2, rtol=1e-12)
    np.testing.assert_allclose(found[1], 1000 * np.float64(np.float32(1e-45)) ** 2, rtol=1e-12)


@EACH_DTYPE
@pytest.mark.parametrize("nesterov", [False, True])
def test_lars_update_is_that_of_numpy(call, dtypes, nesterov):
    weights, velocities, gradients = lists(3, 3, dtypes)
    held, moving = variables(weights), variables(velocities)
    ratios, decays = numbers(3)
    call(lambda: ops.lars_update(held, moving, gradients, ratios, decays, 0.1, 0.9, nesterov))
    for number, weight in enumerate(weights):
        expected = passes.lars_step(
            weight, velocities[number], gradients[number], 0.1 * ratios[number], decays[number], 0.9, nesterov
        )
        same_bits(held[number].numpy(), expected[0])
        same_bits(moving[number].numpy(), expected[1])


def test_numbers_may_be_tensors_of_any_precision():
    weights, velocities, gradients = lists(3, 3)
    held, moving = variables(weights), variables(velocities)
    ratios, decays = (each.astype(np.float32) for each in numbers(3))
    learning_rate, momentum = tf.Variable(0.1), tf.constant(0.9, tf.float64)
    ops.lars_update(held, moving, gradients, tf.constant(ratios), decays, learning_rate, momentum)
    for number, weight in enumerate(weights):
        scale = np.float64(np.float32(0.1)) * ratios[number]
        expected = passes.lars_step(weight, velocities[number], gradients[number], scale, decays[number], 0.9, False)
        same_bits(held[number].numpy(), expected[0])


# ---- LAMB ----


@EACH_DTYPE
def test_lamb_partials_are_those_of_numpy(call, dtypes):
    weights, firsts, seconds, gradients = lists(4, 4, dtypes)
    seconds = squares(seconds)
    _, decays = numbers(4)
    held = [variables(each) for each in (weights, firsts, seconds)]
    found = call(lambda: ops.lamb_partials(*held, gradients, decays, *RULE, 0, blocks()))
    directions = [
        passes.lamb_direction(*each, RULE)[0] for each in zip(weights, firsts, seconds, gradients, decays, strict=True)
    ]
    same_bits(found.numpy(), np.stack([passes.partials(weights), passes.partials(directions)], axis=1))
    for variable, before in zip(sum(held, []), [*weights, *firsts, *seconds], strict=True):
        same_bits(variable.numpy(), before)


@EACH_DTYPE
def test_lamb_update_is_that_of_numpy(call, dtypes):
    weights, firsts, seconds, gradients = lists(5, 4, dtypes)
    seconds = squares(seconds)
    ratios, decays = numbers(5)
    held = [variables(each) for each in (weights, firsts, seconds)]
    call(lambda: ops.lamb_update(*held, gradients, ratios, decays, 0.1, *RULE))
    for number, gradient in enumerate(gradients):
        before = (weights[number], firsts[number], seconds[number])
        expected = passes.lamb_step(*before, gradient, 0.1 * ratios[number], decays[number], RULE)
        for variable, array in zip(held, expected, strict=True):
            same_bits(variable[number].numpy(), array)


def test_the_norms_of_lamb_are_those_of_the_step_taken():
    """|w - w'| / (learning rate * ratio) is |u| for every u."""
    weights, firsts, seconds, gradients = lists(6, 4, ("float64",))
    held = [variables(each) for each in (weights, firsts, squares(seconds))]
    decays = np.full(len(SHAPES), 0.01)
    sums = ops.lamb_partials(*held, gradients, decays, *RULE, 0, blocks())
    norms = np.sqrt(ops.layer_sums(sums, [array.size for array in weights]).numpy())
    ops.lamb_update(*held, gradients, np.ones(len(SHAPES)), decays, 1.0, *RULE)
    moved = [np.linalg.norm((before - after.numpy()).ravel()) for before, after in zip(weights, held[0], strict=True)]
    np.testing.assert_allclose(norms[:, 1], moved, rtol=1e-9)


@pytest.mark.parametrize("step", [1, 2, 1000, 10**6, 2**62])
def test_the_bias_is_corrected_at_any_step(step):
    rule = RULE._replace(step=step)
    weights, firsts, seconds, gradients = lists(7, 4, shapes=[(40,)])
    held = [variables(each) for each in (weights, firsts, squares(seconds))]
    ops.lamb_update(*held, gradients, [1.0], [0.0], 0.1, *rule)
    expected = passes.lamb_step(weights[0], firsts[0], squares(seconds)[0], gradients[0], 0.1, 0.0, rule)
    same_bits(held[0][0].numpy(), expected[0])
    exact = 1 / (1 - np.power(0.999, np.float64(step)))
    approximate = 1 / (1 - passes._power(0.999, step))
    assert abs(approximate / exact - 1) < 1e-12


# ---- sums of layers ----


def test_blocks_of_a_layer_are_added_in_order(call):
    sizes = [0, 3 * ops.BLOCK, 5, 2 * ops.BLOCK + 1, 0]
    random = np.random.default_rng(8)
    partials = 10.0 ** random.uniform(-20, 20, (7, 3))
    found = call(lambda: ops.layer_sums(partials, sizes)).numpy()
    bounds = np.cumsum([0, *ops.block_counts(sizes)])
    expected = [np.add.accumulate([np.zeros(3), *partials[a:b]])[-1] for a, b in itertools.pairwise(bounds)]
    same_bits(found, np.array(expected))


@pytest.mark.parametrize("rows", [0, 6, 8])
def test_sums_need_a_row_for_each_block(rows):
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"a row of partials for each block .* got {rows} rows"):
        ops.layer_sums(tf.zeros([rows, 2], tf.float64), [7 * ops.BLOCK])


# ---- memory with other references ----


def test_a_value_that_was_read_stays_as_it_was():
    (weights, velocities, gradients) = lists(9, 3, shapes=[(1000,)])
    held, moving = variables(weights), variables(velocities)
    read, moved = held[0].read_value(), moving[0].read_value()
    ops.lars_update(held, moving, gradients, [1.0], [0.0], 0.1, 0.9)
    same_bits(read.numpy(), weights[0])
    same_bits(moved.numpy(), velocities[0])
    same_bits(held[0].numpy(), passes.lars_step(weights[0], velocities[0], gradients[0], 0.1, 0, 0.9, False)[0])


def test_variables_that_share_memory_part_when_one_is_written():
    weights, gradients = lists(9, 2, shapes=[(1000,)])
    held, copy, moving = variables(weights), tf.Variable(tf.zeros([1000])), variables([np.zeros(1000, np.float32)])
    copy.assign(held[0].read_value())
    ops.lars_update(held, moving, gradients, [1.0], [0.0], 0.1, 0.9)
    same_bits(copy.numpy(), weights[0])


def test_a_gradient_may_be_the_weight_itself(call):
    (weights,) = lists(9, 1, shapes=[(1000,)])
    held, moving = variables(weights), variables([np.zeros(1000, np.float32)])
    call(lambda: ops.lars_update(held, moving, [held[0].read_value()], [1.0], [0.0], 0.1, 0.9))
    expected = passes.lars_step(weights[0], np.zeros(1000, np.float32), weights[0], 0.1, 0, 0.9, False)
    same_bits(held[0].numpy(), expected[0])


def test_a_variable_that_is_also_updated_by_rows():
    weights, gradients = lists(9, 2, shapes=[(10, 100)])
    held, moving = variables(weights), variables([np.zeros((10, 100), np.float32)])
    held[0].scatter_sub(tf.IndexedSlices(tf.zeros([1, 100]), [3]))  # from now on it is copied when it is read
    read = held[0].read_value()
    same_bits(ops.lars_partials(held, gradients, 0, 1).numpy()[:, 0], passes.partials(weights))
    ops.lars_update(held, moving, gradients, [1.0], [0.0], 0.1, 0.9)
    same_bits(read.numpy(), weights[0])


def test_a_function_runs_passes_in_the_order_in_which_they_stand():
    weights, gradients = lists(10, 2, shapes=[(3, ops.BLOCK)])
    held, moving = variables(weights), variables([np.zeros((3, ops.BLOCK), np.float32)])

    @tf.function
    def two_steps():
        sums = []
        for _ in range(2):
            sums.append(ops.lars_partials(held, gradients, 0, 3))
            ops.lars_update(held, moving, gradients, [1.0], [0.1], 0.1, 0.9)
        return sums

    first, second = two_steps()
    same_bits(first.numpy()[:, 0], passes.partials(weights))
    velocity = np.zeros((3, ops.BLOCK), np.float32)
    weight, _ = passes.lars_step(weights[0], velocity, gradients[0], 0.1, 0.1, 0.9, False)
    same_bits(second.numpy()[:, 0], passes.partials([weight]))
