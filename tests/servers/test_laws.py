"""Properties of sharded servers, without a network: what is sent, lost, sent again and applied."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_sparse.aggregators import Compressed
from hvd_sparse.compression.error_feedback import ErrorFeedback
from hvd_sparse.compression.held import HeldThreshold
from hvd_sparse.compression.quantizers import QSGD, OneBit, TwoBits
from hvd_sparse.compression.selectors import BucketTopK, Quantized, TopK
from hvd_sparse.compression.thresholds import SampledThreshold
from hvd_sparse.servers import ShardedServers
from hvd_sparse.servers.applying import LazyPieces, ServedPieces
from hvd_sparse.servers.messages import Codes, Entries, MessageError, Pull, Push
from hvd_sparse.servers.pushing import Copy, cut
from hvd_sparse.servers.rules import InOrderOfArrival, Together
from hvd_sparse.spec import Segment, Spec
from tests import threads
from tests.servers.simulated import SHAPES, Job, variables, whole_of
from tests.simulation import same_bits

OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(0.1),
    "Nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "Adam": lambda: keras.optimizers.Adam(0.1),
    "AdamW": lambda: keras.optimizers.AdamW(0.1, weight_decay=0.01),
    "RMSprop": lambda: keras.optimizers.RMSprop(0.1),
    "Adagrad": lambda: keras.optimizers.Adagrad(0.1),
}
SIZE = whole_of(1).size
RANKS = st.integers(1, 5)
SEEDS = st.integers(0, 2**32 - 1)
SELECTIONS = st.sampled_from([None, TopK(0.2), SampledThreshold(0.2), HeldThreshold(0.2, life=2), BucketTopK(1, 5)])
CODED = [Quantized(TopK(0.5), TwoBits()), Quantized(SampledThreshold(0.3), OneBit()), Quantized(TopK(0.3), QSGD(2))]
PULLS = st.one_of(SELECTIONS, st.sampled_from(CODED))
PIECES = st.sampled_from([ServedPieces, LazyPieces])
few = settings(max_examples=15, deadline=None)


def gradient(random) -> np.ndarray:
    return random.standard_normal(SIZE).astype(np.float32)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_client_at_rate_0_trains_as_the_optimizer_alone(name):
    """Rate 0, asynchronous, one worker: plain training, bit for bit."""
    random = np.random.default_rng(3)
    job, alone, weights = Job(1, OPTIMIZERS[name], seed=5), OPTIMIZERS[name](), variables(np.random.default_rng(5))
    for _ in range(6):
        vector = gradient(random)
        job.step(0, vector)
        parts = np.split(vector, np.cumsum([int(np.prod(shape)) for shape in SHAPES])[:-1])
        alone.apply([tf.reshape(part, shape) for part, shape in zip(parts, SHAPES, strict=True)], weights)
        flat = np.concatenate([weight.numpy().reshape(-1) for weight in weights])
        assert job.copies[0].values.tobytes() == flat.tobytes()


@few
@given(ranks=RANKS, seed=SEEDS, selection=SELECTIONS)
def test_what_is_sent_and_what_is_kept_make_up_the_input(ranks, seed, selection):
    random = np.random.default_rng(seed)
    job = Job(ranks, OPTIMIZERS["SGD"], push=selection, seed=seed)
    for _ in range(3):
        client, vector = int(random.integers(ranks)), gradient(random)
        before = job.pushing[client].waiting().numpy()
        job.send(client, vector)
        sent = np.zeros(SIZE, np.float32)
        for server, push in job.flights[client].items():
            spec = job.shards[server]
            push.gradient.set_in(sent[spec.offset : spec.offset + spec.size])
        np.testing.assert_array_equal(sent + job.pushing[client].waiting().numpy(), before + vector)
        for server in range(ranks):
            job.deliver(client, server)


@few
@given(seed=SEEDS, selection=SELECTIONS, exponent=st.integers(-8, 8))
def test_what_is_chosen_scales_with_the_gradient(seed, selection, exponent):
    """Scaled by a power of two, which is exact: the same places, and values scaled by the same factor."""
    vector, factor = gradient(np.random.default_rng(seed)), np.float32(2.0**exponent)
    plain, scaled = (Job(2, OPTIMIZERS["SGD"], push=selection, seed=seed) for _ in range(2))
    plain.send(0, vector)
    scaled.send(0, factor * vector)
    for server, push in plain.flights[0].items():
        other = scaled.flights[0][server].gradient
        np.testing.assert_array_equal(other.values, factor * push.gradient.values)
        assert selection is None or (other.indices == push.gradient.indices).all()


@few
@given(ranks=RANKS, seed=SEEDS, push=SELECTIONS, pull=PULLS, pieces=PIECES)
def test_lost_answers_do_no_harm(ranks, seed, push, pull, pieces):
    """Messages and answers are lost and sent again; `Job.arrive` compares each copy with what the server has sent."""
    calm, rough = (Job(ranks, OPTIMIZERS["Adam"], push, pull, seed=seed, pieces=pieces) for _ in range(2))
    random, losses = np.random.default_rng(seed), np.random.default_rng(seed)
    for _ in range(6):
        client, vector = int(random.integers(ranks)), gradient(random)
        calm.step(client, vector)
        rough.send(client, vector)
        for server in range(ranks):
            while losses.random() < 0.5:
                rough.deliver(client, server, lost=True)
            rough.deliver(client, server)
    assert calm.parameters().tobytes() == rough.parameters().tobytes()
    for one, other in zip(calm.copies, rough.copies, strict=True):
        assert one.values.tobytes() == other.values.tobytes()


@few
@given(ranks=RANKS, seed=SEEDS, push=SELECTIONS, pull=PULLS, pieces=PIECES)
def test_who_begins_again_at_any_time_sends_nothing_twice(ranks, seed, push, pull, pieces):
    """A client that has lost its connection does not know whether its push was applied; it continues where it was."""
    job = Job(ranks, lambda: keras.optimizers.SGD(1.0), push, pull, seed=seed, pieces=pieces)
    random, start, went_in = np.random.default_rng(seed), job.parameters(), np.zeros(SIZE, np.float32)
    for _ in range(6):
        client, vector = int(random.integers(ranks)), random.integers(-9, 10, SIZE).astype(np.float32)
        went_in += vector
        job.send(client, vector, rate=1.0)
        for server in range(ranks):
            if random.random() < 0.5:
                job.deliver(client, server, lost=True)
            if random.random() < 0.5:
                job.begin_again(client, server)
            if server in job.flights.get(client, {}):
                job.deliver(client, server)
    kept = sum(each.waiting().numpy() for each in job.pushing)
    np.testing.assert_allclose(start - job.parameters() + kept, went_in, atol=1e-4)


def as_variables(shard: Spec) -> tuple[Segment, ...]:
    """A shard's part of each variable, as separate variables."""
    return tuple(Segment(str(place.segment), (place.size,)) for place in shard.places)


