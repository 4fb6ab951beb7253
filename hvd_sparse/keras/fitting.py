"""What is checked when `fit` begins: Keras's callbacks that save, and optimizers that should exchange but do not.

`equal_steps` then checks that all ranks take the same number of steps.

All ranks tell each other which of Keras's own callbacks they have, so that what cannot work on one of them is an error
on all, before the first step. Classes derived from these are left alone, as they may save on rank 0 only.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from hvd_sparse.exchange.gradients import GradientExchange
from hvd_sparse.keras import copies, equal_steps
from hvd_sparse.keras.exchanging import exchange_of, meets_otherwise
from hvd_sparse.optimizers import slots
from hvd_sparse.transport import first_rank, lost, topology

_HOOKED = "_hvd_sparse_fitting"
_SAVE = (keras.callbacks.ModelCheckpoint, keras.callbacks.BackupAndRestore)
_OURS, _KERAS = "hvd_sparse", "keras"
_REMEDIES = {
    "ModelCheckpoint": "Pass keras.callbacks.ModelCheckpoint on rank 0 only, after a callback of hvd.callbacks such as "
    "BroadcastGlobalVariablesCallback(0), or pass hvd.callbacks.BestModelCheckpoint on all ranks.",
    "BackupAndRestore": "In place of BackupAndRestore, pass hvd.callbacks.CheckpointCallback(directory) on all ranks.",
}


class Saver(NamedTuple):
    """One of Keras's callbacks that save, on one rank; JSON-serializable.

    Attributes:
        kind: the name of its class.
        path: where it writes.
        problem: why it cannot; "" if it can.
        epoch: the epoch at which it makes training resume, from 0.
    """

    kind: str
    path: str
    problem: str
    epoch: int


def install() -> None:
    """Installs the hook in Keras; a second call does nothing."""
    original: Any = keras.Model.fit
    if hasattr(original, _HOOKED):
        return
    signature = inspect.signature(original)

    @functools.wraps(original)
    def fit(self, *args, **kwargs):
        given = signature.bind(self, *args, **kwargs)
        callbacks = given.arguments.get("callbacks")
        exchange = _begin(self, tf.nest.flatten(getattr(callbacks, "callbacks", callbacks)))
        if exchange is None:
            return original(self, *args, **kwargs)
        with lost.explained(lambda: exchange.step), equal_steps.required(exchange, self, callbacks) as watched:
            given.arguments["callbacks"] = watched
            return original(*given.args, **given.kwargs)

    setattr(fit, _HOOKED, True)
    keras.Model.fit = fit


def _begin(model: keras.Model, callbacks: Sequence[Any]) -> GradientExchange | None:
    """Checks what `fit` begins with; returns the exchange of the optimizer if other ranks take part in it."""
    optimizer = getattr(model, "optimizer", None)
    if not topology.is_initialized():
        return None
    exchange = exchange_of(optimizer)
    if exchange is None:
        _warn_if_alone(model, optimizer)
        return None
    group = exchange.grid().world
    if group.size == 1:
        return None
    own = _savers(callbacks, exchange, optimizer, first=group.rank == 0)
    told = group.gather_descriptions(own, "fit.callbacks")
    require_savable(dict(zip(group.ranks, [[Saver(*each) for each in savers] for savers in told], strict=True)))
    return exchange


def _warn_if_alone(model: keras.Model, optimizer: Any) -> None:
    """Warns once if a loaded optimizer does not exchange; a train step of one's own may exchange by a tape."""
    if not copies.was_loaded(optimizer) or meets_otherwise(optimizer) or topology.size() == 1:
        return
    if type(model).train_step is not keras.Model.train_step:
        return
    copies.forget_loaded(optimizer)
    first_rank.warn(
        f"The model was loaded by keras.models.load_model, or copied, so its optimizer {optimizer.name} does not "
        f"exchange gradients, and each of the {topology.size()} ranks trains a model of its own: load it with "
        "hvd.load_model(path), or compile it with hvd.DistributedOptimizer(optimizer)."
    )


