"""When ranks average, how their models are kept together, and what telemetry reports; on ranks as threads."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse.averaging import Lossy, MeanOfModels, Reliable, Telemetry
from hvd_sparse.averaging.flat import FlatVariables
from hvd_sparse.averaging.participant import Participant, Settings
from hvd_sparse.averaging.transports import Averaged, Channel, Transport
from tests import threads
from tests.averaging import simulation
from tests.simulation import same_bits

SHAPES = ((3, 2), (5,), ())
SIZE = 12
LOSSY = Lossy(0.4, seed=11)


class Model:
    """One rank's variables and its participant; a step adds the rank's `update`."""

    def __init__(self, grid, settings: Settings, dtype=tf.float32, passes: int = 1):
        self.rank = grid.world.rank
        self.telemetry = Telemetry()
        self.variables = [tf.Variable(tf.fill(shape, tf.cast(self.rank, dtype))) for shape in SHAPES]
        self.participant = Participant(settings, self.telemetry)
        self.participant.begin(self.variables, [], grid.world, "test", passes)

    def vector(self) -> np.ndarray:
        return np.concatenate([variable.numpy().astype(np.float32).reshape(-1) for variable in self.variables])

    def step(self, number: int) -> np.ndarray:
        """The vector after a step."""
        ends = np.cumsum([variable.numpy().size for variable in self.variables])[:-1]
        for variable, part in zip(self.variables, np.split(update(self.rank, number), ends), strict=True):
            variable.assign_add(tf.cast(part.reshape(variable.shape), variable.dtype))
        self.participant.take_part()
        return self.vector()


def update(rank: int, number: int) -> np.ndarray:
    return np.random.default_rng([rank, number]).normal(size=SIZE).astype(np.float32)


def trained(ranks: int, steps: int, settings: Settings, **options) -> tuple[np.ndarray, list[dict]]:
    """Vectors after each step, [P, steps, d], and the final telemetry of each rank."""

    def one_rank(grid):
        model = Model(grid, settings, **options)
        return np.stack([model.step(number) for number in range(steps)]), model.telemetry.read()

    made = threads.run(ranks, 1, one_rank)
    return np.stack([vectors for vectors, _ in made]), [told for _, told in made]


def simulated(ranks: int, steps: int, settings: Settings) -> np.ndarray:
    own = np.zeros((ranks, SIZE), np.float32)
    after, round = [], 0
    for number in range(steps):
        own = own + np.stack([update(rank, number) for rank in range(ranks)])
        if (number + 1) % settings.every == 0:
            exact = settings.resynchronise_every and (round + 1) % settings.resynchronise_every == 0
            losses = simulation.drawn(0.0 if exact else LOSSY.probability, LOSSY.seed, round, ranks)
            own = simulation.averaged(own, round, losses, settings.rotate).vectors
            round += 1
        after.append(own)
    return np.stack(after, axis=1)


@pytest.mark.parametrize(
    "ranks, settings",
    [
        (3, Settings(LOSSY)),
        (3, Settings(LOSSY, rotate=False)),
        (2, Settings(LOSSY, every=2)),
        (5, Settings(LOSSY, every=2, resynchronise_every=2)),
        (1, Settings(LOSSY, resynchronise_every=3)),
    ],
    ids=["rotating", "fixed owners", "local steps", "resynchronised", "alone"],
)
def test_it_is_that_of_numpy_to_the_bit(ranks, settings):
    found, told = trained(ranks, 6, settings)
    same_bits(found, simulated(ranks, 6, settings))
    rounds = 6 // settings.every
    exact = rounds // settings.resynchronise_every if settings.resynchronise_every else 0
    for each in told:
        assert each["round"] == rounds - 1 and each["resynchronisations"] == exact


class _Skipping(Channel):
    """Averages nothing, and makes the last rank skip two rounds each time, as if it had been absent."""

    def __init__(self, world):
        self._world = world

    def average(self, vector, round):
        of_others = tf.constant([[int(rank != self._world.rank) for rank in self._world.ranks]] * 2, tf.int64)
        skipped = 2 if self._world.rank == self._world.size - 1 else 0
        return Averaged(tf.identity(vector), of_others, tf.zeros_like(of_others), round + skipped)


@dataclasses.dataclass(frozen=True)
class Skipping(Transport):
    def open(self, size, world, rotate, name):
        return _Skipping(world)


@pytest.mark.parametrize("guard", [None, 1e-3])
def test_exact_rounds_are_met_by_a_rank_that_has_skipped_others(guard):
    """Collectives are matched by a rank's steps, and all take the same number: none waits for a missing rank."""
    settings = Settings(Skipping(), resynchronise_every=None if guard else 3, max_distance=guard, guard_every=3)
    found, told = trained(3, 7, settings)
    for step in (2, 5):
        same_bits(found[0, step], found[1, step])
        same_bits(found[0, step], found[2, step])
    assert (found[0, 3] != found[2, 3]).any()
    assert [each["resynchronisations"] for each in told] == [2, 2, 2]