@few
@given(ranks=RANKS, seed=SEEDS, push=SELECTIONS, pieces=PIECES)
def test_synchronous_servers_give_what_the_aggregator_gives(ranks, seed, push, pieces):
    """With a rate of 1 and plain descent, parameters decrease by the mean of the same compressor's aggregator."""
    random = np.random.default_rng(seed)
    job = Job(ranks, lambda: keras.optimizers.SGD(1.0), push, rule=Together(), seed=seed, pieces=pieces)
    compressor = ErrorFeedback(push or TopK(1.0))

    def one_rank(grid):
        aggregator = Compressed(compressor)
        specs = [
            Spec(shard.size, grid, segments=as_variables(shard), name=f"shard{number}", number=number)
            for number, shard in enumerate(shards)
        ]
        states = [aggregator.init(spec) for spec in specs]
        means = []
        for vectors in all_vectors:
            mine = np.split(vectors[grid.world.rank], ends)
            parts = [aggregator.aggregate(tf.constant(part), state) for part, state in zip(mine, states, strict=True)]
            means.append(np.concatenate([part.numpy() for part in parts]))
        return means

    all_vectors = [[gradient(random) for _ in range(ranks)] for _ in range(3)]
    shards = [shard for shard in job.shards if shard.size]
    ends = np.cumsum([shard.size for shard in shards])[:-1]
    expected = threads.run(ranks=ranks, local_size=1, function=one_rank)[0]
    for vectors, mean in zip(all_vectors, expected, strict=True):
        before = job.parameters()
        for client in random.permutation(ranks):
            job.send(int(client), vectors[client], rate=1.0)
            for server in range(ranks):
                job.deliver(int(client), server)
        assert not job.flights
        assert job.parameters().tobytes() == (before - mean).tobytes()
        assert all(copy.values.tobytes() == job.parameters().tobytes() for copy in job.copies)


