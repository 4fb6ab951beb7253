"""What takes part in the steps of a Keras optimizer: an exchange of gradients, servers, or an averaging.

The optimizer remains the object that the user made. Its class becomes a subclass whose methods ask the part that was
attached, and call Keras's own through `Own`; nowhere else in the library does an object change its class. Whoever
handles optimizers without knowing what takes part in their steps (hooks, callbacks) asks `to(optimizer)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import keras

from hvd_sparse.optimizers import slots

Kind = TypeVar("Kind", bound="Attached")

_PART = "_hvd_sparse_attached"
# Attributes of the classes of optimizers to which something is attached.
_BASE, _AGAIN = "_hvd_sparse_base", "_hvd_sparse_again_from_config"


class Own(NamedTuple):
    """The methods that an optimizer's own class has, whatever is attached to it."""

    optimizer: Any
    base: Any

    def build(self, variables: Sequence[Any]) -> None:
        """Makes the slots."""
        self.base.build(self.optimizer, variables)

    def apply(self, gradients: Sequence[Any], variables: Sequence[Any] | None) -> None:
        """Accumulates gradients, if the optimizer is told to, and makes a step with `clip`, `decay` and `update`."""
        self.base.apply(self.optimizer, gradients, variables)

    def overwrite(self, gradients: Sequence[Any], variables: Sequence[Any]) -> Any:
        """Gives some variables their gradients as values, and returns the other gradients and variables."""
        return self.base._overwrite_variables_directly_with_gradients(self.optimizer, gradients, variables)

    def clip(self, gradients: list[Any]) -> list[Any]:
        """The gradients, clipped at the optimizer's thresholds."""
        return self.base._clip_gradients(self.optimizer, gradients)

    def decay(self, variables: Sequence[Any]) -> None:
        """Applies decoupled weight decay."""
        self.base._apply_weight_decay(self.optimizer, variables)

    def update(self, gradients: Sequence[Any], variables: Sequence[Any], rate: Any) -> None:
        """Updates variables, and their slots, by their gradients."""
        self.base._backend_update_step(self.optimizer, gradients, variables, rate)

    @property
    def iterations(self) -> Any:
        """The variable that counts updates."""
        return self.base.iterations.fget(self.optimizer)

    @property
    def variables(self) -> list[Any]:
        """All variables of the optimizer."""
        return self.base.variables.fget(self.optimizer)

    def save(self, store: Any) -> None:
        """Writes the variables as arrays."""
        self.base.save_own_variables(self.optimizer, store)

    def load(self, store: Any) -> None:
        """Reads what `save` wrote."""
        self.base.load_own_variables(self.optimizer, store)

    def set_weights(self, weights: Any) -> None:
        """Gives all variables values, in their order."""
        self.base.set_weights(self.optimizer, weights)

    def end(self, variables: Sequence[Any]) -> None:
        """Ends a `fit`: gives the model's variables their moving averages, if the optimizer keeps some."""
        self.base.finalize_variable_values(self.optimizer, variables)


class Figures(NamedTuple):
    """Where the figures of what is attached come from.

    Attributes:
        step: the number of steps so far.
        read: the figures.
        group: their group in TensorBoard.
    """

    step: Callable[[], int]
    read: Callable[[], dict[str, Any]]
    group: str


