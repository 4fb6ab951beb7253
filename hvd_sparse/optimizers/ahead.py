"""Looking ahead: gradients are computed at the weights that a node would have if its unsent updates were applied.

A recipe of updates with `ahead` evaluates, saves and shares the replicated weights w. But while gradients are computed,
the variables hold w minus what this rank's node has not sent yet. Then they get back exactly w, and the update is
applied to that. If a step fails in between, they get back w, too. With sharded servers, w is the rank's copy of the
parameters. `tapes.py` says when this begins and ends, `graph_writes.py` notices what a step writes meanwhile.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from hvd_sparse.optimizers import slots, tapes
from hvd_sparse.optimizers.graph_writes import uses, writes_among
from hvd_sparse.optimizers.lowering import InTensors, InVariables, Part, part_of
from hvd_sparse.optimizers.variables import path_of, resource
from hvd_sparse.transport import first_rank

_AHEAD = "_hvd_sparse_ahead"


class _Lowered(NamedTuple):
    """What is lowered now.

    Attributes:
        parts: the variables.
        hold: what holds their shared values.
        graph: where they were lowered; None in eager code.
        uses: of each variable, by operations before those of the step; empty in eager code.
        written: the `id` of each variable that the step has written since.
    """

    parts: list[Part]
    hold: InVariables | InTensors
    graph: tf.Graph | None
    uses: list[dict[str, str]]
    written: set[int]


class Ahead:
    """Subtracts offsets from variables while gradients are computed.

    What a step writes to a variable meanwhile is kept. Either it acts on the shared weights, and the variable is never
    taken ahead again, which must be known before its offset changes for the first time. Or it joins the node's updates,
    and the node is ahead by it as well.

    Args:
        variables: Keras or TensorFlow variables.
        joins: whether what a step writes joins the node's updates.

    Attributes:
        offsets: what is subtracted, in each variable's shape and dtype.
    """

    def __init__(self, variables: Sequence[Any], joins: bool = False):
        with tf.init_scope():
            self._parts = [part_of(each, self._is_written) for each in variables]
            self._flag = tf.Variable(False, trainable=False, name="looking_ahead")
        self.offsets = [part.offset for part in self._parts]
        self._joins = joins
        self._written: set[int] = set()  # the `id` of each variable that was ever written while it was lowered
        self._lowered: _Lowered | None = None
        self._moved_in: weakref.ref[Any] | None = None  # the graph in which offsets were last moved
        self._looked_in: weakref.ref[Any] | None = None  # the graph in which gradients were last computed ahead
        self._looked = self._told = self._landed_in_trace = False

    def lower(self) -> None:
        """Subtracts the offsets from the variables, if they are not lowered already."""
        self.looked()
        if self._lowered is not None:
            return
        parts = self._ahead()
        hold = InTensors(parts) if tapes.in_one_program() else InVariables(parts, self._flag)
        hold.lower()
        in_graph = not tf.executing_eagerly()
        graph = tf.compat.v1.get_default_graph() if in_graph else None
        self._lowered = _Lowered(parts, hold, graph, [uses(part.variable) for part in parts if in_graph], set())
        for part in parts:
            part.watched.begin()

    def land(self) -> list[Any]:
        """Restores the variables if they are lowered; what follows has to depend on the result."""
        lowered = self._lowered
        if lowered is None:
            return []
        if tf.executing_eagerly():
            self.recover()
            return []
        self._end_watching()
        if lowered.graph not in _graphs():
            return [self._land_if_lowered()]
        self._find_other_writes(lowered)
        self._landed_in_trace = True
        return self._give_back(lowered)

    def land_before_update(self) -> list[Any]:
        """As `land`; a graph whose caller may have lowered the variables asks that when it runs."""
        operations = self.land()
        if operations or self._landed_in_trace or tf.executing_eagerly():
            return operations
        return [self._land_if_lowered()]

    def leave(self) -> None:
        """Restores the variables at the end of a context, if that was not done."""
        if tf.executing_eagerly():
            self.recover()
        else:
            self.land()

    def recover(self) -> None:
        """As `leave`, also if a graph has lowered them and then failed; call it in eager code."""
        lowered = self._lowered
        self._end_watching()
        if not self._flag.numpy():
            return
        if lowered is None or lowered.graph is not None:
            InVariables(self._ahead(), self._flag).restore(self._ahead())
        else:
            self._give_back(lowered)

    def looked(self) -> None:
        """Notes that gradients were computed at the node's own weights."""
        self._looked = True
        if not tf.executing_eagerly():
            self._looked_in = _outermost()

    def warn_if_at_shared_weights(self) -> None:
        """Warns once if gradients are applied that were not computed ahead; call it once for each update."""
        elsewhere = self._looked_in is not None and self._looked_in != _outermost()  # a function that is not traced now
        if not (self._looked or elsewhere or self._told):
            first_rank.warn(
                "The recipe looks ahead, but gradients were computed at the weights that all ranks share: compute them "
                "in `with hvd.looking_ahead(optimizer)`, as model.fit does, or accuracy suffers."
            )
            self._told = True
        self._looked = self._landed_in_trace = False

    def move(self, unsent: Mapping[int, tf.Tensor]) -> None:
        """Sets the offsets to what is not sent yet, by the `id` of the variable."""
        self._moved_in = _outermost()
        for part in self._ahead():
            known = unsent.get(id(part.variable))
            if known is not None:
                part.offset.assign(tf.cast(known, part.offset.dtype))
            elif id(part.variable) in self._written:  # it has no update that the write could join
                resource(part.variable).assign_sub(part.offset)
                part.offset.assign(tf.zeros_like(part.offset))

    def forget(self) -> None:
        """Sets the offsets to zero, after the variables were given other weights."""
        for offset in self.offsets:
            offset.assign(tf.zeros_like(offset))

    def joined(self) -> dict[int, tf.Tensor]:
        """By how much the node is ahead in the variables whose writes join its updates, by their `id`."""
        if not self._joins:
            return {}
        written = (part for part in self._parts if id(part.variable) in self._written)
        return {id(part.variable): part.offset.read_value() for part in written}

    def _ahead(self) -> list[Part]:
        return [part for part in self._parts if self._joins or id(part.variable) not in self._written]

    def _is_written(self, variable: Any) -> None:
        """Called before a write to a variable that is lowered."""
        assert self._lowered is not None
        part = next(part for part in self._lowered.parts if part.variable is variable)
        self._note_write(part, self._lowered)

    def _find_other_writes(self, lowered: _Lowered) -> None:
        """Notes the writes of a graph that are not by methods of a variable."""
        if lowered.graph is not _graphs()[0]:
            return
        for part, before in zip(lowered.parts, lowered.uses, strict=True):
            if writes_among(before, uses(part.variable)):
                self._note_write(part, lowered)

    def _note_write(self, part: Part, lowered: _Lowered) -> None:
        number, name = id(part.variable), path_of(part.variable)
        if number in lowered.written:
            return
        if self._joins and part.offset.dtype != tf.float32:
            raise ValueError(
                f"The step writes {name} ({part.offset.dtype.name}) while its gradient is computed. Between two "
                "exchanges such a write joins the node's updates, which needs float32: write it before the tape or "
                "after its gradient, or use a recipe that exchanges in every step."
            )
        if not self._joins and self._may_be_ahead(part):
            raise ValueError(
                f"The step writes {name} while its gradient is computed, and did not do so from the first step on. It "
                "now holds this node's own weights, which include updates that were not sent, so the write would "
                "differ between nodes: write it before the tape or after its gradient, or use a recipe without ahead, "
                "such as hvd.recipes.hitopk(0.01)."
            )
        lowered.written.add(number)
        self._written.add(number)

    def _may_be_ahead(self, part: Part) -> bool:
        """Whether a variable's offset is not zero, or is moved before in the function that is traced."""
        if not tf.executing_eagerly() and self._moved_in == _outermost():
            return True
        with tf.init_scope():
            return bool(np.any(part.offset.numpy()))

    def _end_watching(self) -> None:
        if self._lowered is not None:
            for part in self._lowered.parts:
                part.watched.end()
        self._lowered = None

    def _give_back(self, lowered: _Lowered) -> list[Any]:
        if self._joins:
            for part in lowered.parts:
                if id(part.variable) in lowered.written:
                    part.offset.assign(lowered.hold.shared(part) - part.value)
        kept = set() if self._joins else lowered.written
        return lowered.hold.restore([part for part in lowered.parts if id(part.variable) not in kept])

    def _land_if_lowered(self) -> tf.Tensor:
        def give_back() -> bool:
            InVariables(self._ahead(), self._flag).restore(self._ahead())
            return True

        return tf.cond(self._flag, give_back, lambda: False)


