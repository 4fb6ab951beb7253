"""Training whose ranks change: in the history that counts each sample is used once an epoch."""

import itertools
import logging
import types

import keras
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import datacache
from datacache import World, dataset
from datacache.elastic import ElasticTraining
from datacache.launchers import Place, place
from datacache.order import Schedule, permutation
from datacache.position import Input
from tests.datacache import resuming
from tests.datacache.resuming import BATCH, COUNT, EPOCHS
from tests.faults.test_datacache_launchers import launched  # noqa: F401 - a fixture

AHEAD = 3  # batches that are read before they are trained on


class State(types.SimpleNamespace):
    """An elastic state, as far as the data are concerned."""

    def __init__(self):
        super().__init__(epoch=0, position=0)


def read_ahead(batches):
    """The same batches, of which several are read ahead."""
    waiting = list(itertools.islice(batches, AHEAD))
    while waiting:
        yield waiting.pop(0)
        waiting += itertools.islice(batches, 1)


def stream_of_all_ranks(prepare, first, equal, begin, map_func):
    """In place of `make_stream`: the global batches, as those of each rank."""

    def batches():
        for epoch in itertools.count(first):
            begin(epoch)
            schedule = prepare(epoch).schedule
            for step in range(len(schedule)):
                parts = [schedule.indices(step, rank) for rank in range(schedule.ranks)]
                assert min(map(len, parts)) > 0 and (not equal or {*map(len, parts)} == {schedule.batch_size})
                yield np.concatenate(parts)

    return read_ahead(batches())


def begin(state, samples, batch, ranks, drop=False):
    """What `DataCache.elastic` makes, and the batches of all ranks."""

    def schedule(epoch, position):
        return Schedule.carrying(samples, 0, batch, ranks, drop, epoch, position)

    needed = Input(schedule, lambda each: types.SimpleNamespace(schedule=each), 0, {"samples": samples}, "")
    training = ElasticTraining(needed, state)
    training.set_model(types.SimpleNamespace(stop_training=False, steps_per_execution=1))
    training.set_params({"steps": training.steps_per_epoch})
    return training, training.dataset()


def steps(training, batches, epochs):
    """`fit`, one step each time; yields the samples of the step, and whether it ends its epoch."""
    training.on_train_begin()
    for epoch in range(training.epoch, epochs):
        training.on_epoch_begin(epoch)
        for batch in range(training.steps_per_epoch):
            trained = next(batches)
            training.on_train_batch_end(batch)
            last = batch + 1 == training.steps_per_epoch or bool(training.model.stop_training)
            if last:
                training.on_epoch_end(epoch)
            yield trained, last
            if last:
                break
        assert not training.model.stop_training


changes = st.lists(
    st.tuples(
        st.integers(1, 9),  # ranks
        st.integers(0, 40),  # steps until they change
        st.integers(1, 4),  # steps from one commit to the next
        st.booleans(),  # whether a rank dies, so that the others go back to the last commit
    ),
    min_size=1,
    max_size=6,
)


def train(samples, batch, epochs, drop, generations):
    """Trains on numbers of ranks that change; returns the steps that count, as (epoch, samples), and the ranks' ends.

    The ends are (number of ranks, state) after each epoch of the history that counts.
    """
    state, history, ends = State(), [], []
    kept = (0, 0), 0, 0
    last = generations[-1][0], 10**6, 1, False
    for ranks, until, every, dies in [*generations, last]:
        training, batches = begin(state, samples, batch, ranks, drop)
        for number, (trained, is_last) in enumerate(steps(training, batches, epochs), 1):
            history.append((state.epoch - is_last, trained))
            if is_last:
                ends.append((ranks, state.position))
            if is_last or number % every == 0:
                kept = (state.epoch, state.position), len(history), len(ends)
            if number >= until:
                break
        if not dies:  # the ranks hand over what they have
            kept = (state.epoch, state.position), len(history), len(ends)
        (state.epoch, state.position), whole, ended = kept
        del history[whole:], ends[ended:]
    return state, history, ends