def _savers(callbacks: Sequence[Any], exchange: GradientExchange, optimizer: Any, first: bool) -> list[Saver]:
    """This rank's callbacks of Keras that save.

    Args:
        callbacks: all callbacks of this rank, in order.
        exchange: that of the optimizer.
        optimizer: the model's.
        first: whether this is rank 0.
    """
    found = []
    for place, callback in enumerate(callbacks):
        if type(callback) in _SAVE:
            problem = _problem(callback, callbacks[:place], exchange, optimizer, first)
            path = getattr(callback, "backup_dir", None) or callback.filepath
            found.append(Saver(type(callback).__name__, _absolute(path), problem, _epoch(callback)))
    return found


def _problem(callback: Any, earlier: Iterable[Any], exchange: GradientExchange, optimizer: Any, first: bool) -> str:
    """Why a callback cannot save what it is to save on this rank; "" if it can."""
    if not exchange.takes_over:
        return ""
    name = type(slots.without_loss_scaling(optimizer)).__name__
    if exchange.sends_updates and not first:
        return f"the moments of {name} are gathered on rank 0 only"
    homes = {type(each).__module__.partition(".")[0] for each in earlier} - {_KERAS}
    if not homes:
        return f"the exchange keeps the moments of {name}, and no callback of hvd.callbacks before it returns them"
    if callback.save_freq != "epoch" and homes == {_OURS}:
        return f"the exchange keeps the moments of {name}, and returns them at the end of an epoch only"
    return ""


def require_savable(by_rank: dict[int, list[Saver]]) -> None:
    """Checks what all ranks have told; raises ValueError, the same on every rank, if something cannot be saved."""
    found = [
        (each.kind, f"on rank {rank}, {each.kind} cannot save {each.path}: {each.problem}")
        for rank, savers in by_rank.items()
        for each in savers
        if each.problem
    ]
    found = found or _fought_over(by_rank) or _resumed_apart(by_rank)
    if found:
        kinds = sorted({kind for kind, _ in found}, reverse=True)
        remedies = " ".join(_REMEDIES[kind] for kind in kinds)
        told = "; ".join(text for _, text in found[:4])
        raise ValueError(f"{told[0].upper()}{told[1:]}. {remedies}")


def _fought_over(by_rank: dict[int, list[Saver]]) -> list[tuple[str, str]]:
    writers: dict[tuple[str, str], list[int]] = {}
    for rank, savers in by_rank.items():
        for each in savers:
            writers.setdefault((each.kind, each.path), []).append(rank)
    return [
        (kind, f"ranks {', '.join(map(str, ranks))} would all write {path} by {kind}")
        for (kind, path), ranks in writers.items()
        if len(set(ranks)) > 1
    ]


def _resumed_apart(by_rank: dict[int, list[Saver]]) -> list[tuple[str, str]]:
    epochs = {rank: max((each.epoch for each in savers), default=0) for rank, savers in by_rank.items()}
    if len(set(epochs.values())) == 1:
        return []
    told = ", ".join(f"rank {rank} at epoch {epoch}" for rank, epoch in epochs.items())
    return [("BackupAndRestore", f"BackupAndRestore would make training resume on {told}")]


def _absolute(path: Any) -> str:
    path = os.fspath(path)
    return path if "://" in path else os.path.abspath(path)


def _epoch(callback: Any) -> int:
    """The epoch at which a callback makes training resume."""
    if not isinstance(callback, keras.callbacks.BackupAndRestore):
        return 0
    try:
        with open(os.path.join(callback.backup_dir, "training_metadata.json")) as file:
            return int(json.load(file)["epoch"])
    except (OSError, ValueError, KeyError):  # there is nothing to resume from, or Keras tells what is wrong with it
        return 0
