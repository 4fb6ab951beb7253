"""Checkpoints of servers during training: what was pushed equals what was applied plus what is kept."""

from __future__ import annotations

import threading

import keras
import numpy as np
import pytest

from hvd_sparse.compression.error_feedback import ErrorFeedback
from hvd_sparse.compression.selectors import TopK
from hvd_sparse.servers.applying import LazyPieces, ServedPieces
from hvd_sparse.servers.connections import SaveError
from hvd_sparse.servers.messages import Entries
from hvd_sparse.servers.pushing import cut
from hvd_sparse.servers.rules import InOrderOfArrival, Together
from hvd_sparse.servers.saving import Flight
from tests.servers import members as job
from tests.servers.simulated import some, variables, whole_of

SIZE = whole_of(1).size
SPARSE = job.ASYNCHRONOUS._replace(push=ErrorFeedback(TopK(0.3)), pull=TopK(0.3))


class Saver:
    """What each rank wrote to each checkpoint, and the number of pushes it had begun by then."""

    def __init__(self, members, settings):
        self.members = members
        self.pushes = [job.pushing(member, settings) for member in members]
        self.kept = [{} for _ in members]
        self._begun = [0] * len(members)
        for rank, member in enumerate(members):
            member.keeper.unsent = lambda rank=rank: self._unsent(rank)
            member.keeper.write = lambda number, kept, rank=rank: self._write(rank, number, kept)
            member.keeper.begin()

    def _unsent(self, rank):
        self._begun[rank] = self.members[rank].keeper.flight._number
        return self.pushes[rank].waiting().numpy()

    def _write(self, rank, number, kept):
        self.kept[rank][number] = (self._begun[rank], kept)
        return f"{rank} {number}"


