"""How ranks join: one collective for addresses and the secret, then a server and a client on each."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from hvd_sparse.servers import local
from hvd_sparse.servers.applying import LazyPieces, ServedPieces
from hvd_sparse.servers.copies import Copies, SharedCopy
from hvd_sparse.servers.hosting import Hosting
from hvd_sparse.servers.member import Member, start
from hvd_sparse.servers.pushing import cut, decoder, unpacked
from hvd_sparse.servers.replicas import Deputy, Replica, guarded_by, state_of
from hvd_sparse.servers.rules import Together
from hvd_sparse.servers.saving import Keeper
from hvd_sparse.servers.service import Service
from hvd_sparse.servers.settings import Settings
from hvd_sparse.servers.shard import Parameters, Shard
from hvd_sparse.servers.state import State
from hvd_sparse.spec import Segment, Spec
from hvd_sparse.transport.communicator import Communicator, Grid
from hvd_sparse.transport.meeting import meet


def join(
    optimizer: keras.optimizers.Optimizer,
    variables: Sequence[Any],
    segments: tuple[Segment, ...],
    grid: Grid,
    settings: Settings,
    resumed: State | None = None,
) -> Member:
    """Starts this rank's server and connects it to all; a collective.

    All ranks begin with rank 0's variables, or with what the servers held when they were saved.

    Args:
        optimizer: not built; copies of it run on the servers.
        variables: what it is to train.
        segments: their names and shapes.
        grid: the ranks.
        settings: the same on every rank, except the interface.
        resumed: what this rank's server resumes with, if all ranks have a checkpoint.

    Raises:
        ValueError: on every rank, if they disagree, or the checkpoint does not fit.
        OSError: on every rank, if one cannot listen.
    """
    world, size = grid.world, sum(segment.size for segment in segments)
    account = {
        "shapes": [list(segment.shape) for segment in segments],
        "optimizer": _config(optimizer),
        **settings.account(),
    }
    world.agree(account, "the model or the servers' settings", "servers.agree")
    shards = cut(Spec(size, grid, segments=segments, name="servers"), world.size)
    _begin_alike(variables, world)
    if settings.replicas is not None and world.size < 2:
        raise ValueError("Expected at least 2 ranks, as one holds the other's replica, got 1: leave out replicas.")
    served = local.subtraction(optimizer) if local.sends_updates(settings.push) else optimizer
    pieces = LazyPieces if settings.lazy else ServedPieces
    service = serve(lambda shard: pieces(served, variables, shards[shard]), shards, world.rank, settings)
    if resumed is not None:
        _restore_together(service.shard, resumed, world)
    meeting = meet(world, range(world.size), settings.interface, "servers")
    member = start(service, shards, world.rank, meeting, settings)
    assert meeting.held is not None
    meeting.held.close()
    return member


def serve(parameters: Callable[[int], Parameters], shards: Sequence[Spec], rank: int, settings: Settings) -> Service:
    """Creates the service that answers for this rank's shard, and may take over others; no network yet.

    Args:
        parameters: makes a shard, given its number.
        shards: of all servers.
        rank: this one.
        settings: the same on every rank.
    """
    kind = SharedCopy if isinstance(settings.rule, Together) else Copies

    def hosting(number: int) -> Hosting:
        copies = kind(settings.pull, shards[number])
        shard = Shard(parameters(number), copies, settings.rule, len(shards))
        return Hosting(shard, Keeper(shard, number, shards), decoder(settings.push, shards[number]))

    def adopt(number: int, replica: Replica) -> Hosting:
        adopted = hosting(number)
        adopted.shard.restore(*state_of(replica, adopted.shard.state(), len(shards)))
        adopted.keeper.write = own.keeper.write
        adopted.keeper.begin()
        return adopted

    own = hosting(rank)
    guarded = [] if settings.replicas is None else guarded_by(rank, len(shards))
    deputies = {number: Deputy(settings.replicas) for number in guarded if settings.replicas is not None}
    return Service(rank, own, len(shards), deputies, adopt)


def _begin_alike(variables: Sequence[Any], world: Communicator) -> None:
    """Gives all ranks the variables of rank 0."""
    flat = tf.concat([tf.reshape(tf.convert_to_tensor(each), [-1]) for each in variables], 0)
    first = world.broadcast(flat, 0, "servers.begin")
    for variable, value in zip(variables, unpacked(first, [each.shape for each in variables]), strict=True):
        variable.assign(value)


def _restore_together(shard: Shard, state: State, world: Communicator) -> None:
    problem = ""
    try:
        shard.restore(state)
    except ValueError as complaint:
        problem = str(complaint)
    problems = world.gather_descriptions(problem, "servers.restore")
    told = [f"rank {rank}: {each}" for rank, each in zip(world.ranks, problems, strict=True) if each]
    if told:
        raise ValueError("; ".join(told))


def _config(optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    """The optimizer's class and the settings that say how servers apply gradients."""
    config = {key: value for key, value in optimizer.get_config().items() if key != "learning_rate"}
    return {"class": type(optimizer).__name__, **json.loads(json.dumps(config, default=str))}
