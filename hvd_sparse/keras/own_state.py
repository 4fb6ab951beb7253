"""What each rank has for itself of a model and its optimizers, as a checkpoint keeps it and gives it back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from hvd_sparse.keras.checkpoint import OwnState, TakenUp, plain
from hvd_sparse.keras.ownership import AFRESH, MEAN, OwnKind, OwnVariable, numbered, own_of, told
from hvd_sparse.transport import topology

_TOLD_AFRESH = (OwnKind.SEED, OwnKind.STATE, OwnKind.LOCAL)  # offsets of looking ahead belong to the residuals


def to_save(model: keras.Model) -> OwnState:
    """What a checkpoint keeps: what differs between ranks, and its means; a collective."""
    own = own_of(model)
    differing = _differing({name: each for name, each in own.items() if each.kind in MEAN})
    alike = [name for name, each in own.items() if each.kind in MEAN and name not in differing]
    means = {name: _mean(own[name], number) for number, name in enumerate(differing) if _has_mean(own[name])}
    return OwnState({name: each.variable for name, each in own.items() if name not in alike}, alike, means)


def to_restore(model: keras.Model) -> OwnState:
    """Where what a checkpoint has kept belongs."""
    return OwnState({name: each.variable for name, each in own_of(model).items()}, numbered=numbered(model))


def give(model: keras.Model, taken: TakenUp) -> None:
    """Gives a rank without its own values what can be made of those of all ranks.

    Args:
        model: has the values of rank 0, and this rank's own as far as there are any.
        taken: the outcome of restoring.
    """
    if taken.own and taken.named:
        return
    for name, each in own_of(model).items():
        if name in taken.means:
            each.variable.assign(taken.means[name])
        elif each.kind is OwnKind.STATE:
            each.variable.assign(keras.ops.zeros_like(each.variable))


def lost_elsewhere(model: keras.Model) -> list[str]:
    """What of a model's state begins afresh on another number of ranks than the one that saved it."""
    return told(own_of(model), _TOLD_AFRESH)


def of_earlier_files(model: keras.Model) -> list[str]:
    """What happens to the state of a model that earlier versions kept for rank 0 only, or not at all."""
    own = own_of(model)
    means, states = told(own, MEAN), told(own, [OwnKind.STATE])
    return [f"all ranks get rank 0's {' and '.join(means)}"] * bool(means) + [f"{each} begin afresh" for each in states]


def begins_afresh(model: keras.Model) -> list[tf.Variable]:
    """The variables that must not get rank 0's values."""
    return [each.variable for each in own_of(model).values() if each.kind in AFRESH]


def _differing(own: Mapping[str, OwnVariable]) -> Sequence[str]:
    """The names of the variables that are not equal on all ranks; a collective."""
    digests = {name: hashlib.sha256(plain(each.variable).tobytes()).hexdigest() for name, each in own.items()}
    every_rank = topology.world().gather_descriptions(digests, "checkpoint.own_digests")
    return [name for name in own if any(each.get(name) != digests[name] for each in every_rank)]


def _has_mean(own: OwnVariable) -> bool:
    return own.kind in MEAN and "float" in str(own.variable.dtype)


def _mean(own: OwnVariable, number: int) -> np.ndarray:
    world = topology.world()
    value = plain(own.variable)
    total = world.allreduce(tf.constant(value.astype(np.float64)), "sum", f"checkpoint.mean.{number}")
    return (total.numpy() / world.size).astype(value.dtype)
