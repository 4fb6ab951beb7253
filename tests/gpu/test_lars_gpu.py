"""LARS and LAMB on a GPU, or emulated: the bits of the CPU's passes for any order of threads."""

import itertools

import numpy as np
import pytest

pytest.importorskip("ml_dtypes")

from tests.gpu import lars_library  # noqa: E402 - there is nothing to import without ml_dtypes
from tests.lars import passes  # noqa: E402

pytestmark = pytest.mark.thorough

SHAPES = [(70_001,), (1,), (0,), (65_536,), (7, 9), (17,), (4_096,), (4_097,), (131_073,)]
RULE = passes.LambRule(beta_1=0.9, beta_2=0.999, epsilon=1e-6, step=7)


@pytest.fixture(scope="module", params=["emulated", "gpu"])
def native(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("native")
    if request.param == "emulated":
        return lars_library.emulated(folder)
    reason = lars_library.missing_gpu()
    if reason:
        pytest.skip(f"the kernels cannot run on a GPU: {reason}")
    return lars_library.on_gpu(folder)


def same_bits(found, expected):
    assert found.dtype == expected.dtype and found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


def problem(dtypes, slots, shapes=SHAPES):
    """Weights, slots and gradients; the second slot has no negative elements, like squares."""
    random = np.random.default_rng(1)
    made = [passes.tensors(random, shapes, [passes.DTYPES[dtype] for dtype in dtypes]) for _ in range(2 + slots)]
    if slots == 2:
        made[2] = [np.abs(array) for array in made[2]]
    return made[0], made[1:-1], made[-1]


def numbers(count):
    random = np.random.default_rng(2)
    return random.uniform(0.01, 2, count), random.choice([0, 1e-4, 0.01], count)


def blocks(arrays):
    return sum(-(-array.size // passes.BLOCK) for array in arrays)


EACH_DTYPE = pytest.mark.parametrize(
    "dtypes", [("float32",), ("float64",), ("float16",), ("bfloat16",), tuple(passes.DTYPES)], ids="-".join
)


@EACH_DTYPE
def test_sums_are_the_same_bits(native, dtypes):
    weights, _, gradients = problem(dtypes, 0)
    tensors = lars_library.Tensors(native.memory, weights, gradients)
    expected = np.stack([passes.partials(weights), passes.partials(gradients)], axis=1)
    same_bits(native.lars_partials(tensors, 0, blocks(weights)), expected)


def test_any_shares_give_the_same_bits(native):
    weights, _, gradients = problem(["float32"], 0)
    tensors, total = lars_library.Tensors(native.memory, weights, gradients), blocks(weights)
    whole = native.lars_partials(tensors, 0, total)
    for ranks in (2, 3, 8):
        shares = itertools.pairwise(total * rank // ranks for rank in range(ranks + 1))
        same_bits(np.concatenate([native.lars_partials(tensors, *share) for share in shares]), whole)


def test_layers_that_need_several_launches(native):
    shapes = [(1 + number % 5,) for number in range(130)]
    weights, slots, gradients = problem(["float32"] * 50 + ["float64"] * 3, 1, shapes)
    ratios, decays = numbers(len(shapes))
    tensors = lars_library.Tensors(native.memory, weights, gradients, slots, decays)
    sums = native.lars_partials(tensors, 3, 128)
    same_bits(sums, np.stack([passes.partials(weights), passes.partials(gradients)], axis=1)[3:128])
    native.lars_update(tensors, ratios, 0.1, 0.9, False)
    found = tensors.read()
    for number, weight in enumerate(weights):
        scale = 0.1 * ratios[number]
        expected = passes.lars_step(weight, slots[0][number], gradients[number], scale, decays[number], 0.9, False)
        same_bits(found[0][number], expected[0])


@EACH_DTYPE
@pytest.mark.parametrize("nesterov", [False, True])
def test_updates_of_lars_are_the_same_bits(native, dtypes, nesterov):
    weights, slots, gradients = problem(dtypes, 1)
    ratios, decays = numbers(len(weights))
    tensors = lars_library.Tensors(native.memory, weights, gradients, slots, decays, skew=1)
    native.lars_update(tensors, ratios, 0.1, 0.9, nesterov)
    found = tensors.read()
    inputs = zip(weights, slots[0], gradients, 0.1 * ratios, decays, strict=True)
    for number, each in enumerate(inputs):
        weight, velocity = passes.lars_step(*each, 0.9, nesterov)
        same_bits(found[0][number], weight)
        same_bits(found[1][number], gradients[number])
        same_bits(found[2][number], velocity)


@EACH_DTYPE
def test_passes_of_lamb_are_the_same_bits(native, dtypes):
    weights, slots, gradients = problem(dtypes, 2)
    ratios, decays = numbers(len(weights))
    tensors = lars_library.Tensors(native.memory, weights, gradients, slots, decays)
    inputs = list(zip(weights, *slots, gradients, strict=True))
    directions = [passes.lamb_direction(*each, decay, RULE)[0] for each, decay in zip(inputs, decays, strict=True)]
    sums = native.lamb_partials(tensors, RULE, 0, blocks(weights))
    same_bits(sums, np.stack([passes.partials(weights), passes.partials(directions)], axis=1))
    native.lamb_update(tensors, ratios, 0.1, RULE)
    found = tensors.read()
    for number, each in enumerate(inputs):
        expected = passes.lamb_step(*each, 0.1 * ratios[number], decays[number], RULE)
        for kind, array in zip((0, 2, 3), expected, strict=True):
            same_bits(found[kind][number], array)


def test_blocks_of_a_layer_are_added_in_order(native):
    sizes = [0, 3 * passes.BLOCK, 5, 2 * passes.BLOCK + 1, 0] * 100
    random = np.random.default_rng(8)
    partials = 10.0 ** random.uniform(-20, 20, (700, 3))
    bounds = np.cumsum([0, *(-(-size // passes.BLOCK) for size in sizes)])
    expected = [np.add.accumulate([np.zeros(3), *partials[a:b]])[-1] for a, b in itertools.pairwise(bounds)]
    same_bits(native.layer_sums(partials, sizes), np.array(expected))


def test_arguments_that_cannot_be_are_refused(native):
    weights, slots, gradients = problem(["float32"], 2, [(10,)])
    tensors = lars_library.Tensors(native.memory, weights, gradients, slots)
    for first, last in ((-1, 1), (0, 2)):
        with pytest.raises(RuntimeError, match="a range of blocks that are there"):
            native.lars_partials(tensors, first, last)
    for changes in ({"beta_1": 1.0}, {"beta_2": -1.0}, {"step": 0}):
        with pytest.raises(RuntimeError, match="an argument is out of range"):
            native.lamb_update(tensors, [1.0], 0.1, RULE._replace(**changes))
    with pytest.raises(RuntimeError, match="an argument is out of range"):
        native.layer_sums(np.zeros((3, 2)), [1])
    tensors.layers[0].dtype = 7
    with pytest.raises(RuntimeError, match="known dtypes"):
        native.lars_update(tensors, [1.0], 0.1, 0.9, False)


def test_an_empty_list_is_nothing_to_do(native):
    tensors = lars_library.Tensors(native.memory, [], [])
    assert native.lars_partials(tensors, 0, 0).shape == (0, 2)
    native.lars_update(tensors, [], 0.1, 0.9, False)