@given(samples=st.integers(9, 120), batch=st.integers(1, 5), generations=changes)
@example(samples=45, batch=4, generations=[(1, 11, 1, False), (3, 5, 2, True), (2, 7, 3, False)])  # 1 left for 3 ranks
@example(samples=45, batch=4, generations=[(1, 35, 1, False), (3, 1, 1, False)])  # 1 left of the last epoch
@example(samples=45, batch=4, generations=[(9, 2, 1, False), (2, 1, 1, True), (2, 40, 3, True)])  # 9 left for 9 ranks
def test_all_samples_come_once_an_epoch_in_their_order(samples, batch, generations):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dataset, "make_stream", stream_of_all_ranks)
        state, history, ends = train(samples, batch, 3, False, generations)
    everything = np.concatenate([permutation(samples, 0, epoch) for epoch in range(3)])
    trained = np.concatenate([each for _, each in history])
    np.testing.assert_array_equal(trained, everything[: len(trained)])
    assert state.epoch >= 3 and len(trained) == state.epoch * samples + state.position
    most = max(ranks for ranks, *_ in generations)
    assert len(everything) - len(trained) < most
    assert all(-ranks < position <= 0 for ranks, position in ends)


@given(samples=st.integers(45, 120), batch=st.integers(1, 5), generations=changes)
@example(samples=45, batch=5, generations=[(1, 6, 1, False), (4, 0, 1, False)])
def test_what_is_dropped_does_not_come_again(samples, batch, generations):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dataset, "make_stream", stream_of_all_ranks)
        state, history, ends = train(samples, batch, 2, True, generations)
    most = max(ranks for ranks, *_ in generations)
    assert state.position == 0 and state.epoch == 2
    for epoch in range(2):
        trained = np.concatenate([each for number, each in history if number == epoch])
        np.testing.assert_array_equal(trained, permutation(samples, 0, epoch)[: len(trained)])
        assert samples - len(trained) < most * batch


# ---- with fit ----


@pytest.fixture
def make_cache(tmp_path):
    made = []

    def make(**options):
        source = datacache.Indexed(resuming.read, COUNT, "numbers", labels=range(COUNT))
        made.append(
            datacache.DataCache(source, resuming.decode, tmp_path / "local", memory_dir=tmp_path / "shm", **options)
        )
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def model():
    keras.backend.clear_session()
    return resuming.compiled()


class Interrupt(keras.callbacks.Callback):
    """Commits every third batch, like `CommitStateCallback`, and raises an error after a batch."""

    def __init__(self, state, after):
        super().__init__()
        self.state, self.after = state, after
        self.kept = None

    def on_train_begin(self, logs=None):
        self.count = 0
        self.commit()

    def commit(self):
        self.kept = self.state.epoch, self.state.position, self.model.get_weights()

    def on_train_batch_end(self, batch, logs=None):
        self.count += 1
        if self.count % 3 == 0 and not self.model.stop_training:
            self.commit()
        if self.count == self.after:
            raise InterruptedError

    def on_epoch_end(self, epoch, logs=None):
        self.commit()

    def restore(self):
        self.state.epoch, self.state.position, weights = self.kept
        self.model.set_weights(weights)


def fit(model, cache, state, callbacks=(), epochs=EPOCHS):
    training = cache.elastic(state, BATCH)
    arguments = {"initial_epoch": training.epoch, "steps_per_epoch": training.steps_per_epoch, "epochs": epochs}
    return model.fit(training.dataset(), callbacks=[training, *callbacks], verbose=0, **arguments)


@pytest.mark.parametrize("after", [4, pytest.param(13, marks=pytest.mark.thorough)])
def test_fit_goes_on_after_the_last_commit(after, make_cache, model):
    cache, state = make_cache(world=World()), State()
    interrupt = Interrupt(state, after)
    with pytest.raises(InterruptedError):
        fit(model, cache, state, [interrupt])
    assert state.position == after % 10 * BATCH  # not that of what is read ahead
    interrupt.restore()
    fit(model, cache, state)
    np.testing.assert_array_equal(model.get_weights()[0], EPOCHS)
    assert (state.epoch, state.position) == (EPOCHS, 0)


