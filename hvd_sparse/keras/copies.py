"""Copies of a compiled model, or of its optimizer, which exchange like the original.

Keras copies a model by what a file would hold, which says nothing of the exchange: `copy.deepcopy` and pickle take what
`__reduce__` returns, `keras.models.clone_model` what `get_compile_config` does. So that a file stays one that loads
without this package, the way in which the original was made distributed travels beside that.

A copy has residuals, counts of exchanges and telemetry of its own, which begin anew. A copied model's weights, moments
and count of steps continue. Moments that only rank 0 has gathered continue on all ranks, as each exchange begins with
those of rank 0's optimizer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras

from hvd_sparse.keras import hooks
from hvd_sparse.keras.exchanging import exchange_of, meets_otherwise
from hvd_sparse.keras.tracked import optimizers_of
from hvd_sparse.optimizers import slots, without_slots
from hvd_sparse.transport import first_rank

_AGAIN = "_hvd_sparse_again"
_LOADED = "_hvd_sparse_loaded"
_HOOKED = "_hvd_sparse_copies"
# Arguments that belong to the original's layers or steps.
_OF_THE_ORIGINAL = {"local_layers": (), "groups": None, "telemetry": None}


@dataclasses.dataclass(frozen=True)
class Distribution:
    """How an optimizer was made distributed.

    Attributes:
        again: called as again(optimizer, local_variables=...), makes another one distributed in the same way.
        has_local: whether some of the original's variables are local.
        local: places of these among the model's trainable variables; None if the model is not known or not built.
    """

    again: Callable[..., None]
    has_local: bool
    local: tuple[int, ...] | None

    def __deepcopy__(self, memo: dict[int, Any]) -> Distribution:
        return self  # a recipe keeps nothing of a training

    def give_to_one_of(self, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
        """Makes an optimizer of a copied model distributed.

        Raises:
            ValueError: if the original has local variables, and it is unknown which of the copy's they are.
        """
        self._give(optimizer, model.trainable_variables if model.built else None)

    def give_to_optimizer(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Makes a copied optimizer distributed; ValueError if the original has local variables."""
        self._give(optimizer, None)

    def _give(self, optimizer: Any, variables: list[Any] | None) -> None:
        known = variables is not None and self.local is not None and max(self.local, default=-1) < len(variables)
        if self.has_local and not known:
            raise ValueError(
                f"A copy of {type(optimizer).__name__} cannot know which variables of its model are local: make a new "
                "optimizer, hvd.DistributedOptimizer(optimizer, local_layers=[...]), with the layers of the new model."
            )
        local = [variables[place] for place in self.local or ()] if variables is not None else []
        self.again(slots.without_loss_scaling(optimizer), local_variables=local)


class CompileConfig(dict):
    """What `get_compile_config` returns, which is saved like any dictionary.

    Attributes:
        distributions: how the model's optimizers were made distributed, by where they are; {} if none is.
    """

    distributions: Mapping[str, Distribution] = {}


def remember(optimizer: keras.optimizers.Optimizer, again: Callable[..., None]) -> None:
    """Keeps how an optimizer was made distributed, for its copies."""
    vars(optimizer)[_AGAIN] = again


def of_optimizer(optimizer: Any) -> Distribution | None:
    """How an optimizer was made distributed, also inside a loss-scaling one; None if it is not."""
    exchange = exchange_of(optimizer)
    if exchange is None:
        return None
    again = vars(slots.without_loss_scaling(optimizer))[_AGAIN]
    left_out = {name: value for name, value in _OF_THE_ORIGINAL.items() if name in again.keywords}
    return Distribution(functools.partial(again, **left_out), bool(exchange.has_local), None)


def of_model(model: keras.Model) -> dict[str, Distribution]:
    """How the distributed optimizers of a compiled model were made so, by where they are (`tracked.optimizers_of`)."""
    found = {}
    for path, optimizer in optimizers_of(model).items():
        distribution, exchange = of_optimizer(optimizer), exchange_of(optimizer)
        if distribution is not None and exchange is not None and model.built:
            are_local = exchange.are_local(model.trainable_variables)
            local = tuple(place for place, local in enumerate(are_local) if local)
            distribution = dataclasses.replace(distribution, local=local)
        if distribution is not None:
            found[path] = distribution
    return found


