"""What LARS and LAMB have in common, and the only file of this package that uses Keras's internals.

It hooks into one place: an optimizer's `_backend_update_step`, where Keras has accumulated and clipped the gradients
and is about to apply them one by one. tests/lars/test_hook.py names the Keras versions that it was tested with.
"""

from __future__ import annotations

import abc
import dataclasses
import logging
import numbers
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from lars import choice as choices
from lars import ops, trust_ratio
from lars.choice import Choice
from lars.parallel import block_sizes, parallel_range
from lars.pieces import Piece

if TYPE_CHECKING:
    from hvd_sparse.transport.communicator import Communicator

_log = logging.getLogger("hvd_sparse.lars")
Gradient: TypeAlias = "tf.Tensor | tf.IndexedSlices"
Slots: TypeAlias = "dict[str, tf.Tensor]"
Begun: TypeAlias = "tuple[tf.Tensor, Slots]"

# The methods that make up a class's step, except those that both ways of running it share.
_STEP = {"update_step", "_backend_update_step", "_update_all", "_partials", "_update", "shard_sums", "shard_step"}
_ON_PIECES = {"_begin_piece", "_end_piece"}  # the same for the other way

# Biases, and the scales and offsets of Keras's normalisation layers (`scale` is RMSNormalization's).
BIAS_AND_NORMALISATION = (r"(^|/)(bias|gamma|beta|scale)$",)


