"""What clients compute before they push: momentum, or a whole optimizer step, whose updates servers subtract."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_sparse.aggregators import Compressed
from hvd_sparse.compression.error_feedback import ErrorFeedback
from hvd_sparse.compression.momentum import MomentumCorrection
from hvd_sparse.compression.quantizers import QSGD, TwoBits
from hvd_sparse.compression.selectors import MSTopK, Quantized, TopK
from hvd_sparse.compression.thresholds import SampledThreshold
from hvd_sparse.compression.updates import LocalUpdates
from hvd_sparse.optimizers import kinds
from hvd_sparse.optimizers.shard_slots import TwinSlots
from hvd_sparse.servers import ShardedServers, local
from hvd_sparse.servers.applying import ServedPieces
from hvd_sparse.servers.rules import InOrderOfArrival, Together
from hvd_sparse.spec import LocalOptimizer, Spec
from tests import threads
from tests.servers.simulated import SHAPES, Job, variables, whole_of
from tests.servers.test_laws import gradient
from tests.simulation import same_bits

SIZE = whole_of(1).size
SEEDS = st.integers(0, 2**32 - 1)
few = settings(max_examples=8, deadline=None)
SELECTIONS = st.sampled_from([TopK(0.3), TopK(1.0), SampledThreshold(0.3), Quantized(TopK(0.5), TwoBits())])


def optimizer(name: str, **options) -> keras.optimizers.Optimizer:
    return keras.optimizers.get({"class_name": name, "config": {"learning_rate": 0.1, "weight_decay": 0.0, **options}})


def together(job: Job, vectors) -> None:
    """A step of all clients; their pushes arrive in any order."""
    for client in np.random.default_rng(len(vectors)).permutation(job.ranks):
        job.send(int(client), vectors[client])
        for server in range(job.ranks):
            job.deliver(int(client), server)
    assert not job.flights


def aggregated(compressor, name: str, job: Job, steps):
    """The results of a compressor's aggregator in each step, shard by shard, if each rank runs an optimizer."""
    shards = [shard for shard in job.shards if shard.size]
    ends = np.cumsum([shard.size for shard in shards])[:-1]

    def one_rank(grid):
        own, means = optimizer(name), []
        runs = LocalOptimizer(lambda spec: TwinSlots(spec, own))
        specs = [Spec(each.size, grid, name=each.name, number=each.number, optimizer=runs) for each in shards]
        states = [Compressed(compressor).init(spec) for spec in specs]
        for number, vectors in enumerate(steps):
            own.iterations.assign(number)
            parts = zip(np.split(vectors[grid.world.rank], ends), states, strict=True)
            given = [Compressed(compressor).aggregate(tf.constant(part), state) for part, state in parts]
            means.append(np.concatenate([each.numpy() for each in given]))
        return means

    return threads.run(ranks=job.ranks, local_size=1, function=one_rank)[0]


@few
@given(ranks=st.integers(1, 3), seed=SEEDS, selection=SELECTIONS, name=st.sampled_from(kinds.names(kinds.Step.ELEMENT)))
def test_synchronous_servers_subtract_what_the_aggregator_gives(ranks, seed, selection, name):
    """The aggregator is `updates(...)` of the same compressor; compared shard by shard, bit for bit."""
    random, push = np.random.default_rng(seed), LocalUpdates(ErrorFeedback(selection))
    job = Job(ranks, lambda: optimizer(name), push, rule=Together(), seed=seed)
    steps = [[gradient(random) for _ in range(ranks)] for _ in range(3)]
    for vectors, mean in zip(steps, aggregated(push, name, job, steps), strict=True):
        before = job.parameters()
        together(job, vectors)
        same_bits(job.parameters(), before - mean)


@few
@given(ranks=st.integers(1, 3), seed=SEEDS, selection=SELECTIONS)
def test_synchronous_servers_apply_the_momentum_that_the_aggregator_gives(ranks, seed, selection):
    random, push = np.random.default_rng(seed), MomentumCorrection(ErrorFeedback(selection), momentum=0.9)
    job = Job(ranks, lambda: optimizer("SGD"), push, rule=Together(), seed=seed)
    steps = [[gradient(random) for _ in range(ranks)] for _ in range(3)]
    for vectors, mean in zip(steps, aggregated(push, "SGD", job, steps), strict=True):
        before = job.parameters()
        together(job, vectors)
        same_bits(job.parameters(), before - mean * np.float32(0.1))