@few
@given(ranks=RANKS, seed=SEEDS, pull=SELECTIONS, synchronous=st.booleans(), pieces=PIECES)
def test_a_quiescent_system_drains(ranks, seed, pull, synchronous, pieces):
    """When nothing changes any more, pulls make all copies equal to the servers' parameters bit for bit."""
    random = np.random.default_rng(seed)
    job = Job(ranks, OPTIMIZERS["SGD"], None, pull, Together() if synchronous else InOrderOfArrival(), seed, pieces)
    nothing = np.zeros(SIZE, np.float32)
    for step in range(3 + SIZE):
        for client in range(ranks):
            job.send(client, gradient(random) if step < 3 else nothing)
        for client in range(ranks):
            for server in range(ranks):
                job.deliver(client, server)
    assert all(copy.values.tobytes() == job.parameters().tobytes() for copy in job.copies)


@pytest.mark.parametrize("rule", [Together(), InOrderOfArrival()])
@pytest.mark.parametrize("pull", CODED)
def test_differences_in_few_bits_bring_copies_near(pull, rule):
    """They need not become equal, but at every answer they equal the server's record of them (`Job.arrive`)."""
    random, job = np.random.default_rng(1), Job(2, OPTIMIZERS["SGD"], None, pull, rule)
    for step in range(40):
        for client in range(2):
            job.send(client, gradient(random) if step < 3 else np.zeros(SIZE, np.float32))
        for client in range(2):
            for server in range(2):
                job.deliver(client, server)
    for copy in job.copies:
        np.testing.assert_allclose(copy.values, job.parameters(), atol=1e-3)


def test_a_difference_is_added_once_and_to_what_it_is_from():
    shards = cut(whole_of(1), 1)
    copy, coded = Copy(shards), Codes(np.zeros(1, np.uint8), np.zeros(4, np.float32))
    copy.take(0, 0, Pull(0, 0, 0, Entries(np.ones(SIZE, np.float32))))
    change = Entries(np.float32([2.0]), np.int32([3]), coded)
    assert copy.news().indices is None
    for _ in range(2):
        copy.take(0, 1, Pull(1, 1, 1, change))
        assert copy.values[3] == 3.0
    np.testing.assert_array_equal(copy.news().values, [3.0])
    with pytest.raises(MessageError, match="differences from answer 2, where 1 was the last"):
        copy.take(0, 3, Pull(3, 3, 3, change))
    copy.take(0, 3, Pull(3, 3, 3, Entries(np.zeros(SIZE, np.float32))))
    copy.take(0, 4, Pull(4, 4, 4, change))
    assert copy.values[3] == 2.0


@pytest.mark.parametrize("pull", [TopK(0.3), *CODED])
def test_parameters_that_are_not_finite_are_not_hidden(pull):
    job = Job(1, lambda: keras.optimizers.SGD(1.0), None, pull)
    job.send(0, np.full(SIZE, 3e38, np.float32), rate=3e38)
    with pytest.raises(MessageError, match="not finite"):
        job.deliver(0, 0)


@pytest.mark.parametrize(
    ("pull", "complaint"),
    [
        (TopK(0.1, wire_dtype="float16"), r"leave wire_dtype out of TopK, or write Quantized\(TopK"),
        (ErrorFeedback(Quantized(TopK(0.1), TwoBits())), "pass the compressor alone, without ErrorFeedback"),
    ],
)
def test_a_pull_that_cannot_be_is_refused(pull, complaint):
    with pytest.raises(ValueError, match=complaint):
        ShardedServers(keras.optimizers.SGD(), pull=pull)


@pytest.mark.parametrize("pull", [None, TopK(0.3), *CODED])
def test_a_server_of_nothing_serves(pull):
    """With 7 servers for 18 parameters, the last one has none."""
    job, random = Job(7, OPTIMIZERS["Adam"], TopK(0.3) if pull is None else pull, pull), np.random.default_rng(1)
    for _ in range(2):
        job.step(1, gradient(random))
    assert [spec.size for spec in job.shards] == [3] * 6 + [0]
    assert job.pushing[1].waiting().shape == (SIZE,)


