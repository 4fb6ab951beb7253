"""Values of a few bits each: what `Quantized` sends and keeps, how its codes are sent, and quantized sums."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse import recipes
from hvd_sparse.aggregators import Compressed, Hierarchical, SparseAllReduce
from hvd_sparse.compression.error_feedback import ErrorFeedback
from hvd_sparse.compression.quantizers import QSGD
from hvd_sparse.compression.selectors import MSTopK, Quantized, TopK
from hvd_sparse.spec import Spec
from hvd_sparse.transport.communicator import Grid
from tests import simulation, threads
from tests.gpu import reference
from tests.ops import quantize_reference
from tests.simulation import Shape, same_bits

SIZE = 1000


def drawn(rank=0, step=0):
    return np.random.default_rng([rank, step]).standard_normal(SIZE).astype(np.float32)


def compress(part, vector, state):
    """The selection from a vector, with its updates assigned."""
    selection = part.compress(tf.constant(vector[np.newaxis]), state)
    for variable, value in selection.updates:
        variable.assign(value)
    return selection


# ---- sent and kept elements ----


@pytest.mark.parametrize("quantizer", [QSGD(2), QSGD(4, bucket=16), QSGD(8, bucket=7, norm="l2")])
def test_the_codes_are_those_of_the_chosen_values(quantizer):
    part = Quantized(TopK(0.1), quantizer, seed=3)
    spec = Spec(SIZE, Grid.lone(), number=2)
    state = part.create(spec)
    for step in range(3):
        vector = drawn(step=step)
        selection = compress(part, vector, state)
        chosen = reference.exact(vector, 100)
        codes, scales, decoded = quantize_reference.reference(vector[chosen], 3 + (2 << 32) + step, quantizer)
        same_bits(selection.coded.codes.numpy(), codes)
        same_bits(selection.coded.scales.numpy(), scales)
        np.testing.assert_array_equal(selection.slices.values.numpy(), decoded)
        kept = vector.copy()
        kept[chosen] = vector[chosen] - decoded
        np.testing.assert_array_equal(selection.residual.numpy(), kept)


def test_the_papers_algorithm_drops_what_rounding_takes_away():
    vector, part = drawn(), Quantized(TopK(0.1), QSGD(4), keeps_error=False)
    selection = compress(part, vector, part.create(Spec(SIZE, Grid.lone())))
    assert not selection.residual.numpy()[reference.exact(vector, 100)].any()


def test_ranks_steps_and_vectors_round_differently():
    part = Quantized(TopK(1.0), QSGD(2))

    def one_rank(grid):
        states = [part.create(Spec(SIZE, grid, number=number)) for number in range(2)]
        return [compress(part, drawn(), state).slices.values.numpy() for state in states for _ in range(2)]

    sent = {each.tobytes() for rank in threads.run(3, 1, one_rank) for each in rank}
    assert len(sent) == 12


def test_a_norm_that_overflows_is_a_fault():
    """The squares of finite values may have no finite sum, which must not reach a total."""
    part = Quantized(TopK(1.0), QSGD(4, norm="l2"))
    selection = part.compress(tf.fill([1, 10], 2e38), part.create(Spec(10, Grid.lone())))
    assert int(selection.culprit) == 2 and np.isfinite(selection.slices.values.numpy()).all()


def test_parts_that_cannot_work_together_are_refused():
    with pytest.raises(ValueError, match=r"write ErrorFeedback\(Quantized\(compressor, quantizer\)\)"):
        Quantized(ErrorFeedback(TopK(0.1)), QSGD(4))
    with pytest.raises(ValueError, match="encodes float32 values, got a compressor with wire_dtype 'float16'"):
        Quantized(TopK(0.1, "float16"), QSGD(4))
    with pytest.raises(ValueError, match="collective to be one of auto, recursive_doubling, .* got 'ring'"):
        SparseAllReduce(TopK(0.1), "ring")
    with pytest.raises(ValueError, match="split_allgather gathers none"):
        recipes.sparcml(0.1, bits=4, collective="split_allgather")
    with pytest.raises(ValueError, match="2, 4 or 8 bits, got 3"):
        recipes.sparcml(0.1, bits=3)
    with pytest.raises(ValueError, match=r"k in \[1, bucket\], got k = 0 and bucket = 512"):
        recipes.sparcml_buckets(0)


# ---- codes on the wire ----


def sums(recipe, ranks, local_size):
    """The means, the residuals, and the reported and counted bytes, [P] each, of three exchanges."""

    def one_rank(grid):
        state, means, told = recipe.init(Spec(SIZE, grid)), [], 0
        before = threads.sent(grid)
        for step in range(3):
            exchange = recipe.exchange(tf.constant(drawn(grid.world.rank, step)), state)
            told += int(exchange.metrics["bytes_inside"]) + int(exchange.metrics["bytes_across"])
            for update in exchange.updates:
                update.variable.assign(update.value)
            means.append(exchange.mean.numpy())
        counted = sum(count - before.get(to, 0) for to, count in threads.sent(grid).items())
        return np.stack(means), recipe.residual(state).numpy(), told, counted

    return zip(*threads.run(ranks, local_size, one_rank), strict=True)


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("quantizer", [QSGD(4), QSGD(2, bucket=16), QSGD(8, bucket=7, norm="l2")])
def test_codes_that_travel_are_the_decoded_values_to_the_bit(quantizer, ranks):
    recipe = Compressed(ErrorFeedback(Quantized(TopK(0.1), quantizer)))
    means, left, told, counted = sums(recipe, ranks, 1)
    residuals = np.zeros((ranks, SIZE), np.float32)
    for step in range(3):
        total = np.zeros(SIZE, np.float32)
        for rank in range(ranks):
            acc = drawn(rank, step) + residuals[rank]
            chosen = reference.exact(acc, 100)
            decoded = quantize_reference.reference(acc[chosen], step + (rank << 48), quantizer)[2]
            residuals[rank] = acc
            residuals[rank][chosen] = acc[chosen] - decoded
            total[chosen] += decoded
        for rank in range(ranks):
            np.testing.assert_array_equal(means[rank][step], total / np.float32(ranks))
    np.testing.assert_array_equal(np.stack(left), residuals)
    message = 4 * 100 + 4 * quantizer.scale_count(100) + -(-quantizer.code_bytes(100) // 4) * 4
    assert list(told) == list(counted) == [3 * (ranks - 1) * message] * ranks


def test_codes_travel_between_nodes_too():
    recipe = Hierarchical(Compressed(ErrorFeedback(Quantized(MSTopK(0.1), QSGD(4)))))
    means, left, told, counted = sums(recipe, 6, 2)
    assert list(told) == list(counted)
    for mean in means[1:]:
        same_bits(mean, means[0])
    came_out = 6 * means[0].sum(axis=0) + np.sum(left, axis=0)
    went_in = np.sum([drawn(rank, step) for rank in range(6) for step in range(3)], axis=0)
    np.testing.assert_allclose(came_out, went_in, atol=1e-4)


def test_a_density_that_changes_is_coded_as_well():
    recipe = Compressed(ErrorFeedback(Quantized(TopK(lambda step: tf.where(step < 1, 0.5, 0.01)), QSGD(4))))
    means, left, told, counted = sums(recipe, 3, 1)
    assert list(told) == list(counted)
    went_in = np.sum([drawn(rank, step) for rank in range(3) for step in range(3)], axis=0)
    np.testing.assert_allclose(3 * means[0].sum(axis=0) + np.sum(left, axis=0), went_in, atol=1e-4)


# ---- sums ----


@pytest.mark.parametrize(
    "collective",
    ["recursive_doubling", "split_allgather", "dynamic", pytest.param("auto", marks=pytest.mark.thorough)],
)
@pytest.mark.parametrize(
    "ranks, local_size",
    [(1, 1), (4, 2), *(pytest.param(*each, marks=pytest.mark.thorough) for each in [(3, 3), (7, 1)])],
)
def test_every_collective_gives_the_mean_of_integers(collective, ranks, local_size):
    recipe = recipes.sparcml(0.2, collective=collective)
    simulated = simulation.Flat(Shape(ranks, local_size), 60, simulation.exact, 0.2)
    random = np.random.default_rng(ranks)
    vectors = [[simulation.integers(random, 60, ranks).astype(np.float32) for _ in range(ranks)] for _ in range(3)]

    def one_rank(grid):
        state = recipe.init(Spec(60, grid))
        means = [recipe.aggregate(tf.constant(each[grid.world.rank]), state).numpy() for each in vectors]
        return means, recipe.residual(state).numpy(), recipe.decided(state)

    means, left, decided = zip(*threads.run(ranks, local_size, one_rank), strict=True)
    for step, each in enumerate(vectors):
        expected = simulated.step(each)
        for mean in means:
            same_bits(mean[step], expected)
    same_bits(np.stack(left), simulated.residual)
    assert len(set(decided)) == 1 and (decided[0] is not None) == (collective == "auto")


def test_fewer_bytes_where_sums_are_quantized():
    exact = sums(recipes.sparcml(0.5, collective="dynamic"), 4, 1)
    coded = sums(recipes.sparcml(0.5, bits=4), 4, 1)
    *_, told, counted = exact
    *_, told_coded, counted_coded = coded
    assert list(told) == list(counted) and list(told_coded) == list(counted_coded)
    assert sum(counted_coded) < 0.65 * sum(counted)  # the gathered half shrinks to an eighth


def test_a_sum_that_overflows_stops_all_ranks_where_it_would_be_quantized():
    """Every rank's gradient is finite; the rank that adds them up detects it."""
    recipe = recipes.sparcml_buckets(1, 5, bits=4)

    def one_rank(grid):
        state = recipe.init(Spec(10, grid))
        with pytest.raises(tf.errors.InvalidArgumentError) as raised:
            recipe.aggregate(tf.constant([0, 0, 0, 0, 0, 3e38, 0, 0, 0, 0], tf.float32), state)
        assert not recipe.residual(state).numpy().any()
        return str(raised.value)

    for text in threads.run(2, 1, one_rank):
        assert "rank 1" in text and "Nothing was written" in text


def test_what_is_put_back_is_the_rank_of_the_pieces_where_nothing_is_fed_back():
    recipe, kept = SparseAllReduce(TopK(0.1), "dynamic", QSGD(4)), drawn()

    def one_rank(grid):
        state = recipe.init(Spec(SIZE, grid))
        recipe.restore(state, tf.constant(kept))
        return recipe.residual(state).numpy()

    same_bits(np.sum(threads.run(3, 1, one_rank), axis=0), kept)