@dataclasses.dataclass(frozen=True)
class Group:
    """Variables that the native passes process together.

    Attributes:
        members: their places in the list of a step.
        places: their places in the list that the optimizer was built with.
        weights: the variables.
        sizes: number of elements of each.
        blocks: number of elements of each of their blocks.
        decays: float64, the weight decay of each.
        adapted: whether each has a trust ratio.
        shared: whether their values are the same on all ranks.
    """

    members: tuple[int, ...]
    places: tuple[int, ...]
    weights: tuple[tf.Variable, ...]
    sizes: tuple[int, ...]
    blocks: tuple[int, ...]
    decays: np.ndarray
    adapted: np.ndarray
    shared: bool


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a list of variables is updated, step after step.

    Attributes:
        groups: the groups of all variables.
        choice: which ranks compute the norms.
        name: collectives are named after it; the same on every rank.
    """

    groups: tuple[Group, ...]
    choice: Choice
    name: str


class LayerwiseOptimizer(keras.optimizers.Optimizer, abc.ABC):
    """An optimizer that scales each variable's learning rate by its norms, with two native passes over all variables.

    The first pass reads what the norms need, in blocks, which ranks may share; the second updates. Gradients that are
    `tf.IndexedSlices` are made dense first: decay and momentum affect every row, and the norms are those of all rows.

    Args:
        weight_decay: part of the update that the trust ratio scales; never Keras's own, which is decoupled.
        exclude: regular expressions that are searched for in the paths of variables.
        parallel: see `LARS`.
        **kerass: what `keras.optimizers.Optimizer` takes.
    """

    def __init__(self, *, weight_decay: float, exclude: Sequence[str], parallel: bool | Communicator, **kerass: Any):
        # Not by setattr, which would make their contents part of checkpoints.
        self.__dict__["_parallel"] = _checked_parallel(parallel)
        self.__dict__["_plans"] = {}
        patterns = _checked_patterns(exclude)
        super().__init__(weight_decay=at_least_zero(weight_decay, "weight_decay"), **kerass)
        self.exclude = patterns

    @property
    def choice(self) -> Choice | None:
        """Which ranks compute the norms, and why; None before the first step. `str(optimizer.choice)` is one line."""
        plans = list(self.__dict__["_plans"].values())
        return plans[-1].choice if plans else None

    def build(self, variables: Sequence[Any]) -> None:
        """Creates the slots; see Keras."""
        if self.built:
            return
        self._begin(variables)
        with tf.init_scope():  # in a user's tf.function slots would have no values yet when the first step is planned
            super().build(variables)
            self._make_slots(variables)

    def build_without_slots(self, variables: Sequence[Any]) -> None:
        """As `build`, but without the slots, which the caller keeps: see `shard_step`."""
        self._begin(variables)
        keras.optimizers.Optimizer.build(self, variables)

    def _begin(self, variables: Sequence[Any]) -> None:
        if tf.distribute.has_strategy():
            raise ValueError(
                f"{type(self).__name__} updates variables in place and cannot work inside a tf.distribute strategy: "
                "start one process for each device and use hvd_sparse.DistributedOptimizer."
            )
        super().exclude_from_weight_decay(var_list=variables)  # from Keras's decoupled decay
        self.__dict__["_places"] = {id(resource(variable)): place for place, variable in enumerate(variables)}

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """Raises an error: use `exclude`."""
        raise ValueError(
            f"{type(self).__name__} excludes variables by its argument exclude, from both weight decay and trust "
            'ratio: pass patterns of their paths, such as exclude=["bias$"].'
        )

    def get_config(self) -> dict[str, Any]:
        """All arguments; a given communicator is saved as parallel=True."""
        parallel = self.__dict__["_parallel"] is not False
        return {**super().get_config(), "exclude": list(self.exclude), "parallel": parallel}

    def settings_alone(self) -> dict[str, Any]:
        """Arguments for an optimizer that takes the same step on a variable that only this rank has."""
        return {"weight_decay": float(self.weight_decay), "parallel": False}

    @property
    def runs_on_shards(self) -> bool:
        """Whether `shard_step` is this class's step; False for a subclass with another step."""
        # Not of type(self): a distributed optimizer exchanges before its step, and reports its base class as its class.
        changed = next(cls for cls in self.__class__.__mro__ if vars(cls).keys() & (_STEP | _ON_PIECES))
        return vars(changed).keys() >= _ON_PIECES

    def shard_sums(self, pieces: Sequence[Piece]) -> tuple[tf.Tensor, list[Begun]]:
        """Squares of weights, and of what they are compared with, to be added up over all pieces of each variable.

        Together with `shard_step` it makes a step for callers that have pieces of variables instead of variables:
        `hvd_sparse` with `recipes.updates`. Everything is float32 except sums, norms and ratios.

        Args:
            pieces: of variables, at least one.

        Returns:
            float64 [pieces, 2], and what `shard_step` needs of each piece.
        """
        begun = [self._begin_piece(piece, decay) for piece, decay in zip(pieces, self._decays(pieces), strict=True)]
        pairs = [(piece.weight, compared) for piece, (compared, _) in zip(pieces, begun, strict=True)]
        return tf.stack([tf.stack([trust_ratio.sum_of_squares(each) for each in pair]) for pair in pairs]), begun

    def shard_step(
        self, pieces: Sequence[Piece], begun: Sequence[Begun], sums: tf.Tensor, learning_rate: Any
    ) -> list[tuple[tf.Tensor, Slots]]:
        """By how much each piece is to be lowered, [k] float32, and its new slots; changes nothing.

        Args:
            pieces: as for `shard_sums`.
            begun: returned by `shard_sums` with the sums.
            sums: float64 [pieces, 2], for each piece the sums of its whole variable.
            learning_rate: of this step.
        """
        decays = self._decays(pieces)
        adapted = np.array([not self._is_excluded(piece.variable) for piece in pieces])
        ratios = self._ratios(tf.sqrt(sums), tf.constant(decays, tf.float64), adapted)
        scales = tf.unstack(tf.cast(tf.cast(resource(learning_rate), tf.float64) * ratios, tf.float32), len(pieces))
        return [self._end_piece(*each) for each in zip(pieces, begun, scales, decays, strict=True)]

    def _decays(self, pieces: Sequence[Piece]) -> list[float]:
        """The weight decay of each piece."""
        return [0.0 if self._is_excluded(piece.variable) else float(self.weight_decay) for piece in pieces]

    def update_step(self, gradient: Gradient, variable: Any, learning_rate: Any) -> None:
        """Updates a single variable."""
        self._update_all([gradient], [variable], learning_rate)

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        self._update_all(grads, trainable_variables, learning_rate)

    @abc.abstractmethod
    def _make_slots(self, variables: Sequence[Any]) -> None:
        """Creates the slots that Keras has not created."""

    @abc.abstractmethod
    def _partials(self, group: Group, gradients: Sequence[tf.Tensor], first: int, last: int) -> tf.Tensor:
        """Sums of squares [last - first, 2] of blocks, float64: of the weights, and of what they are compared with."""

    @abc.abstractmethod
    def _ratios(self, norms: tf.Tensor, decays: Any, adapted: Any) -> tf.Tensor:
        """The trust ratios [N] from the norms [N, 2], weight decays [N] and whether each has a ratio [N]."""

    @abc.abstractmethod
    def _update(self, group: Group, gradients: Sequence[tf.Tensor], ratios: tf.Tensor, learning_rate: Any) -> None:
        """Updates weights and slots."""

    @abc.abstractmethod
    def _begin_piece(self, piece: Piece, decay: float) -> Begun:
        """What the weights of a piece are compared with, [k] float32, and its new slots, as far as they are known."""

    @abc.abstractmethod
    def _end_piece(self, piece: Piece, begun: Begun, scale: tf.Tensor, decay: float) -> tuple[tf.Tensor, Slots]:
        """By how much a piece is lowered, and its new slots; `scale` is the learning rate times the trust ratio."""

    # AutoGraph would take seconds to rewrite everything that is called in here, and would find nothing to convert.
    @tf.autograph.experimental.do_not_convert
    def _update_all(self, gradients: Iterable[Gradient], variables: Sequence[Any], learning_rate: Any) -> None:
        plan = self._plan_for(variables)
        given = list(gradients)
        for number, group in enumerate(plan.groups):
            own = [_dense(given[member], weight) for member, weight in zip(group.members, group.weights, strict=True)]
            partials = self._all_partials(group, own, plan.choice.communicator, f"{plan.name}.{number}")
            ratios = self._ratios(trust_ratio.norms(partials, group.sizes), group.decays, group.adapted)
            self._update(group, own, ratios, resource(learning_rate))

    def _all_partials(
        self, group: Group, gradients: Sequence[tf.Tensor], communicator: Communicator | None, name: str
    ) -> tf.Tensor:
        """The partial sums of all blocks of a group, whichever ranks compute them."""
        return parallel_range(
            lambda first, last: self._partials(group, gradients, first, last),
            group.blocks,
            communicator if group.shared else None,
            name,
        )

    def _plan_for(self, variables: Sequence[Any]) -> Plan:
        plans: dict[tuple[int, ...], Plan] = self.__dict__["_plans"]
        places = tuple(self.__dict__["_places"][id(resource(variable))] for variable in variables)
        if places not in plans:
            with tf.init_scope():
                plans[places] = self._make_plan(variables, places)
        return plans[places]

    def _make_plan(self, variables: Sequence[Any], places: tuple[int, ...]) -> Plan:
        """Runs on the first step: a collective, if ranks may share."""
        groups = self._groups(variables, places)
        parallel = self.__dict__["_parallel"]
        everyone = choices.world() if parallel is True else parallel or None
        if everyone is None:
            reason = "there is one rank" if parallel else "parallel=False"
            return Plan(groups, Choice(choices.ALONE, None, {}, reason), "")
        everyone.agree(self._account(groups), f"what {type(self).__name__} updates", "lars.agree")
        name = _common_name(everyone)
        if parallel is not True:
            return Plan(groups, Choice("shared as told", everyone, {}, f"by {everyone.size} ranks"), name)
        return Plan(groups, self._measured_choice(groups, everyone, name), name)

    def _measured_choice(self, groups: tuple[Group, ...], everyone: Communicator, name: str) -> Choice:
        candidates = choices.ways()
        gradients = [[tf.zeros(weight.shape, weight.dtype) for weight in group.weights] for group in groups]

        def norms(communicator: Communicator | None, label: str) -> list[tf.Tensor]:
            return [
                self._all_partials(group, own, communicator, f"{label}.{number}")
                for number, (group, own) in enumerate(zip(groups, gradients, strict=True))
            ]

        chosen = choices.choose(candidates, choices.measure(candidates, norms, everyone, f"{name}.measure"))
        if everyone.rank == 0:
            elements = sum(sum(group.blocks) for group in groups)
            _log.info("%s, norms of %s elements, %s", type(self).__name__, f"{elements:,}", chosen)
        return chosen

    def _groups(self, variables: Sequence[Any], places: tuple[int, ...]) -> tuple[Group, ...]:
        """All variables in one group, and in another those whose gradients differ between ranks."""
        exchange = getattr(self, "exchange", None)  # hvd_sparse.DistributedOptimizer's
        local = {id(resource(variable)) for variable in (exchange.local_variables() if exchange else ())}
        own = [member for member, variable in enumerate(variables) if id(resource(variable)) in local]
        common = [member for member in range(len(variables)) if member not in own]
        return tuple(
            self._group(variables, members, places, shared)
            for members, shared in ((common, True), (own, False))
            if members
        )

    def _group(self, variables: Sequence[Any], members: list[int], places: tuple[int, ...], shared: bool) -> Group:
        weights = tuple(resource(variables[member]) for member in members)
        sizes = tuple(weight.shape.num_elements() for weight in weights)
        adapted = np.array([not self._is_excluded(variables[member]) for member in members])
        return Group(
            members=tuple(members),
            places=tuple(places[member] for member in members),
            weights=weights,
            sizes=sizes,
            blocks=tuple(block_sizes(sizes, ops.BLOCK)),
            decays=np.where(adapted, float(self.weight_decay), 0.0),
            adapted=adapted,
            shared=shared,
        )

    def _is_excluded(self, variable: Any) -> bool:
        path = getattr(variable, "path", None) or variable.name.partition(":")[0]
        return any(re.search(pattern, path) for pattern in self.exclude)

    def _account(self, groups: tuple[Group, ...]) -> dict[str, Any]:
        """What must be the same on all ranks, JSON-serialisable; variables are identified by their number."""
        config = self.get_config()
        account = {key: config[key] for key in ("weight_decay", "exclude", "parallel")}
        for group in groups:
            rows = zip(group.members, group.weights, group.adapted.tolist(), strict=True)
            for member, weight, adapted in rows:
                account[f"variable {member}"] = [weight.dtype.name, *weight.shape.as_list(), adapted, group.shared]
        return {"class": type(self).__name__, **account}


