"""Sharded servers that are saved during training, and resumed."""

from __future__ import annotations

import keras
import numpy as np

import hvd_sparse as hvd
from hvd_sparse.compression.error_feedback import ErrorFeedback
from hvd_sparse.compression.selectors import TopK
from hvd_sparse.compression.updates import LocalUpdates
from hvd_sparse.servers.optimizer import served
from tests.parallel.cases import case, thorough
from tests.parallel.training import assert_replicas_equal, network, on_every_rank, own_data, raises, shared_folder

L = keras.layers
GRADIENTS = TopK(0.25)


def trained(folder, epochs, push=GRADIENTS, **settings):
    """A model after some epochs on servers; all ranks have finished them."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(hvd.rank())
    model = network(layers=[L.BatchNormalization()])
    optimizer = hvd.servers.ShardedServers(keras.optimizers.Adam(0.01), push, **settings)
    model.compile(optimizer, "mse")
    callbacks = [hvd.callbacks.ServersCheckpointCallback(folder)]
    model.fit(*own_data(), batch_size=8, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
    on_every_rank("all have trained")
    return model


@case(ranks=(2,))
def a_stopped_run_on_servers_ends_with_the_bits_of_one_that_was_not():
    """Synchronous, so that results do not depend on the order of arrival; slots, residuals and schedules are restored.

    Ranks run Adam themselves, so that their own slots are saved too. Non-trainable variables come from rank 0 in a
    resumed run, so only trainable ones are compared.
    """
    folder, final, steps = shared_folder(), [], []
    updates = LocalUpdates(ErrorFeedback(TopK(0.25)))
    for name, epochs in (("stopped", 1), ("stopped", 3), ("whole", 3)):
        model = trained(folder / name, epochs, updates, synchronous=True)
        steps.append(int(model.optimizer.iterations))
        hvd.servers.finish(model.optimizer)
        assert_replicas_equal(model.trainable_variables)
        final.append(model.get_weights())
    assert steps == [4, 12, 12]
    assert sorted(each.name for each in (folder / "stopped").iterdir()) == ["epoch-0001", "epoch-0002"]
    if hvd.rank() == 0:
        plain = network(layers=[L.BatchNormalization()])
        plain.load_weights(folder / "whole" / "epoch-0002" / "model.weights.h5")
    for variable, first, second in zip(model.variables, *final[1:], strict=False):
        if "moving" not in variable.path:
            np.testing.assert_array_equal(first, second)


@case(ranks=(3,), quick=thorough)
def servers_are_saved_while_ranks_are_anywhere():
    """Rank 0 saves while others still train and one has finished; also a damaged file, and one of another model."""
    folder = shared_folder()
    model = trained(folder, 2 + hvd.rank(), pull=TopK(0.5))
    told = model.optimizer.servers.telemetry()["pushes"]
    hvd.servers.finish(model.optimizer)
    assert told == 4 * (2 + 3 + 4)
    if hvd.rank() == 0:
        damaged = folder / "epoch-0001" / "servers.npz.rank2of3"
        damaged.write_bytes(damaged.read_bytes()[:-1])
    on_every_rank("one is damaged")
    again = network(layers=[L.BatchNormalization()])
    again.compile(hvd.servers.ShardedServers(keras.optimizers.Adam(0.01)), "mse")
    epochs = []
    counted = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: epochs.append(epoch))
    saving = hvd.callbacks.ServersCheckpointCallback(folder, every=5)
    again.fit(*own_data(), batch_size=8, epochs=2, verbose=0, callbacks=[counted, saving])
    assert epochs == [1], "the newest is not whole, and is passed over"
    again.fit(*own_data(), batch_size=8, epochs=1, verbose=0, callbacks=[counted, saving])
    assert epochs == [1, 0], "servers that run already go on as they are"
    assert again.optimizer.servers.telemetry()["bytes_pushed"] > 0
    hvd.servers.finish(again.optimizer)

    other = network(layers=[L.BatchNormalization()])
    other.compile(hvd.servers.ShardedServers(keras.optimizers.SGD(0.01)), "mse")
    with raises(ValueError, "rank 2: ValueError", "was saved for another model or optimizer"):
        other.fit(*own_data(), verbose=0, callbacks=[saving])
    elsewhere = hvd.callbacks.ServersCheckpointCallback(folder / "nothing", required=True)
    with raises(FileNotFoundError, "there are none"):
        other.fit(*own_data(), verbose=0, callbacks=[elsewhere])
    with raises(ValueError, "ShardedServers"):
        plain = network()
        plain.compile("sgd", "mse")
        plain.fit(*own_data(), verbose=0, callbacks=[elsewhere])


@case(ranks=(2,), quick=thorough)
def what_servers_keep_is_saved_where_a_rank_does_not_train():
    """Rank 1 pauses between two calls of `fit` and is saved with the others."""
    folder = shared_folder()
    model = trained(folder, 1)
    if hvd.rank() == 0:
        callback = hvd.callbacks.ServersCheckpointCallback(folder)
        model.fit(*own_data(), batch_size=8, initial_epoch=1, epochs=3, verbose=0, callbacks=[callback])
        assert (folder / "epoch-0002" / "servers.npz.rank1of2").exists()
    on_every_rank("rank 0 has trained")
    assert served(model.optimizer).member.shard.pushes == 4 * 4
    hvd.servers.finish(model.optimizer)


@case(ranks=(3,), quick=thorough)
def a_deputy_takes_over_where_a_server_is_gone():
    """Rank 1 stops serving and training; the others continue, and the checkpoint contains its deputy's parameters."""
    folder = shared_folder()
    model = trained(folder, 1, replicas=1, replica_age=8)
    if hvd.rank() == 1:
        served(model.optimizer).member.abandon()
        on_every_rank("the others have ended")
        return
    callback = hvd.callbacks.ServersCheckpointCallback(folder)
    model.fit(*own_data(), batch_size=8, initial_epoch=1, epochs=3, verbose=0, callbacks=[callback])
    told = model.optimizer.servers.telemetry()
    assert 0 <= told["updates_lost"] <= 8
    assert model.optimizer.servers.connections._places == [0, 2, 2]
    hvd.servers.finish(model.optimizer)
    assert hvd.rank() != 0 or (folder / "epoch-0002" / "whole.json").exists()
    on_every_rank("the others have ended")
