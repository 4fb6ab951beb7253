"""Norms shared between ranks: the same bits as on each rank alone, and the same choice on all ranks."""

import functools
import logging
import sys
import threading
import types

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

import hvd_sparse as hvd
import lars
from hvd_sparse.transport import timing
from lars import choice as choices
from lars import ops
from lars.parallel import block_sizes
from tests import threads
from tests.lars import layers
from tests.lars.members import MEMBERS

STEPS = 2


def trained(make, model, communicator, options, gradients_of=layers.gradients_of):
    """The bits of all weights and slots after some steps."""
    variables = layers.variables_of(model)
    optimizer = make(learning_rate=0.5, parallel=communicator or False, **options)
    for number in range(STEPS):
        optimizer.apply([tf.constant(gradient) for gradient in gradients_of(model, number)], variables)
    return [each.numpy().tobytes() for each in [*variables, *optimizer.variables]], optimizer


@functools.cache
def trained_alone(name, model):
    make, _, options = MEMBERS[name]
    return trained(make, model, None, options)[0]


@pytest.mark.parametrize(
    "ranks", [*range(1, 5), *(pytest.param(ranks, marks=pytest.mark.thorough) for ranks in range(5, 9))]
)
@pytest.mark.parametrize(
    "name, model", [("LARS", "resnet"), ("LARS, nesterov", "transformer"), ("LAMB", "transformer")]
)
def test_shared_and_unshared_steps_have_the_same_bits(name, model, ranks):
    make, _, options = MEMBERS[name]
    for shared, optimizer in threads.run(ranks, 1, lambda grid: trained(make, model, grid.world, options)):
        assert shared == trained_alone(name, model)
        assert optimizer.choice.way == "shared as told"


def test_a_rank_reads_only_its_share(monkeypatch):
    """The blocks of successive ranks are adjacent and of about equal size."""
    asked = {}

    def noted(weights, gradients, first, last):
        asked.setdefault(id(weights[0]), []).append((int(first), int(last)))
        return ops_partials(weights, gradients, first, last)

    ops_partials = ops.lars_partials
    monkeypatch.setattr(ops, "lars_partials", noted)
    threads.run(4, 1, lambda grid: trained(lars.LARS, "resnet", grid.world, {}))
    sizes = [int(np.prod(shape)) for _, shape in layers.MODELS["resnet"]]
    blocks = block_sizes(sizes, ops.BLOCK)
    runs = [calls[0] for calls in asked.values()]
    assert all(len(set(calls)) == 1 and len(calls) == STEPS for calls in asked.values())
    runs.sort()
    assert [first for first, _ in runs] + [len(blocks)] == [0] + [last for _, last in runs]
    assert max(sum(blocks[first:last]) for first, last in runs) < sum(blocks) / 4 + ops.BLOCK


def test_a_gradient_that_is_not_finite_is_so_on_every_rank():
    def spoilt(model, number):
        gradients = layers.gradients_of(model, number)
        gradients[0][0, 0, 0, 0] = np.nan
        return gradients

    alone, _ = trained(lars.LARS, "resnet", None, {}, spoilt)
    for shared, _ in threads.run(3, 1, lambda grid: trained(lars.LARS, "resnet", grid.world, {}, spoilt)):
        assert shared == alone


def test_a_variable_that_is_a_ranks_own_has_norms_of_its_own():
    hvd.init()

    def own_of(rank):
        return layers.variable("own/kernel", np.full(3, 1.0 + rank, "f4")), tf.constant([1.0, 2.0, 3.0 + rank])

    def one_rank(grid):
        own, gradient = own_of(grid.world.rank)
        optimizer = hvd.DistributedOptimizer(lars.LARS(0.5, parallel=grid.world))
        optimizer.exchange.grid = lambda: grid
        optimizer.register_local_var(own)
        optimizer.apply([tf.ones([3]), gradient], [layers.variable("dense/kernel", np.ones(3, "f4")), own])
        return own.numpy()

    for rank, shared in enumerate(threads.run(3, 1, one_rank)):
        own, gradient = own_of(rank)
        lars.LARS(0.5).apply([gradient / 3.0], [own])  # as Horovod scales local gradients
        np.testing.assert_array_equal(shared, own)


def test_ranks_that_update_different_things_are_told():
    def one_rank(grid):
        variable = layers.variable("dense/kernel", np.ones(3, "f4"))
        optimizer = lars.LARS(weight_decay=0.1 * grid.world.rank, parallel=grid.world)
        optimizer.apply([tf.ones([3])], [variable])

    with pytest.raises(threads.RanksFailed, match="The ranks disagree on what LARS updates.*weight_decay"):
        threads.run(2, 1, one_rank)