@few
@given(
    ranks=RANKS,
    seed=SEEDS,
    bound=st.one_of(st.none(), st.integers(0, 6)),
    together=st.integers(1, 3),
)
def test_staleness_is_bounded_and_nobody_waits_for_ever(ranks, seed, bound, together):
    rule = InOrderOfArrival(bound, together)
    job = Job(ranks, OPTIMIZERS["SGD"], rule=rule, seed=seed)
    random = np.random.default_rng(seed)
    on_the_way: list[tuple[int, int]] = []
    for _ in range(60):
        idle = [client for client in range(ranks) if client not in job.flights]
        if idle and (not on_the_way or random.random() < 0.3):
            client = int(random.choice(idle))
            job.send(client, gradient(random))
            on_the_way += [(client, server) for server in range(ranks)]
            continue
        assert on_the_way or not idle, "all clients wait, and nothing is on the way"
        job.deliver(*on_the_way.pop(int(random.integers(len(on_the_way)))))
    oldest = max(max(server.staleness, default=0) for server in job.servers)
    assert bound is None or oldest <= bound + ranks - 1
    assert all(server.version == server.pushes // together for server in job.servers)


@few
@given(ranks=RANKS, seed=SEEDS, pieces=PIECES)
def test_a_schedule_of_arrivals_gives_the_same_bits_twice(ranks, seed, pieces):
    results = []
    for _ in range(2):
        random = np.random.default_rng(seed)
        job = Job(ranks, OPTIMIZERS["Adam"], SampledThreshold(0.3), SampledThreshold(0.3), seed=seed, pieces=pieces)
        for _ in range(8):
            job.step(int(random.integers(ranks)), gradient(random))
        results.append(job.parameters().tobytes())
    assert results[0] == results[1]


@few
@given(ranks=RANKS, seed=SEEDS, push=SELECTIONS, name=st.sampled_from(["SGD", "Adagrad"]), together=st.integers(1, 3))
def test_lazy_updates_are_exact_where_no_gradient_is_no_change(ranks, seed, push, name, together):
    eager, lazy = (
        Job(ranks, OPTIMIZERS[name], push, rule=InOrderOfArrival(None, together), seed=seed, pieces=pieces)
        for pieces in (ServedPieces, LazyPieces)
    )
    random = np.random.default_rng(seed)
    for _ in range(6):
        client, vector = int(random.integers(ranks)), gradient(random) * (random.random(SIZE) < 0.5)
        for job in (eager, lazy):
            job.step(client, vector)
        assert eager.parameters().tobytes() == lazy.parameters().tobytes()


@few
@given(ranks=RANKS, seed=SEEDS, name=st.sampled_from(sorted(OPTIMIZERS)), together=st.integers(1, 3))
def test_lazy_updates_change_nothing_else_and_that_as_the_optimizer_does(ranks, seed, name, together):
    """Updates from the same state, one after another: the optimizer's own where the mean is not zero."""
    random = np.random.default_rng(seed)
    begin, spec = variables(random), cut(whole_of(ranks), ranks)[0]
    lazy, eager = (pieces(_partly(OPTIMIZERS[name]()), begin, spec) for pieces in (LazyPieces, ServedPieces))
    for _ in range(4):
        gathered, total = lazy.gathering(), np.zeros(spec.size, np.float32)
        for _ in range(together):
            values = random.standard_normal(spec.size).astype(np.float32) * (random.random(spec.size) < 0.3)
            gathered.add(Entries(values))
            total += values
        before = lazy.state()
        eager.restore(before)
        lazy.apply(gathered.mean(), 0.1)
        eager.apply(tf.constant(total / np.float32(together)), 0.1)
        for key, value in eager.state().items():
            expected = value if value.shape == () else np.where(total != 0, value, before[key])
            same_bits(lazy.state()[key], expected)


def _partly(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """An optimizer that does not decay vectors, so that a shard has several pieces."""
    optimizer._use_weight_decay = lambda variable: variable.shape.rank != 1
    return optimizer


@pytest.mark.parametrize(
    ("push", "complaint"),
    [
        (Push(2, 0.1, Entries(np.ones(SIZE, np.float32))), "push 2 of rank 0, where 1 was expected"),
        (Push(1, 0.1, Entries(np.ones(3, np.float32))), "3 values for 18 places"),
        (Push(1, 0.1, Entries(np.ones(1, np.float32), np.array([SIZE], np.int32))), "of a vector of 18"),
        (Push(1, 0.1, Entries(np.ones(1, np.float32), np.array([-1], np.int32))), "places from -1"),
        (Push(1, 0.1, Entries(np.full(SIZE, np.nan, np.float32))), "not finite"),
    ],
)
def test_a_push_that_does_not_fit_is_refused_and_changes_nothing(push, complaint):
    job = Job(1, OPTIMIZERS["SGD"])
    before = job.parameters()
    with pytest.raises(MessageError, match=complaint):
        job.servers[0].push(0, push)
    job.step(0, np.zeros(SIZE, np.float32))
    assert job.parameters().tobytes() == before.tobytes()
    with pytest.raises(MessageError, match="has not begun"):
        job.servers[0].push(1, push)
