"""States: what is committed and restored, on which commit ranks agree, and what a new rank gets."""

import itertools
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse.keras.elastic.states import HostsUpdatedInterrupt
from tests.grid import world

SIZES = {"all": (4, 2), "two": (2, 1)}


def model_of(*layers, optimizer=None):
    model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(2)])
    model.compile(hvd.DistributedOptimizer(optimizer or keras.optimizers.SGD(0.5)), "mse")
    return model


def changed(state):
    state.meet()
    state.on_reset()
    state.sync()
    return state


# ---- one process ----


def test_attributes_go_back_to_the_last_commit_whatever_was_done_to_them():
    state = hvd.elastic.ObjectState(step=1, seen=[1, 2], of={"a": np.zeros(2)})
    state.seen.append(3)
    state.commit()
    state.step, state.of["a"][0] = 5, 7
    state.seen.append(4)
    state.restore()
    assert (state.step, state.seen, state.of["a"].tolist()) == (1, [1, 2, 3], [0, 0])


def test_states_are_horovods():
    from horovod.common import elastic

    state = hvd.elastic.ObjectState()
    assert isinstance(state, elastic.ObjectState) and isinstance(state, hvd.elastic.State)


def test_variables_go_back():
    weights, count = tf.Variable([1.0, 2.0]), keras.Variable(3)
    state = hvd.elastic.TensorFlowState([weights, count], epoch=0)
    weights.assign([5.0, 5.0]), count.assign(9)
    state.epoch = 2
    state.restore()
    assert weights.numpy().tolist() == [1, 2] and int(count) == 3 and state.epoch == 0
    with pytest.raises(ValueError, match="Expected the variables, as hvd.elastic.TensorFlowState"):
        hvd.elastic.TensorFlowState()


def test_a_model_must_be_built():
    with pytest.raises(ValueError, match="must be built first: give it an input shape"):
        hvd.elastic.KerasState(keras.Sequential([keras.layers.Dense(2)]))


def test_optimizers_that_come_back_in_ways_of_their_own_are_refused():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(hvd.averaging.ModelAveraging(keras.optimizers.SGD(0.1)), "mse")
    with pytest.raises(ValueError, match="hvd.elastic cannot hand over the state of"):
        hvd.elastic.KerasState(model)


def test_an_optimizer_that_the_model_is_not_compiled_with_counts():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5, momentum=0.9))
    optimizer.build(model.trainable_variables)
    state = hvd.elastic.TensorFlowKerasState(model, optimizer)
    before = [np.array(each) for each in [*model.variables, *optimizer.variables]]
    optimizer.apply([tf.ones_like(each) for each in model.trainable_variables])
    assert any((np.array(each) != was).any() for each, was in zip(optimizer.variables, before[2:], strict=True))
    state.restore()
    for each, was in zip([*model.variables, *optimizer.variables], before, strict=True):
        np.testing.assert_array_equal(each, was)


def test_without_an_elastic_launcher_the_function_is_called_once():
    calls = []

    @hvd.elastic.run
    def train(state, more, last=0):
        calls.append((state.step, more, last))
        raise hvd.elastic.HorovodInternalError("a rank is lost")

    with pytest.raises(hvd.elastic.HorovodInternalError):
        train(hvd.elastic.ObjectState(step=3), 4, last=5)
    assert calls == [(3, 4, 5)] and train.__name__ == "train"


def test_a_notice_of_the_driver_interrupts_the_next_commit_once():
    state = hvd.elastic.ObjectState(step=0)
    state.on_hosts_updated(1, 1)
    state.on_hosts_updated(1, 1)  # in the same second
    with pytest.raises(HostsUpdatedInterrupt):
        state.commit()
    state.commit()
    state.on_hosts_updated(1, 1)  # still in the same second
    with pytest.raises(HostsUpdatedInterrupt):
        state.commit()


def test_the_last_rank_that_leaves_ends():
    state = hvd.elastic.ObjectState(step=0)
    state.leave()
    with pytest.raises(SystemExit) as ended:
        state.commit()
    assert ended.value.code == 143


# ---- callbacks ----


def fitted(state, *callbacks, epochs=2, steps=5, **options):
    data = tf.data.Dataset.from_tensors((np.ones((4, 3), "f4"), np.ones((4, 2), "f4"))).repeat()
    return state.model.fit(data, epochs=epochs, steps_per_epoch=steps, verbose=0, callbacks=callbacks, **options)


class Counting(hvd.elastic.KerasState):
    """Notes at which epoch and batch it was committed."""

    def commit(self):
        self.committed = [*getattr(self, "committed", []), (self.epoch, self.batch)]
        super().commit()


def updating(state, every=1):
    return (
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.CommitStateCallback(state, every),
    )


def test_callbacks_count_and_commit():
    state = Counting(model_of(), epoch=0, batch=0)
    fitted(state, *updating(state, 2))
    assert state.committed == [(0, 2), (0, 4), (1, 0), (1, 2), (1, 4), (2, 0)]
    with pytest.raises(ValueError, match="batches_per_commit of at least 1, got 0"):
        hvd.elastic.CommitStateCallback(state, 0)


def test_commits_take_a_twentieth_of_the_time_by_default():
    class Slow(Counting):
        def commit(self):
            super().commit()
            time.sleep(0.2)

    state = Slow(model_of(), epoch=0, batch=0)
    pause = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: time.sleep(0.1))
    fitted(state, pause, *updating(state, None), epochs=1, steps=100)
    batches = [batch for _, batch in state.committed]
    assert batches[0] == 1 and batches[-1] == 0
    apart = [after - before for before, after in itertools.pairwise(batches[1:-1])]
    assert apart and all(15 <= each <= 60 for each in apart), batches