@few
@given(ranks=st.integers(1, 4), seed=SEEDS, selection=SELECTIONS, pushes=st.integers(1, 3))
def test_updates_of_plain_descent_are_gradients_times_the_rate(ranks, seed, selection, pushes):
    """With a learning rate that is a power of two, so that it rounds nothing; the parameters are then the same."""
    rule, ends = InOrderOfArrival(pushes_per_update=pushes), []
    for push in (ErrorFeedback(selection), LocalUpdates(ErrorFeedback(selection))):
        random = np.random.default_rng(seed)
        job = Job(ranks, lambda: optimizer("SGD", learning_rate=0.25), push, rule=rule, seed=seed)
        for _ in range(6):
            job.step(int(random.integers(ranks)), gradient(random), rate=0.25)
        ends.append(job.parameters())
    same_bits(*ends)


def flat(weights) -> np.ndarray:
    return np.concatenate([weight.numpy().reshape(-1) for weight in weights])


@pytest.mark.parametrize("name", kinds.names(kinds.Step.ELEMENT))
def test_one_client_that_sends_all_trains_as_the_optimizer_alone(name):
    """Including weight decay, which the servers apply."""
    push, random = LocalUpdates(ErrorFeedback(TopK(1.0))), np.random.default_rng(3)
    job = Job(1, lambda: optimizer(name, weight_decay=0.1), push, seed=5)
    alone, weights = optimizer(name, weight_decay=0.1), variables(np.random.default_rng(5))
    for _ in range(4):
        vector = gradient(random)
        job.step(0, vector)
        parts = np.split(vector, np.cumsum([int(np.prod(shape)) for shape in SHAPES])[:-1])
        alone.apply([tf.reshape(part, shape) for part, shape in zip(parts, SHAPES, strict=True)], weights)
    np.testing.assert_allclose(job.parameters(), flat(weights), rtol=1e-5)


def test_what_is_not_to_decay_does_not():
    own, weights = optimizer("AdamW", weight_decay=0.5), variables(np.random.default_rng(0))
    own.exclude_from_weight_decay([weights[1]])
    served = ServedPieces(local.subtraction(own), weights, whole_of(1))
    served.apply(tf.zeros([SIZE]), 0.5)
    same_bits(served.vector().numpy(), flat(weights) * np.repeat(np.float32([0.75, 1.0, 0.75]), [12, 5, 1]))


def test_a_client_counts_its_own_steps():
    """Adam corrects its moments by the number of its own gradients, however many the others push."""
    push, vector = LocalUpdates(ErrorFeedback(TopK(1.0))), np.ones(SIZE, np.float32)
    job = Job(2, lambda: optimizer("Adam", learning_rate=0.5), push)
    for each in job.optimizers:
        each.iterations.assign(1000)
    before = job.parameters()
    job.step(1, vector)
    np.testing.assert_allclose(before - job.parameters(), 0.5 * vector, rtol=1e-4)


@pytest.mark.parametrize("kind", ["updates", "momentum", "drawn"])
def test_a_client_goes_on_to_the_bit(kind):
    """It resumes from its slots and residual; on another number of servers, momentum and slots start again."""
    push = {
        "updates": LocalUpdates(ErrorFeedback(TopK(0.3))),
        "momentum": MomentumCorrection(ErrorFeedback(TopK(0.3)), momentum=0.9),
        "drawn": ErrorFeedback(Quantized(MSTopK(0.3), QSGD(2))),
    }[kind]
    random = np.random.default_rng(1)
    jobs = [Job(ranks, lambda: optimizer("Adam"), push) for ranks in (2, 2, 3)]
    first, second, other = (job.pushing[0] for job in jobs)
    for _ in range(3):
        first.choose([tf.constant(gradient(random))])
    second.restore(first.waiting().numpy(), first.memory())
    vector = tf.constant(gradient(random))
    for mine, its in zip(first.choose([vector]), second.choose([vector]), strict=True):
        for one, another in zip(mine, its, strict=True):
            np.testing.assert_array_equal(one.numpy(), another.numpy())
    begun = {name: value.copy() for name, value in other.memory().items()}
    other.restore(first.waiting().numpy(), first.memory())
    same_bits(other.waiting().numpy(), first.waiting().numpy())
    assert all((other.memory()[name] == value).all() for name, value in begun.items())


@pytest.mark.parametrize(
    ("push", "own", "complaint"),
    [
        (LocalUpdates(ErrorFeedback(TopK(0.1)), ahead=True, gathers=True), "Adam", "leave gathers=True out"),
        (LocalUpdates(ErrorFeedback(TopK(0.1))), "Nadam", "A client cannot run Nadam"),
        (MomentumCorrection(ErrorFeedback(TopK(0.1))), "SGD", "set it, MomentumCorrection"),
        (MomentumCorrection(ErrorFeedback(TopK(0.1)), momentum=0.9), "Adam", "Adam has beta_1=0.9"),
    ],
)
def test_what_clients_cannot_do_is_refused(push, own, complaint):
    with pytest.raises(ValueError, match=complaint):
        ShardedServers(optimizer(own), push)