def _graphs() -> list[Any]:
    """The graph that is being built, and those of the functions around it."""
    found = [tf.compat.v1.get_default_graph()]
    while (outer := getattr(found[-1], "outer_graph", None)) is not None:
        found.append(outer)
    return found


def _outermost() -> weakref.ref[Any] | None:
    """The graph of the function that is traced, with all functions that it calls; None in eager code."""
    functions = [] if tf.executing_eagerly() else [each for each in _graphs() if hasattr(each, "outer_graph")]
    return weakref.ref(functions[-1]) if functions else None


def begin(optimizer: keras.optimizers.Optimizer, variables: Sequence[Any], joins: bool = False) -> Ahead:
    """Makes an optimizer look ahead from now on, with these variables; `joins` as for `Ahead`."""
    made = vars(optimizer)[_AHEAD] = Ahead(variables, joins)
    return made


def of(optimizer: Any) -> Ahead | None:
    """The `Ahead` of an optimizer, also inside a loss-scaling one; None if it does not look ahead."""
    inner = slots.without_loss_scaling(optimizer)
    return vars(inner).get(_AHEAD) if isinstance(inner, keras.optimizers.Optimizer) else None


def of_all(optimizers: Sequence[Any]) -> list[Ahead]:
    """The `Ahead` of each optimizer that looks ahead."""
    return [found for found in map(of, optimizers) if found is not None]