def test_a_rest_that_cannot_be_divided_goes_into_the_next_epoch(make_cache, model, caplog):
    state = State()
    wanted = np.zeros(COUNT)
    for epoch, position in [(0, 0), (1, -2)]:
        schedule = Schedule.carrying(COUNT, 0, BATCH, 3, False, epoch, position)
        for step in range(len(schedule)):
            np.add.at(wanted, schedule.indices(step, 0), 1)
    with caplog.at_level(logging.WARNING):
        history = fit(model, make_cache(world=World(0, 3)), state, epochs=2)
    assert history.epoch == [0, 1] and (state.epoch, state.position) == (2, 0)
    np.testing.assert_array_equal(model.get_weights()[0], wanted)
    told = [each.message for each in caplog.records if each.name.startswith("datacache")]
    assert told == ["datacache: epoch 0 ends with 2 samples for 3 ranks; they go into epoch 1."]


def test_fewer_samples_than_ranks_after_a_change_begin_the_next_epoch(make_cache, caplog):
    state = types.SimpleNamespace(epoch=1, position=COUNT - 2)
    with caplog.at_level(logging.WARNING):
        training = make_cache(world=World(0, 3)).elastic(state, BATCH)
    assert (training.epoch, training.position) == (state.epoch, state.position) == (2, -2)
    assert "epoch 1 ends with 2 samples for 3 ranks; they go into epoch 2." in caplog.text


# ---- the ranks ----


def place_of(rank, size, local_rank, local_size, node, nodes):
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    numbers = (rank, size, local_rank, local_size, node, nodes)
    return {**{f"HOROVOD_{name}": number for name, number in zip(names, numbers, strict=True)}, "HOROVOD_ELASTIC": 1}


def test_a_cache_follows_the_ranks_of_an_elastic_job(make_cache, launched):  # noqa: F811
    launched(place_of(1, 3, 0, 1, 1, 3))
    cache = make_cache()
    assert cache.world == World(1, 3, 1, 3)
    assert cache.elastic(State(), BATCH).steps_per_epoch == 4
    launched(place_of(0, 2, 0, 1, 0, 2))
    assert cache.world == World(0, 2, 0, 2)
    assert cache.elastic(State(), BATCH).steps_per_epoch == cache.schedule(BATCH, 0).__len__() == 5


def test_in_an_elastic_job_nodes_may_be_unequal(launched):  # noqa: F811
    launched(place_of(4, 5, 0, 1, 2, 3))
    assert place() == Place(4, 5, 4, 5)


class TestRefused:
    """What cannot be."""

    def test_peers(self):
        peers = World(0, 2, 0, 2, ("a:1", "b:1"), "a:1", b"x" * 16)
        with pytest.raises(ValueError, match="Expected a cache without peers, .* got 2 peers: leave out World.peers"):
            datacache.elastic.require_current(peers)

    def test_a_cache_that_was_opened_for_other_ranks(self, make_cache, launched):  # noqa: F811
        launched(place_of(0, 2, 0, 1, 0, 2))
        with pytest.raises(
            ValueError, match="opened for rank 1 of 3, and this is rank 0 of 2 now: leave out DataCache"
        ):
            make_cache(world=World(1, 3)).elastic(State(), BATCH)

    def test_a_state_without_a_position(self, make_cache):
        with pytest.raises(
            ValueError, match="with the numbers epoch and position, got SimpleNamespace without position"
        ):
            make_cache(world=World()).elastic(types.SimpleNamespace(epoch=0), BATCH)

    @pytest.mark.parametrize("position", [COUNT + 1, -COUNT - 1])
    def test_a_position_outside_of_the_epoch(self, position, make_cache):
        with pytest.raises(ValueError, match=f"Expected a position in .*, got {position}"):
            make_cache(world=World()).elastic(types.SimpleNamespace(epoch=1, position=position), BATCH)

    @pytest.mark.parametrize("ranks, options", [(COUNT + 1, {}), (3, {"batch_size": 16, "drop_remainder": True})])
    def test_fewer_samples_than_ranks(self, ranks, options, make_cache):
        with pytest.raises(ValueError, match=f"at least one sample for each rank.*{COUNT} samples for {ranks} ranks"):
            make_cache(world=World(0, ranks)).elastic(State(), **{"batch_size": BATCH, **options})
