"""What elastic training commits, restores and hands over of a Keras model, its optimizers and their exchanges."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from hvd_sparse.exchange import remains, state
from hvd_sparse.exchange.gradients import GradientExchange
from hvd_sparse.exchange.planned import PlannedExchange
from hvd_sparse.exchange.remains import Remains
from hvd_sparse.keras import broadcasting, consolidation, own_state
from hvd_sparse.keras.broadcasting import places_in
from hvd_sparse.keras.callbacks import rates
from hvd_sparse.keras.checkpoint import plain, storable
from hvd_sparse.keras.elastic.copied import assign, copies, described, numbered, paired, require_same
from hvd_sparse.keras.elastic.meetings import Meeting
from hvd_sparse.keras.elastic.states import ObjectState
from hvd_sparse.keras.exchanging import exchange_of
from hvd_sparse.keras.ownership import MEAN, OwnKind, own_of
from hvd_sparse.keras.tracked import optimizers_of
from hvd_sparse.optimizers import attached, slots
from hvd_sparse.optimizers.variables import resource
from hvd_sparse.storage.archives import Archive
from hvd_sparse.transport import first_rank, topology

_log = logging.getLogger(__name__)


class Kept(NamedTuple):
    """What a commit has of an exchange.

    Attributes:
        planned: the exchange at that time; None if it had not begun.
        values: those of its state.
        handed: what all ranks had together, if they have handed over, or if it has not begun since; else None.
    """

    planned: PlannedExchange | None
    values: Mapping[str, np.ndarray]
    handed: Remains | None

    def remains(self, first: bool, handed: bool) -> Remains | None:
        """This rank's part of it; None if there is nothing.

        Args:
            first: whether this rank adds what all ranks have together.
            handed: whether that is what was handed over; otherwise each rank adds its own.
        """
        if handed or self.planned is None:
            return self.handed if self.handed is None or first else self.handed._replace(pieces={})
        state.set_values(self.planned, self.values)
        return remains.of(self.planned, first)


class TensorFlowKerasState(ObjectState):
    """A Keras model with its optimizers, what their exchanges keep, and Python objects as attributes.

    At a planned change nothing is lost: residuals and slots that the exchange keeps are added up while all ranks are
    connected, and shared by those that stay or come. When a rank dies, all others go back to the last commit that all
    of them have; what the dead rank had not sent is lost, and its slots are those of the same place on other nodes. The
    sum of the residuals is scaled by P' / P.

    Each rank keeps its own random seeds, states of RNN layers and local variables; a new rank begins with its own, with
    the means over the others of moving statistics and accumulated gradients, and with everything else of the first one.

    A commit takes memory on the host: that of model, optimizer and residuals, twice while it is made.

    Args:
        model: built and compiled, on every rank.
        optimizer: the distributed optimizer, if the model is not compiled with it.
        backend: has no effect.
        **kwargs: attributes and their values, such as `batch=0, epoch=0`, and `backup_dir` and `backup_seconds`, as for
            `ObjectState`.

    Raises:
        ValueError: if the model is not built, or has an optimizer that has its own way to come back: sharded servers
            and averaged models.
    """

    def __init__(self, model: keras.Model, optimizer: Any = None, backend: Any = None, **kwargs: Any):
        if not model.built:
            raise ValueError("The model must be built first: give it an input shape, or call it on a batch.")
        self.model = model
        own = getattr(model, "optimizer", None)
        self.optimizer = own if optimizer is None else optimizer
        self._trained: Any = model if self.optimizer is own else _Pair(model, optimizer)
        self._handed: dict[str, Remains] = {}  # by the optimizer's place: what an exchange has not yet taken over
        for each in self._optimizers():
            _require_exchange(each)
        alone = self.optimizer if self._optimizers() == [self.optimizer] else None
        if alone is not None and not alone.built:  # otherwise the first commit would lack its slots
            alone.build(model.trainable_variables)
        super().__init__(**kwargs)

    def hand_over(self) -> None:
        taken, world = self._taken(), topology.world()
        for place, exchange in self.exchanges().items():
            if exchange.has_begun:
                exchange.settle()
                own = remains.of(exchange.planned, world.rank == 0)
                about = world.gather_descriptions(remains.described(own), "elastic.about")[0]
                handed = remains.added_up(own, about, world, "elastic.hand_over")
                taken["exchanges"][place] = taken["exchanges"][place]._replace(handed=handed)
        self._commits = {self._number: taken}

    def reset(self) -> None:
        """Makes Keras trace its functions anew, and the learning rate follow the number of ranks.

        The batch of each rank stays, so the global one grows and shrinks with the number of ranks; the learning rate
        does likewise, unless callbacks are registered, which are then to set it.
        """
        self.model.train_function = self.model.test_function = self.model.predict_function = None
        meeting = self._meeting
        if meeting is None or meeting.is_start or self.reset_callbacks:
            return
        for optimizer in optimizers_of(self._trained).values():
            _scale_rate(optimizer, topology.size() / meeting.before)

    def _share(self, meeting: Meeting) -> None:
        super()._share(meeting)
        new = meeting.is_start or topology.rank() in meeting.joined
        together = {} if meeting.is_start else self._together(meeting, new)
        for place, optimizer in optimizers_of(self._trained).items():
            found, exchange = together.get(place), exchange_of(optimizer)
            if found is not None and exchange is not None and not new:
                inner = slots.without_loss_scaling(optimizer)
                consolidation.give_back(inner, exchange, found.slots(), topology.rank() == meeting.root)
        self._share_variables(meeting, new)
        for place, exchange in self.exchanges().items() if not meeting.is_start else ():
            found = together.get(place)
            exchange.begin_again(None if found is None else found.scaled(topology.size()))
        self._handed = together
        if not meeting.is_start and first_rank.is_here():
            _log.info(self._told(meeting))

    def _together(self, meeting: Meeting, new: bool) -> dict[str, Remains]:
        """What all ranks have of each exchange, of the commit that they went back to; a collective."""
        world, first = topology.world(), topology.rank() == meeting.root
        kept: dict[str, Kept] = {} if new else self._commits[self._number]["exchanges"]
        # If another rank died while they handed over, some may have what all had together, and others not.
        handed = new or all(each.handed is not None or each.planned is None for each in kept.values())
        everyone = all(world.gather_descriptions(handed, "elastic.handed"))
        own = {place: found for place, each in kept.items() if (found := each.remains(first, everyone)) is not None}
        about = {place: remains.described(each) for place, each in own.items()}
        told = world.gather_descriptions(about, "elastic.about")[meeting.root]
        return {
            place: remains.added_up(own.get(place), each, world, f"elastic.{place}") for place, each in told.items()
        }

    def _share_variables(self, meeting: Meeting, new: bool) -> None:
        """Gives all ranks the first one's variables, but for what is each rank's own."""
        own = own_of(self._trained)
        before = {name: plain(each.variable) for name, each in own.items()}
        broadcasting.broadcast_state(self._trained, meeting.root, own_state.begins_afresh(self._trained))
        if meeting.is_start:
            return
        for number, (name, each) in enumerate(own_of(self._trained).items()):
            mean = None
            if each.kind in MEAN and "float" in str(each.variable.dtype):
                mean = _mean_of_members(before.get(name), each.variable, new, f"elastic.mean.{number}")
            if not new and each.kind is not OwnKind.AHEAD:
                each.variable.assign(before[name])
            elif mean is not None:
                each.variable.assign(mean)

    def _taken(self) -> dict[str, Any]:
        held = self._held()
        exchanges = {}
        for place, exchange in self.exchanges().items():
            planned = exchange.planned if exchange.has_begun else None
            values = {} if planned is None else state.values(planned)
            exchanges[place] = Kept(planned, values, self._handed.get(place) if planned is None else None)
        return {**super()._taken(), "variables": copies(held), "exchanges": exchanges}

    def _give(self, taken: dict[str, Any]) -> None:
        super()._give(taken)
        assign(taken["variables"])

    def _packed(self, taken: dict[str, Any], whole: bool = False) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        manifest, arrays = super()._packed(taken, whole)
        values = {id(resource(variable)): value for variable, value in taken["variables"]}
        for name, each in own_of(self._trained).items():
            value = values.get(id(resource(each.variable)))  # Keras does not count all among its variables
            arrays[f"own {name}"] = plain(each.variable) if value is None else storable(value)
        if manifest["whole"]:
            manifest["variables"] = self._described()
            manifest["built"] = {place: places_in(self.model, each) for place, each in self._placed().items()}
            arrays |= numbered(taken["variables"])
        exchanges = {}
        for place, kept in taken["exchanges"].items():
            found = kept.remains(first=True, handed=kept.handed is not None)
            if found is not None:
                exchanges[place] = {"about": remains.described(found), "handed": kept.handed is not None}
                arrays |= {f"{place} {key}": piece for key, piece in found.pieces.items()}
        return {**manifest, "exchanges": exchanges}, arrays

    def _unpacked(self, parts: Mapping[int, Archive], own: Archive | None) -> dict[str, Any]:
        whole = own if topology.rank() == 0 else None
        self._build(whole)
        require_same(None if whole is None else whole.manifest["variables"], self._described())
        variables = [] if whole is None else paired(self._held(), whole)
        if own is not None:
            saved = [(each.variable, own.arrays.get(f"own {name}")) for name, each in own_of(self._trained).items()]
            variables += [(variable, value) for variable, value in saved if value is not None]
        exchanges = {place: Kept(None, {}, _remains_of(place, parts)) for place in self.exchanges()}
        return {**super()._unpacked(parts, own), "variables": variables, "exchanges": exchanges}

    def _build(self, whole: Archive | None) -> None:
        """Builds the optimizers that were built when a backup was written; a collective."""
        told = topology.world().gather_descriptions(None if whole is None else whole.manifest["built"], "elastic.built")
        for place, each in self._placed().items():
            places = told[0].get(place)
            if places is not None and not each.built:
                each.build([self.model.trainable_variables[number] for number in places])

    def _held(self) -> list[Any]:
        """The variables that a commit copies."""
        return [*self.model.variables, *(each for one in self._optimizers() for each in one.variables)]

    def _described(self) -> list[list[Any]]:
        """Names and shapes of what `_held` returns."""
        return [each for one in (self.model, *self._optimizers()) for each in described(one.variables)]

    def _placed(self) -> dict[str, keras.optimizers.Optimizer]:
        """The optimizers, by where these are."""
        return optimizers_of(self._trained)

    def _optimizers(self) -> list[keras.optimizers.Optimizer]:
        return list(self._placed().values())

    def exchanges(self) -> dict[str, GradientExchange]:
        """The exchanges of the optimizers, by where these are."""
        found = {place: exchange_of(each) for place, each in optimizers_of(self._trained).items()}
        return {place: each for place, each in found.items() if each is not None}

    def _told(self, meeting: Meeting) -> str:
        """One line for rank 0 about what has changed."""
        gone = ", ".join(f"rank {rank} of {host} is gone" for rank, host in meeting.gone.items())
        joined = f"{len(meeting.joined)} joined" if meeting.joined else ""
        changes = ", ".join(each for each in (gone, joined) if each) or "nothing has changed"
        waiting = sum(each.size for each in self._handed.values())
        unknown = sum(each.unknown() for each in self._handed.values())
        afresh = f", and {unknown} elements of slots that no rank has begin anew" if unknown else ""
        set_rates = ", ".join(f"{rates.learning_rate(each):g}" for each in self._optimizers())
        begun = (
            f"the ranks have changed from {meeting.before} to {topology.size()} ({changes}); training goes on from "
            f"commit {self._number},"
        )
        if meeting.from_disk:
            begun = "the job goes on"
        return (
            f"{begun} with the learning rate {set_rates}; the sum of the residuals' absolute values, before scaling by "
            f"{topology.size()}/{meeting.before}, is {waiting:g}{afresh}."
        )


class KerasState(TensorFlowKerasState):
    """`TensorFlowKerasState` with the arguments of `horovod.keras.elastic.KerasState`.

    Args:
        model: as for `TensorFlowKerasState`.
        optimizer: as for `TensorFlowKerasState`.
        **kwargs: as for `TensorFlowKerasState`.
    """

    def __init__(self, model: keras.Model, optimizer: Any = None, **kwargs: Any):
        super().__init__(model, optimizer, **kwargs)


def _remains_of(place: str, parts: Mapping[int, Archive]) -> Remains | None:
    """What all ranks had together of an exchange, by a backup; a collective.

    Args:
        place: where the exchange's optimizer is.
        parts: the files that this rank has read, by the ranks that wrote them.
    """
    world = topology.world()
    about = {rank: part.manifest["exchanges"].get(place) for rank, part in parts.items()}
    told = {rank: each for rank, each in about.items() if each is not None}
    gathered = world.gather_descriptions(told, f"elastic.{place}.told")
    everyone = {int(rank): each for found in gathered for rank, each in found.items()}
    if not everyone:
        return None
    # One that had handed over has what all had; otherwise the first adds what all share, and each its own.
    complete = [rank for rank, each in everyone.items() if each["handed"]]
    counted = [min(complete)] if complete else sorted(everyone)
    about = everyone[counted[0]]["about"]
    own = [_remains_in(place, parts[rank], rank == counted[0]) for rank in told if rank in counted]
    return remains.added_up(remains.sum_of(own) if own else None, about, world, f"elastic.{place}")


def _remains_in(place: str, part: Archive, first: bool) -> Remains:
    about = part.manifest["exchanges"][place]["about"]
    found = Remains(about, {key: part.arrays[f"{place} {key}"] for key, _ in about["pieces"]})
    return found if first else found.without_shared()


class _Pair:
    """A model and an optimizer that it was not compiled with, as if it was."""

    def __init__(self, model: keras.Model, optimizer: keras.optimizers.Optimizer):
        self.model, self.optimizer = model, optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


def _require_exchange(optimizer: Any) -> None:
    part = attached.to(optimizer)
    if part is not None and exchange_of(optimizer) is None:
        raise ValueError(
            f"hvd.elastic cannot hand over the state of {type(part).__name__}: ranks of sharded servers come back with "
            "a ticket (docs/servers.md), and averaged models go on without those that are lost."
        )


def _scale_rate(optimizer: keras.optimizers.Optimizer, factor: float) -> None:
    rate = getattr(optimizer, "_learning_rate", None)
    if factor != 1 and isinstance(rate, keras.Variable | tf.Variable):  # a schedule goes by steps, and stays
        rate.assign(rate * factor)


def _mean_of_members(before: np.ndarray | None, variable: Any, new: bool, name: str) -> np.ndarray:
    """The mean over the ranks that were there before."""
    world, own = topology.world(), plain(variable)
    value = np.zeros_like(own) if new or before is None else before
    counted = np.concatenate([[0.0 if new else 1.0], np.ravel(value)]).astype(np.float64)
    total = world.allreduce(tf.constant(counted), "sum", name).numpy()
    return (total[1:] / total[0]).reshape(own.shape).astype(own.dtype)