def landed(optimizer: Any, gradients: Sequence[Any]) -> list[Any]:
    """The gradients, after the variables are restored to the values to which these are to be applied."""
    found = of(optimizer)
    return list(gradients) if found is None else tapes.after(found.land_before_update(), list(gradients))


def to_apply(optimizer: Any, gradients: Sequence[Any]) -> list[Any]:
    """As `landed`; call it once for each update. Warns if the gradients were not computed ahead."""
    ready = landed(optimizer, gradients)
    for found in of_all([optimizer]):
        found.warn_if_at_shared_weights()
    return ready


def offsets(optimizer: Any) -> list[tf.Variable]:
    """The offsets, which differ between nodes, for checkpoints."""
    found = of(optimizer)
    return [] if found is None else found.offsets


@contextlib.contextmanager
def looking_ahead(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Context in which gradients are computed at this rank's node's own weights, for recipes with `ahead`.

    The variables hold these weights from here until a tape in the context has computed its gradient, until the context
    ends, or until the optimizer gets the gradients, whichever is first; and again for each further tape in the context.
    `fit` does this itself, for each tape from its beginning to its gradient; in your own loop:

        with hvd.looking_ahead(optimizer), tf.GradientTape() as tape:
            loss = ...
        optimizer.apply(tape.gradient(loss, variables), variables)

    If the recipe does not look ahead, nothing happens. With several optimizers, write one context for each.

    Before and after, a step reads and writes the weights that all ranks share, as with every other recipe: clip, decay
    or tie them, or update a teacher there. A write while the variables hold a node's own weights, such as that of
    `keras.layers.SpectralNormalization`, is kept: it acts on the shared weights, and that variable is not taken ahead
    any more. With `every` (and `hvd.recipes.diloco`) it joins the node's update instead, so nodes are averaged at the
    next exchange; a write outside acts on the shared weights in that very step, not on what a node has gathered.

    Args:
        optimizer: a distributed optimizer, built on the model's variables.

    Raises:
        ValueError: where a variable is written inside for the first time after its node may be ahead, as the write
            would differ between nodes; or, with `every`, if it is not float32.
    """
    found = of(optimizer)
    if found is None:
        yield
        return
    with tapes.lowering(lambda: [found]):
        found.lower()
        try:
            yield
        finally:
            found.leave()


@contextlib.contextmanager
def tapes_look_ahead(optimizers: Callable[[], Sequence[Any]]) -> Iterator[None]:
    """Context in which each tape looks ahead, from its entry to its gradient.

    Args:
        optimizers: returns the optimizers of the step; those that do not look ahead are left out.
    """
    with tapes.lowering(lambda: of_all(optimizers())):
        try:
            yield
        finally:
            for found in of_all(optimizers()):
                found.leave()