@pytest.mark.parametrize(
    "settings",
    [
        SPARSE,
        SPARSE._replace(rule=InOrderOfArrival(max_staleness=1, pushes_per_update=2)),
        SPARSE._replace(rule=Together()),
        job.ASYNCHRONOUS,
    ],
    ids=["sparse", "bounded", "synchronous", "dense"],
)
def test_nothing_is_lost_and_nothing_counts_twice(settings):
    """With plain descent at rate 1 and integer gradients, all sums are exact."""
    ranks, steps, checkpoints = 3, 24, 4
    divisor = {1: 1, 2: 2}.get(getattr(settings.rule, "pushes_per_update", 3), 3)
    members = job.started(ranks, settings)
    start = members[0].connections.published()
    saver = Saver(members, settings)
    gradients = divisor * np.random.default_rng(7).integers(-3, 4, (ranks, steps, SIZE)).astype(np.float32)

    def train(rank: int) -> None:
        for number, gradient in enumerate(gradients[rank]):
            flight = members[rank].keeper.flight
            flight.begin()
            job.step(members[rank], saver.pushes[rank], gradient, rate=1.0)
            if rank == 0 and number % (steps // checkpoints) == 2:
                assert members[0].connections.save(number) == [f"{each} {number}" for each in range(ranks)]
        members[rank].connections.leave()

    job.each(ranks, train)
    for number in saver.kept[0]:
        taken = [saver.kept[rank][number] for rank in range(ranks)]
        parameters = np.concatenate([kept.state.arrays["parameters"] for _, kept in taken])
        gathered = np.concatenate([kept.state.gathered for _, kept in taken])
        unsent = sum(kept.unsent for _, kept in taken)
        went_in = sum(gradients[rank, :begun].sum(0) for rank, (begun, _) in enumerate(taken))
        applied = divisor * (start - parameters)
        np.testing.assert_allclose(applied + gathered + unsent, went_in, atol=1e-4)
    assert len(saver.kept[0]) == checkpoints
    job.finish(members)


def test_a_rank_that_cannot_write_is_named_and_training_goes_on():
    members = job.started(2)
    saver = Saver(members, job.ASYNCHRONOUS)
    job.step(members[0], saver.pushes[0], np.ones(SIZE, np.float32))
    members[1].keeper.write = None
    with pytest.raises(SaveError, match="rank 1: RuntimeError: this rank's model has no callback"):
        members[0].connections.save(1)

    def full(number, kept):
        raise OSError("the disk is full " + 10_000 * "\N{SNOWMAN}")

    members[1].keeper.write = full
    with pytest.raises(SaveError, match="rank 1: OSError: the disk is full"):
        members[0].connections.save(2)
    for rank in range(2):
        job.step(members[rank], saver.pushes[rank], np.ones(SIZE, np.float32))
    job.finish(members)


def test_a_rank_that_has_joined_and_not_begun_is_waited_for(monkeypatch):
    members = job.started(2)
    saver = Saver(members[:1], job.ASYNCHRONOUS)
    saves = threading.Thread(target=lambda: members[0].connections.save(1))
    saves.start()
    saves.join(0.2)
    assert saves.is_alive() and saver.kept == [{}]
    saver = Saver(members, job.ASYNCHRONOUS)
    saves.join(30.0)
    assert [list(kept) for kept in saver.kept] == [[1], [1]]
    members[1].keeper._begun.clear()
    monkeypatch.setattr("hvd_sparse.servers.saving._REST", 0.1)
    with pytest.raises(SaveError, match="rank 1: .*has not started to train"):
        members[0].connections.save(2)
    job.finish(members)


def test_servers_go_on_where_who_saves_is_gone():
    members = job.started(2)
    saver = Saver(members, job.ASYNCHRONOUS)
    members[0].connections._tell_each("stand_still")
    stepped = threading.Thread(target=job.step, args=(members[1], saver.pushes[1], np.ones(SIZE, np.float32)))
    stepped.start()
    stepped.join(0.2)
    assert stepped.is_alive(), "servers stand still"
    members[0]._client.close()
    stepped.join(30.0)
    assert not stepped.is_alive()
    assert members[1].shard.pushes == 1
    for member in members:
        member.abandon()


def test_who_was_lost_meanwhile_does_not_save():
    members = job.started(2)
    saver = Saver(members, job.ASYNCHRONOUS)
    members[1].keeper.unsent = lambda: members[1]._service.gone(0) or saver.pushes[1].waiting().numpy()
    with pytest.raises(SaveError, match="rank 1: the connection was lost in the meantime"):
        members[0].connections.save(1)
    assert saver.kept == [{}, {}]
    job.finish(members)


def test_a_residual_is_not_looked_at_while_it_moves(monkeypatch):
    monkeypatch.setattr("hvd_sparse.servers.saving._REST", 0.1)
    flight = Flight()
    flight.begin()
    with pytest.raises(TimeoutError, match="a step has failed"), flight.watched():
        pass
    sent = [Entries(np.ones(1, np.float32))]
    flight.sends(1, sent)
    with flight.watched() as (number, parts):
        assert (number, parts) == (1, sent)
        beginning = threading.Thread(target=flight.begin)
        beginning.start()
        beginning.join(0.1)
        assert beginning.is_alive()
    beginning.join(10.0)
    assert not beginning.is_alive()


EACH_SHARD = [(name, ServedPieces) for name in ("SGD", "Adam", "Nadam", "RMSprop", "Ftrl")] + [("Adam", LazyPieces)]


@pytest.mark.parametrize(("name", "pieces"), EACH_SHARD)
def test_a_shard_goes_on_to_the_bit(name, pieces):
    """State is saved from a server and its optimizer after some pushes, and restored into another server."""

    def optimizer():
        return keras.optimizers.get({"class_name": name, "config": {"learning_rate": 0.1, "weight_decay": 0.01}})

    spec = cut(whole_of(2), 2)[0]
    first = pieces(optimizer(), variables(np.random.default_rng(1)), spec)
    random = np.random.default_rng(2)

    def mean():
        gathered = first.gathering()
        gathered.add(some(random, spec.size))
        return gathered.mean()

    for _ in range(3):
        first.apply(mean(), 0.1)
    other = pieces(optimizer(), variables(np.random.default_rng(3)), spec)
    other.restore(first.state())
    gradient = mean()
    for each in (first, other):
        each.apply(gradient, 0.1)
    for key, value in first.state().items():
        np.testing.assert_array_equal(value, other.state()[key], err_msg=key)
    with pytest.raises(ValueError, match="from another optimizer"):
        other.restore({"parameters": np.zeros(spec.size, np.float32)})
