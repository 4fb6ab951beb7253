"""A rank whose process has died returns to averaging by datagrams."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
from collections.abc import Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse.averaging import Datagrams, Lossy, ModelAveraging
from hvd_sparse.averaging.datagrams import End, Ticket
from hvd_sparse.averaging.optimizer import averaged
from hvd_sparse.averaging.participant import Participant, Settings
from hvd_sparse.averaging.returning import Return, take_over
from tests import threads
from tests.averaging import dying_rank, orphaned_rank
from tests.averaging.group import LONG, Ranks
from tests.averaging.relay import Habits
from tests.parallel import launch
from tests.simulation import same_bits

TICKET = Ticket(1, 5, True, [End("127.0.0.1", 4000 + rank, 7, "") for rank in range(2)], "ab" * 32)


@contextlib.contextmanager
def living(group: Ranks, own: np.ndarray, dead: int) -> Iterator[list[np.ndarray]]:
    """Ranks with equal vectors keep averaging them, and one of them has been restarted.

    Yields:
        The ranks that the first one expected in each round, as in `Averaged`; complete after the block.
    """
    group.average(np.stack([own] * 3), 0)
    group.channels[dead].close()
    group.begin_anew(dead)
    over = threading.Event()
    expected: dict[int, list[np.ndarray]] = {rank: [] for rank in range(3) if rank != dead}

    def live(rank: int) -> None:
        round = 0
        while not over.is_set():
            averaged = group.channels[rank].average(tf.constant(own), tf.constant(round, tf.int64))
            expected[rank].append(averaged.expected.numpy())
            round = int(averaged.round) + 1

    running = [threading.Thread(target=live, args=(rank,)) for rank in expected]
    for thread in running:
        thread.start()
    try:
        yield expected[min(expected)]
    finally:
        over.set()
        for thread in running:
            thread.join()


@pytest.mark.parametrize("drops", [0.2, pytest.param(0.0, marks=pytest.mark.thorough)])
def test_who_comes_back_takes_over_what_the_others_have_and_contributes_nothing_before(ranks, drops):  # noqa: F811
    group = ranks(3, 20_001, Habits(drops=drops, seed=5), patience=0.3)
    own = np.random.default_rng(3).integers(-1000, 1000, 20_001).astype(np.float32)  # the mean of three is exact
    with living(group, own, 2) as expected:
        vector, round = take_over(group.channels[2])
        same_bits(vector, own)  # a zero of its own in the mean would make it smaller
        averaged = group.channels[2].average(tf.constant(own), tf.constant(round, tf.int64))
        group.channels[2].close()
    assert int(averaged.round) >= round > 0
    of_guest = np.stack([each[:, 2] for each in expected])
    listened = (of_guest[:, 0] == 0) & (of_guest[:, 1] > 0)
    assert listened.any(), "it was there, and nothing of it was to come"


def test_where_nobody_takes_part_there_is_nothing_to_take_over():
    transport = Datagrams("127.0.0.1", patience=0.002)
    grid = threads.grids(1, 1)[0]
    channel = transport.open(5, grid.world, True, "alone")
    with pytest.raises(RuntimeError, match="No rank is averaging, so rank 0 has no model"):
        take_over(channel)
    channel.close()
    with pytest.raises(OSError, match="closed"):
        channel.segments()


def test_a_ticket_is_whole_and_its_secret_is_not_shown():
    ticket = Return(TICKET, {"every": 2})
    told = ticket.to_bytes()
    assert Return.from_bytes(told) == ticket
    assert TICKET.secret not in repr(ticket)
    for other in (told[:-3], b"", b"[1, 2]", told.replace(b"ab", b"xy"), told.replace(b"[1, 5", b"[2, 5")):
        with pytest.raises(ValueError, match=r"Expected a complete ticket from hvd.averaging.ticket") as refused:
            Return.from_bytes(other)
        assert "ab" * 32 not in str(refused.value)


@pytest.mark.parametrize(
    "options, told",
    [
        ({"transport": Lossy(0.1)}, "solely as datagrams, .* not Lossy"),
        ({"transport": Datagrams(), "resynchronise_every": 3}, "only if no round is exact"),
        ({"transport": Datagrams(), "max_distance": 1.0}, "only if no round is exact"),
    ],
)
def test_where_nobody_can_come_back_is_said(options, told):
    optimizer = ModelAveraging(keras.optimizers.SGD(0.1), **options)
    with pytest.raises(ValueError, match=told):
        hvd.averaging.ticket(optimizer)
    with pytest.raises(ValueError, match=told):
        hvd.averaging.return_with(optimizer, Return(TICKET, {}).to_bytes())


def test_another_model_and_other_settings_are_told_before_anything_is_opened():
    participant = Participant(Settings(Datagrams()))
    participant.return_with(Return(TICKET, {"every": 2}))
    with pytest.raises(ValueError, match=r"cannot take the place .* has every = 1, the job has every = 2|every = 1"):
        participant.come_back([tf.Variable(tf.zeros([5]))])


def test_what_is_exact_is_refused_in_words_on_a_rank_that_has_come_back():
    transport = Datagrams("127.0.0.1", least=LONG, patience=0.3)
    left = threading.Event()

    def one_rank(grid):
        rank = grid.world.rank
        variable = tf.Variable(tf.fill([5], 3.0))
        participant = Participant(Settings(dataclasses.replace(transport)))
        participant.begin([variable], [], grid.world, "returns")
        if rank == 1:
            ticket = Return.from_bytes(participant.ticket.to_bytes())
            participant.close()
            return _return_and_ask(ticket, transport, left)
        while not left.is_set():
            participant.take_part()
        participant.close()
        return None

    calls = threads.run(2, 1, one_rank)[1]
    assert calls > 0


def _return_and_ask(ticket: Return, transport: Datagrams, left: threading.Event) -> int:
    try:
        variable = tf.Variable(tf.zeros([5]))
        participant = Participant(Settings(transport))
        with pytest.raises(RuntimeError, match="has not started"):
            participant.ticket  # noqa: B018 - it is to raise
        participant.return_with(ticket)
        calls = participant.come_back([variable])
        assert variable.numpy().tolist() == [3.0] * 5
        participant.take_part()
        assert participant.calls == 1 and participant.ticket.channel.rank == 1
        for refused in (participant.resynchronise, participant.require_mean):
            with pytest.raises(RuntimeError, match="has replaced a lost one"):
                refused()
        with pytest.raises(RuntimeError, match="has already been used"):
            participant.return_with(ticket)
        participant.close()
        return calls
    finally:
        left.set()


def test_an_optimizer_takes_over_the_model_and_where_schedules_are():
    transport, back = Datagrams("127.0.0.1", least=LONG, patience=0.3), threading.Event()

    def one_rank(grid):
        held = keras.Variable(np.full(5, 3.0, "f4"))
        participant = Participant(Settings(transport, every=2))
        participant.begin([held], [], grid.world, "schedules", passes=2)
        calls = 0
        while not back.is_set() and (grid.world.rank == 0 or calls < 8):
            participant.take_part()
            calls += 1
        participant.close()
        return _returned(participant.ticket.to_bytes(), transport, held.name, back) if grid.world.rank else None

    weights, steps, round = threads.run(2, 1, one_rank)[1]
    assert weights == [3.0] * 5 and round >= 3
    assert steps == 2 * round  # a step has two calls, and a round two steps


def _returned(ticket: bytes, transport: Datagrams, name: str, back: threading.Event) -> tuple[list[float], int, int]:
    try:
        inner = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
        optimizer = ModelAveraging(inner, transport, every=2)
        hvd.averaging.return_with(optimizer, ticket)
        variable = keras.Variable(np.zeros(5, "f4"), name=name)
        optimizer.build([variable])
        hvd.averaging.close(optimizer)
        return variable.numpy().tolist(), int(optimizer.iterations), int(averaged(optimizer)._round)
    finally:
        back.set()


@pytest.mark.thorough
def test_a_rank_of_horovod_s_that_is_killed_is_survived_and_comes_back(tmp_path):
    """Models converge again: after some rounds all ranks, including the returned one, have the same bits."""
    ended = launch.horovodrun(2, ["-m", "tests.keep_rank", "tests.averaging.dying_rank", str(tmp_path)], limit=200.0)
    assert ended.status == 0, ended.output
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    back = told[dying_rank.DIES]
    shared = [number for number in back["rounds"] if all(number in each["rounds"] for each in told)]
    alike = [number for number in shared if len({each["rounds"][number] for each in told}) == 1]
    assert len(alike) >= dying_rank.WHOLE - 1, (shared, alike)
    assert min(map(int, back["rounds"])) > dying_rank.STEPS and back["steps"] > dying_rank.STEPS


@pytest.mark.thorough
def test_the_exact_mean_after_the_end_of_a_rank_is_an_error_that_says_what_to_do(tmp_path):
    """It does not hang; averaging by datagrams continues, and a copy of the model can be saved."""
    command = ["-m", "tests.keep_rank", "tests.averaging.orphaned_rank", str(tmp_path)]
    ended = launch.horovodrun(2, command, limit=200.0)
    assert ended.status == 0, ended.output
    told = (tmp_path / orphaned_rank.TOLD).read_text().splitlines()
    assert len(told) == 2 and (tmp_path / "copy.keras").exists()
    for each in told:
        assert "could not be gathered" in each and f"ranks {dying_rank.DIES} no longer answer" in each
        assert "clone_model" in each and "return_with" in each