# ---- the choice ----


@given(st.dictionaries(st.sampled_from([choices.NODE, choices.WORLD]), st.floats(0.01, 10), min_size=1))
def test_sharing_must_win_clearly(shared):
    rounds = {choices.ALONE: [1.0] * 3, **{name: [taken] * 3 for name, taken in shared.items()}}
    chosen = choices.choose(dict.fromkeys(rounds), rounds)
    best = min(shared.values())
    assert (chosen.way == choices.ALONE) == (best > 1 - choices.MARGIN)
    if chosen.way != choices.ALONE:
        assert shared[chosen.way] == best


def test_sharing_must_win_nearly_always():
    noisy = {choices.ALONE: [1.0, 1.0, 3.0, 3.0, 3.0], choices.WORLD: [2.0] * 5}
    assert str(choices.choose(dict.fromkeys(noisy), noisy)) == (
        "each rank alone: 3 ms for the norms of a step; shared by all ranks 2 ms (faster in 60% of the rounds: too "
        "little to tell from noise)"
    )
    noisy[choices.ALONE][0] = 3.0
    assert choices.choose(dict.fromkeys(noisy), noisy).way == choices.WORLD


def test_a_choice_says_why():
    rounds = {choices.ALONE: [5.25], choices.WORLD: [2.5]}
    chosen = choices.choose(dict.fromkeys(rounds), rounds)
    assert str(chosen) == "shared by all ranks: 2.5 ms for the norms of a step; each rank alone 5.25 ms"
    assert chosen.milliseconds == {choices.ALONE: 5.25, choices.WORLD: 2.5}
    rounds[choices.WORLD] = [9.0]
    chosen = choices.choose(dict.fromkeys(rounds), rounds)
    assert str(chosen) == "each rank alone: 5.25 ms for the norms of a step; shared by all ranks 9 ms"


@pytest.mark.parametrize("slow", [choices.ALONE, choices.WORLD])
def test_all_ranks_take_the_way_that_is_cheaper_for_the_slowest(slow, monkeypatch):
    """One way is slow on rank 1; for rank 0 alone it is the cheaper one."""
    clock = threading.local()  # each rank's own, advanced only by its own work, so that other load does not count
    monkeypatch.setattr(timing, "time", types.SimpleNamespace(perf_counter=lambda: clock.now))

    def one_rank(grid):
        clock.now = 0.0
        candidates = {choices.ALONE: None, choices.WORLD: grid.world}

        def run(communicator, name):
            way = choices.WORLD if communicator else choices.ALONE
            if grid.world.rank == 1 and way == slow:
                clock.now += 0.2
            elif grid.world.rank == 0 and way != slow:
                clock.now += 0.05
            return tf.zeros([])

        return choices.choose(candidates, choices.measure(candidates, run, grid.world, "test"))

    first, second = threads.run(2, 1, one_rank)
    assert first.way == second.way != slow
    assert first.milliseconds == second.milliseconds and first.reason == second.reason
    assert first.milliseconds[slow] == pytest.approx(200) and first.milliseconds[first.way] == pytest.approx(50)


def test_the_first_rank_tells_the_choice(monkeypatch):
    here, told = threading.local(), []
    topology = types.SimpleNamespace(
        is_initialized=lambda: True, world=lambda: here.grid.world, node=lambda: here.grid.node
    )
    monkeypatch.setitem(sys.modules, "hvd_sparse.topology", topology)
    log = logging.getLogger("hvd_sparse.lars")
    monkeypatch.setattr(log, "info", lambda text, *words: told.append((here.grid.world.rank, text % words)))

    def one_rank(grid):
        here.grid = grid
        optimizer = lars.LARS(parallel=True)
        optimizer.apply([tf.ones([3])], [layers.variable("dense/kernel", np.ones(3, "f4"))])
        return str(optimizer.choice)

    first, second = threads.run(2, 2, one_rank)
    assert first == second and told == [(0, f"LARS, norms of 3 elements, {first}")]


def test_without_ranks_there_is_nothing_to_choose():
    for parallel, reason in ((True, "there is one rank"), (False, "parallel=False")):
        optimizer = lars.LARS(parallel=parallel)
        assert optimizer.choice is None
        optimizer.apply([tf.ones([1])], [layers.variable("dense/kernel", np.ones(1, "f4"))])
        assert str(optimizer.choice) == f"each rank alone: {reason}"


def test_without_hvd_sparse_there_is_one_rank(monkeypatch):
    monkeypatch.delitem(sys.modules, "hvd_sparse.topology", raising=False)
    assert choices.world() is None
    assert choices.ways() == {choices.ALONE: None}