def resource(variable: Any) -> Any:
    """The TensorFlow variable that a Keras variable holds; anything else unchanged."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def slots(all_slots: Sequence[Any], group: Group) -> list[tf.Variable]:
    """One kind of slot of a group's variables."""
    return [resource(all_slots[place]) for place in group.places]


def at_least_zero(number: Any, name: str) -> float:
    """The number; ValueError if it is not a number or negative."""
    if not isinstance(number, numbers.Real) or not float(number) >= 0:
        raise ValueError(f"Expected {name} to be a number of at least 0, got {number!r}.")
    return float(number)


def _dense(gradient: Gradient, weight: tf.Variable) -> tf.Tensor:
    """The gradient in the dtype of its variable; rows that occur several times are added in order."""
    if isinstance(gradient, tf.IndexedSlices):
        gradient = tf.math.unsorted_segment_sum(gradient.values, gradient.indices, weight.shape[0])
    cast = tf.cast(gradient, weight.dtype)
    # Only if it is not known: an operation for each gradient takes a step of 161 layers 1 of 30 ms.
    return cast if cast.shape == weight.shape else tf.ensure_shape(cast, weight.shape)


def _checked_patterns(exclude: Any) -> list[str]:
    patterns = [] if isinstance(exclude, str) or exclude is None else list(exclude)
    if isinstance(exclude, str) or exclude is None or not all(isinstance(pattern, str) for pattern in patterns):
        raise ValueError(f'Expected exclude to be a list of patterns, such as ["bias$"], or [], got {exclude!r}.')
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"The pattern {pattern!r} in exclude is not a regular expression: {error}.") from None
    return patterns


def _checked_parallel(parallel: Any) -> Any:
    if isinstance(parallel, bool) or callable(getattr(parallel, "allgather", None)):
        return parallel
    raise TypeError(
        f"Expected parallel to be True, False or a communicator, such as hvd_sparse.topology.node(), got {parallel!r}."
    )


_names = 0  # number of plans with sharing that this process has made


def _common_name(everyone: Communicator) -> str:
    """A name that no rank has used, the same on all, even if one rank has made optimizers that the others have not."""
    global _names
    number = int(everyone.allreduce(tf.constant(_names), "max", "lars.name"))
    _names = number + 1
    return f"lars.{number}"