def test_passes_of_one_step_count_as_one():
    found, _ = trained(2, 4, Settings(LOSSY), passes=2)
    same_bits(found, simulated(2, 4, Settings(LOSSY, every=2)))


def test_telemetry_counts_what_is_lost_by_phase_and_rank():
    _, told = trained(3, 5, Settings(LOSSY))
    losses = np.stack([simulation.drawn(LOSSY.probability, LOSSY.seed, round, 3) for round in range(5)])
    for rank, each in enumerate(told):
        for phase, name in enumerate(("reduce_scatter", "all_gather")):
            of_all = losses[:, phase, :, rank]
            assert each["lost_from"][name] == pytest.approx(of_all.mean(axis=0))
            assert each["total_lost"][name] == pytest.approx(of_all.sum() / 10)
            assert each["lost"][name] == pytest.approx(of_all[-1].sum() / 2)


def test_the_distance_is_that_to_the_mean_where_nothing_is_lost():
    _, told = trained(3, 1, Settings(Reliable()))
    own = np.stack([update(rank, 0) for rank in range(3)])
    for each, distance in zip(told, np.linalg.norm(own - own.mean(axis=0), axis=1), strict=True):
        assert each["distance"] == pytest.approx(distance, rel=1e-5)


def estimated(own: np.ndarray, new: np.ndarray, arrived: np.ndarray) -> list[float]:
    """The distance of each rank's model to the mean, estimated from the blocks whose mean it has."""
    ranks = len(own)
    found = []
    for rank in range(ranks):
        blocks = arrived[1, :, rank].sum() + arrived[0, :, rank].any()
        square = np.sum((new[rank] - own[rank]) ** 2, dtype=np.float64)
        found.append(np.sqrt(square * ranks / blocks) if blocks else np.inf)
    return found


@pytest.mark.parametrize(
    "transport, limit, expected",
    [(LOSSY, 4.8, 3), (LOSSY, 1e6, 0), (Lossy(1.0), 1e6, 4), (Lossy(0.0), 0.1, 4)],
    ids=["far", "near", "nothing arrives", "nothing lost"],
)
def test_the_guard_brings_models_together_that_have_strayed(transport, limit, expected):
    found, told = trained(3, 8, Settings(transport, max_distance=limit, guard_every=2))
    own, times = np.zeros((3, SIZE), np.float32), 0
    for number in range(8):
        own = own + np.stack([update(rank, number) for rank in range(3)])
        losses = simulation.drawn(transport.probability, transport.seed, number, 3)
        new, arrived = simulation.averaged(own, number, losses, True)
        far = max(estimated(own, new, arrived))
        assert not far == pytest.approx(limit, rel=0.01)  # a result that depends on rounding would show nothing
        if number % 2 and far > limit:
            new, times = simulation.averaged(new, number, np.zeros_like(losses), True).vectors, times + 1
        own = new
        same_bits(found[:, number], own)
    assert [each["resynchronisations"] for each in told] == [times] * 3
    assert times == expected


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_variables_of_half_precision_hold_the_rounded_mean(dtype):
    found, _ = trained(3, 2, Settings(Reliable()), dtype=dtype)
    assert (found[0] == found[1]).all() and (found[0] == found[2]).all()
    exact = np.zeros((3, SIZE))
    for number in range(2):
        exact = exact + np.stack([update(rank, number) for rank in range(3)])
        exact[:] = exact.mean(axis=0)
    np.testing.assert_allclose(found[0, 1], exact[0], atol=0.05)