def test_an_epoch_that_was_begun_takes_only_the_rest_of_its_batches():
    state = Counting(model_of(), epoch=3, batch=3)
    fitted(state, *updating(state), epochs=5 - state.epoch)
    assert state.model.optimizer.iterations == 2 + 5
    assert state.committed == [(3, 4), (4, 0), (4, 1), (4, 2), (4, 3), (4, 4), (5, 0)]
    assert not state.model.stop_training


def test_a_callback_that_ends_training_is_obeyed_in_an_epoch_that_was_begun():
    state = Counting(model_of(), epoch=0, batch=3)
    stop = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: setattr(state.model, "stop_training", True))
    fitted(state, *updating(state), stop, epochs=4)
    assert state.model.optimizer.iterations == 2 and state.epoch == 1


def test_epochs_count_from_initial_epoch():
    state = Counting(model_of(), epoch=1, batch=0)
    fitted(state, *updating(state), epochs=3, initial_epoch=1)
    assert state.epoch == 3


def test_a_step_that_was_traced_before_a_change_raises_an_error(monkeypatch):
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    model = model_of()
    model.optimizer.build(model.trainable_variables)
    state = hvd.elastic.KerasState(model, step=0)

    @tf.function
    def step():
        model.optimizer.apply([tf.ones_like(each) for each in model.trainable_variables])

    state.sync()
    step()
    changed(state)
    before = model.get_weights()
    with pytest.raises(tf.errors.InvalidArgumentError, match="traced for ranks that have changed since"):
        step()
    np.testing.assert_array_equal(before[0], model.get_weights()[0])
    tf.function(lambda: model.optimizer.apply([tf.ones_like(each) for each in model.trainable_variables]))()


# ---- ranks ----


def ranks_of(count, local_size, make):
    def begun(rank):
        state = make(rank)
        state.sync()
        return state

    return world.run(count, local_size, begun)


def test_all_go_back_to_the_newest_commit_that_all_have():
    states = ranks_of(4, 1, lambda rank: hvd.elastic.ObjectState(step=0))

    def two_commits(rank):
        states[rank].step = 1
        states[rank].commit()
        states[rank].step = 2
        if rank != 2:  # it has not come so far when another one dies
            states[rank].save()

    world.run(4, 1, two_commits)
    for state in states:
        state.restore()
    assert [state.step for state in states] == [2, 2, 1, 2]
    assert world.run(3, 1, lambda rank: changed(states[rank]).step) == [1, 1, 1]


def test_a_rank_that_had_just_come_and_lacks_that_commit_is_new():
    states = ranks_of(2, 1, lambda rank: hvd.elastic.ObjectState(step=5))
    (new,) = world.run(1, 1, lambda rank: hvd.elastic.ObjectState(step=0))

    def change(rank):
        state = states[rank] if rank < 2 else new
        state.meet()
        if rank == 1:
            return None  # it dies before it is synchronised
        return state._meeting.joined, state

    joined, _ = world.run(3, 1, change)[0]
    assert joined == [2]
    assert world.run(2, 1, lambda rank: changed([states[0], new][rank]).step) == [5, 5]


@pytest.mark.parametrize("staying, after", [([0, 1], 2), ([1, 3], 2), ([0, 1, 2, 3], 6)])
def test_the_learning_rate_follows_the_number_of_ranks(staying, after):
    def make(rank):
        return hvd.elastic.KerasState(model_of(), step=0)

    states = ranks_of(4, 2, make)

    def rate(rank):
        state = changed(states[staying[rank]]) if rank < len(staying) else make(rank)
        if rank >= len(staying):
            state.sync()
        return float(state.model.optimizer.learning_rate)

    assert world.run(after, 1, rate) == [pytest.approx(0.5 * after / 4)] * after


def test_callbacks_for_changes_have_the_learning_rate_to_themselves():
    def make(rank):
        state = hvd.elastic.KerasState(model_of(), step=0)
        state.register_reset_callbacks([lambda: setattr(state.model.optimizer, "learning_rate", 0.1 * hvd.size())])
        return state

    states = ranks_of(3, 1, make)
    found = world.run(2, 1, lambda rank: float(changed(states[rank]).model.optimizer.learning_rate))
    assert found == [pytest.approx(0.2)] * 2


def test_each_rank_keeps_its_own_and_a_new_one_gets_means():
    def make(rank):
        return hvd.elastic.KerasState(
            model_of(keras.layers.BatchNormalization(), keras.layers.Dropout(0.5, seed=rank)), step=0
        )

    states = ranks_of(3, 1, make)

    def own(rank):
        moving = states[rank].model.layers[0].moving_mean
        moving.assign(np.full(3, rank, "f4"))
        states[rank].model.layers[2].kernel.assign(np.full((3, 2), rank, "f4"))  # differs by mistake
        states[rank].commit()

    world.run(3, 1, own)
    seeds = [np.array(state.model.layers[1].seed_generator.state) for state in states]
    (new,) = world.run(1, 1, lambda rank: make(7))
    new_seed = np.array(new.model.layers[1].seed_generator.state)

    def after(rank):
        state = [states[1], states[2], new][rank]
        if state is new:
            state.sync()
        else:
            changed(state)
        layers = state.model.layers
        return np.array(layers[0].moving_mean)[0], np.array(layers[2].kernel)[0, 0], layers[1].seed_generator.state

    found = world.run(3, 1, after)
    assert [each[0] for each in found] == [1, 2, 1.5]
    assert [each[1] for each in found] == [1, 1, 1]
    for (_, _, seed), expected in zip(found, [seeds[1], seeds[2], new_seed], strict=True):
        np.testing.assert_array_equal(seed, expected)