def give_to_all(model: keras.Model, distributions: Mapping[str, Distribution]) -> None:
    """Makes the optimizers of a copied model distributed like those of the original, if it has any.

    Raises:
        ValueError: if it has some of them only, or as for `Distribution.give_to_one_of`.
    """
    held = optimizers_of(model)
    lacking = [path for path in distributions if path not in held]
    if held and lacking:
        raise ValueError(
            f"The copy of {type(model).__name__} has no optimizer {lacking[0]!r} that could exchange as the original's "
            "does: save it in get_compile_config and set it in compile_from_config, or compile the copy anew."
        )
    for path, optimizer in held.items():
        if path in distributions:
            distributions[path].give_to_one_of(model, optimizer)
    if held and distributions:
        hooks.adopt(model)


def was_loaded(optimizer: Any) -> bool:
    """Whether an optimizer was made by Keras from what a file holds."""
    return isinstance(optimizer, keras.optimizers.Optimizer) and vars(optimizer).get(_LOADED, False)


def forget_loaded(optimizer: keras.optimizers.Optimizer) -> None:
    """Makes `was_loaded` false."""
    vars(optimizer)[_LOADED] = False


def install() -> None:
    """Installs the hooks in Keras; a second call does nothing."""
    for owner, name, hook in (
        (keras.Model, "__reduce__", _hooked_reduce),
        (keras.optimizers.Optimizer, "__reduce__", _hooked_reduce_of_optimizer),
        (keras.Model, "get_compile_config", _hooked_get_compile_config),
        (keras.Model, "compile_from_config", _hooked_compile_from_config),
    ):
        original = getattr(owner, name)
        if not hasattr(original, _HOOKED):
            hooked = functools.wraps(original)(hook(original))
            setattr(hooked, _HOOKED, True)
            setattr(owner, name, hooked)


def _hooked_reduce(original: Any) -> Any:
    def reduce(self):
        distributions = of_model(self)
        if not distributions:
            return original(self)
        with contextlib.ExitStack() as stack:
            for optimizer in optimizers_of(self).values():
                stack.enter_context(_savable_everywhere(slots.without_loss_scaling(optimizer)))
            make, arguments = original(self)
        return _copied_model, (make, arguments, distributions)

    return reduce


def _copied_model(
    make: Callable[..., keras.Model], arguments: tuple[Any, ...], distributions: Mapping[str, Distribution]
) -> Any:
    """A model made from a copy's bytes; at the top of the module, as pickles name it."""
    model = make(*arguments)
    give_to_all(model, distributions)
    return model


@contextlib.contextmanager
def _savable_everywhere(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Context in which an optimizer whose moments were gathered on rank 0 can be saved on other ranks, too.

    Theirs are zeros, but for those of variables that are not exchanged.
    """
    stand_in = without_slots.of(optimizer)
    if stand_in is None or stand_in.gathered is not None:
        yield
        return
    stand_in.gather(optimizer, {})
    try:
        yield
    finally:
        stand_in.gathered = None


def _hooked_reduce_of_optimizer(original: Any) -> Any:
    def reduce(self):
        distribution = of_optimizer(self)
        if distribution is None:
            return original(self)
        if self.built and int(self.iterations) > 0:
            first_rank.warn(
                f"The copy of {type(self).__name__} has its settings and exchanges like it, but begins with new "
                "moments and counts from 0, as copies of Keras's optimizers do: to keep them, copy the compiled model."
            )
        return _copied_optimizer, (self.__class__, self.get_config(), distribution)

    return reduce


def _copied_optimizer(base: Any, config: dict[str, Any], distribution: Distribution) -> keras.optimizers.Optimizer:
    """An optimizer made from its settings; at the top of the module, as pickles name it."""
    optimizer = base.from_config(config)
    distribution.give_to_optimizer(optimizer)
    return optimizer


def _hooked_get_compile_config(original: Any) -> Any:
    def get_compile_config(self):
        config = original(self)
        if not isinstance(config, dict) or meets_otherwise(getattr(self, "optimizer", None)):
            return config
        carried = CompileConfig(config)
        carried.distributions = of_model(self)
        return carried

    return get_compile_config


def _hooked_compile_from_config(original: Any) -> Any:
    def compile_from_config(self, config):
        original(self, config)
        optimizer = getattr(self, "optimizer", None)
        if optimizer is None:
            return
        if not isinstance(config, CompileConfig):
            vars(optimizer)[_LOADED] = True
        else:
            give_to_all(self, config.distributions)

    return compile_from_config