class Attached:
    """The role: takes part in the steps of one optimizer, and so meets other ranks. By default, Keras's own happens.

    Attributes:
        own_pace: whether no rank waits for another.
        own_models: whether the models of ranks differ between steps.
    """

    own_pace = False
    own_models = False

    @property
    def looks_ahead(self) -> bool:
        """Whether gradients are to be computed at other weights than the shared ones: see `ahead.py`."""
        return False

    # ---- a step, in the order of the calls ----

    def build(self, own: Own, variables: Sequence[Any]) -> None:
        """Begins, when the optimizer learns its variables; called once."""
        own.build(variables)

    def scaled(self, apply: Callable[[], None]) -> None:
        """Runs the `apply` of a loss-scaling optimizer around this one, which may skip the step."""
        apply()

    def finite(self, here: Any) -> Any:
        """Whether a step under loss scaling is to be made, from whether this rank's gradients are finite."""
        return here

    def apply(self, own: Own, gradients: Sequence[Any], variables: Sequence[Any] | None) -> None:
        """A call of the optimizer, which makes a step unless gradients are being accumulated."""
        own.apply(gradients, variables)

    def overwriting(self, gradients: list[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients before those of some variables become their values, such as scales of float8."""
        return gradients

    def clip(self, own: Own, gradients: list[Any]) -> list[Any]:
        """What is passed on to `update`, of gradients that are to be clipped."""
        return own.clip(gradients)

    def decay(self, own: Own, variables: Sequence[Any]) -> None:
        """What happens where Keras applies weight decay, before `update`."""
        own.decay(variables)

    def update(self, own: Own, gradients: Sequence[Any], variables: Sequence[Any], rate: Any) -> None:
        """What happens where Keras updates variables by their gradients."""
        own.update(gradients, variables, rate)

    def end(self, own: Own, variables: Sequence[Any]) -> None:
        """What happens at the end of `fit`."""
        own.end(variables)

    # ---- what the optimizer holds, and files ----

    def iterations(self, own: Own) -> Any:
        """The variable that counts steps."""
        return own.iterations

    def variables(self, own: Own) -> list[Any]:
        """All variables of the optimizer."""
        return own.variables

    def tracked(self, children: dict[str, Any], save_type: str) -> dict[str, Any]:
        """What TensorFlow saves of the optimizer, from all that it has."""
        return children

    def require_savable(self) -> None:
        """Raises RuntimeError if the model as it is now should not be saved."""

    def save(self, own: Own, store: Any) -> None:
        """Writes the optimizer's variables."""
        own.save(store)

    def load(self, own: Own, store: Any) -> None:
        """Reads the optimizer's variables."""
        own.load(store)

    def set_weights(self, own: Own, weights: Any) -> None:
        """Gives the optimizer's variables values."""
        own.set_weights(weights)

    def publish(self) -> None:
        """Gives the model what others have of it, so that it can be evaluated and saved; no rank waits."""

    def measured(self, every: int) -> Figures | None:
        """Where its figures come from, from now on, some of them in each `every`-th step; None if it has none."""
        return None


def attach(
    optimizer: keras.optimizers.Optimizer,
    part: Attached,
    public: type = object,
    again: Callable[[keras.optimizers.Optimizer], None] | None = None,
) -> None:
    """Lets something take part in an optimizer's steps from now on.

    The `__class__` of the object remains what it was, so that whatever saves it (config, registered name, module)
    writes what can be loaded without this package.

    Args:
        optimizer: one to which nothing is attached, else a ValueError follows.
        part: takes part.
        public: a class with what users may call on this optimizer beyond what Keras has.
        again: attaches the like to an optimizer that Keras has made from this one's config; None attaches nothing.
    """
    if to(optimizer) is not None:
        raise ValueError(f"Something takes part in the steps of {optimizer.name} already: attach to another optimizer.")
    # Not by setattr, which would track what the part holds, such as residuals, in checkpoints that one rank writes.
    vars(optimizer)[_PART] = part
    base = type(optimizer)
    members = {name: getattr(base, name) for name in ("__qualname__", "__module__", "__doc__")}
    members |= {"__class__": property(lambda self: base), _BASE: base, _AGAIN: staticmethod(again or _nothing)}
    bases = (_Methods, base) if public is object else (public, _Methods, base)
    optimizer.__class__ = type(base.__name__, bases, members)


def to(optimizer: Any) -> Attached | None:
    """What takes part in an optimizer's steps, also inside a loss-scaling one; None if nothing does."""
    inner = slots.without_loss_scaling(optimizer)
    return vars(inner).get(_PART) if isinstance(inner, keras.optimizers.Optimizer) else None


def required(optimizer: Any, kind: type[Kind], does: str, way: str) -> Kind:
    """What takes part in an optimizer's steps, of a kind.

    Args:
        optimizer: with or without loss scaling around it.
        kind: the kind of part.
        does: for the error message: what such an optimizer does, such as "averages models".
        way: likewise: the call that makes one.

    Raises:
        ValueError: if there is no such part.
    """
    found = to(optimizer)
    if not isinstance(found, kind):
        raise ValueError(f"Expected an optimizer that {does}, got {type(optimizer).__name__}: wrap it with {way}.")
    return found


def _nothing(optimizer: keras.optimizers.Optimizer) -> None:
    pass


class _Methods:
    """The methods of Keras's optimizers that ask what is attached."""

    built: bool  # Keras's

    @classmethod
    def from_config(cls, config, *args, **kwargs):
        optimizer = getattr(cls, _BASE).from_config(config, *args, **kwargs)
        getattr(cls, _AGAIN)(optimizer)
        return optimizer

    @property
    def iterations(self):
        return _part(self).iterations(_own(self))

    @property
    def variables(self):
        return _part(self).variables(_own(self))

    def build(self, variables):
        if not self.built:
            _part(self).build(_own(self), variables)

    def apply(self, grads, trainable_variables=None):
        _part(self).apply(_own(self), grads, trainable_variables)

    def _overwrite_variables_directly_with_gradients(self, grads, vars):
        return _own(self).overwrite(_part(self).overwriting(grads, vars), vars)

    def _clip_gradients(self, grads):
        return _part(self).clip(_own(self), grads)

    def _apply_weight_decay(self, variables):
        _part(self).decay(_own(self), variables)

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        _part(self).update(_own(self), grads, trainable_variables, learning_rate)

    def finalize_variable_values(self, var_list):
        _part(self).end(_own(self), var_list)

    def _trackable_children(self, save_type="checkpoint", **options):  # as Keras's layers define it
        children = getattr(self, _BASE)._trackable_children(self, save_type, **options)
        return _part(self).tracked(children, save_type)

    def save_own_variables(self, store):
        _part(self).save(_own(self), store)

    def load_own_variables(self, store):
        _part(self).load(_own(self), store)

    def set_weights(self, weights):
        _part(self).set_weights(_own(self), weights)


def _part(optimizer: Any) -> Attached:
    return vars(optimizer)[_PART]


def _own(optimizer: Any) -> Own:
    return Own(optimizer, getattr(optimizer, _BASE))