def test_a_nan_of_one_rank_is_an_error_on_every_rank_and_reaches_nobody():
    def one_rank(grid):
        model = Model(grid, Settings(LOSSY))
        model.step(0)
        if grid.world.rank == 1:
            model.variables[1].assign(tf.fill([5], float("nan")))
        before = model.vector()
        with pytest.raises(tf.errors.InvalidArgumentError, match="weights of rank 1 hold a NaN or an infinity"):
            model.participant.take_part()
        same_bits(model.vector(), before)

    threads.run(3, 1, one_rank)


def test_resynchronising_gives_all_ranks_the_exact_mean():
    def one_rank(grid):
        model = Model(grid, Settings(Lossy(1.0), resynchronise_every=None))
        model.step(0)
        own = model.vector()
        model.participant.resynchronise()
        return own, model.vector(), model.telemetry.read()["resynchronisations"]

    made = threads.run(3, 1, one_rank)
    own = np.stack([each for each, _, _ in made])
    exact = simulation.averaged(own, 0, np.zeros((2, 3, 3), bool), False).vectors
    for rank, (_, found, times) in enumerate(made):
        same_bits(found, exact[rank])
        assert times == 1


def test_the_mean_is_put_and_each_rank_s_own_taken_back():
    def one_rank(grid):
        model = Model(grid, Settings(Lossy(1.0)))
        own = model.step(0)
        with MeanOfModels(FlatVariables(model.variables), model.participant):
            mean = model.vector()
            model.participant.require_mean()
        same_bits(model.vector(), own)
        with pytest.raises(RuntimeError, match="their mean was not gathered"):
            model.participant.require_mean()
        return own, mean

    made = threads.run(3, 1, one_rank)
    own = np.stack([each for each, _ in made])
    exact = simulation.averaged(own, 0, np.zeros((2, 3, 3), bool), False).vectors
    same_bits(np.stack([mean for _, mean in made]), exact)


def test_a_model_is_saved_only_while_it_holds_the_mean():
    def one_rank(grid):
        model = Model(grid, Settings(LOSSY))
        participant = model.participant
        participant.require_mean()  # there has been no training
        model.step(0)
        with pytest.raises(RuntimeError, match="their mean was not gathered since the last step"):
            participant.require_mean()
        participant.holds_mean(True)
        participant.require_mean()
        model.step(1)
        with pytest.raises(RuntimeError, match="their mean was not gathered"):
            participant.require_mean()

    threads.run(2, 1, one_rank)


@pytest.mark.parametrize(
    "settings, options, told",
    [
        (lambda rank: Settings(Lossy(0.1, rank)), {}, "disagree on what they average: rank 1 has transport"),
        (lambda rank: Settings(LOSSY, every=1 + rank), {}, "disagree on what they average: rank 1 has every = 2"),
        (lambda rank: Settings(LOSSY), {"dtype": (tf.float32, tf.float16)}, "rank 1 has variables"),
        (lambda rank: Settings(LOSSY), {"dtype": (tf.float64,) * 2}, "of float32, float16, bfloat16, got .*float64"),
    ],
    ids=["seed", "every", "dtype", "float64"],
)
def test_ranks_that_build_other_models_are_told_on_every_rank(settings, options, told):
    def one_rank(grid):
        rank = grid.world.rank
        with pytest.raises(ValueError, match=told):
            Model(grid, settings(rank), **{name: values[rank] for name, values in options.items()})

    threads.run(2, 1, one_rank)


def test_a_rank_begins_with_the_first_one_s_values():
    def one_rank(grid):
        own = [tf.Variable(tf.fill([2], float(grid.world.rank + 1)))]
        loaded = [tf.Variable(grid.world.rank + 5, dtype=tf.int64)]
        Participant(Settings(LOSSY)).begin(own, loaded, grid.world, "test")
        return own[0].numpy().tolist(), int(loaded[0])

    assert threads.run(3, 1, one_rank) == [([1.0, 1.0], 5)] * 3


def test_before_it_has_begun_it_says_so():
    participant = Participant(Settings(LOSSY))
    participant.require_mean()
    with pytest.raises(RuntimeError, match="Averaging has not started"):
        participant.world  # noqa: B018 - it is to raise
    assert Telemetry().read() == {} and participant.calls == 0
