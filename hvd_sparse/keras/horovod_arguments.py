"""Horovod's arguments: what they mean here, and what to use instead of those that are not supported."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import keras
import tensorflow as tf

from hvd_sparse import recipes
from hvd_sparse.aggregators import Aggregator
from hvd_sparse.compression import Compression
from hvd_sparse.exchange import wire
from hvd_sparse.exchange.arguments import is_sum, own_set
from hvd_sparse.horovod_api.values import Average, Sum
from hvd_sparse.spec import parts

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")
_HALVES = ("float16",)  # dtypes whose sums over many ranks can overflow
# The argument order of horovod.tensorflow's DistributedOptimizer; ours is that of horovod.tensorflow.keras.
_WITH_LOCKING = (
    "optimizer",
    "name",
    "use_locking",
    "device_dense",
    "device_sparse",
    "compression",
    "sparse_as_dense",
    "backward_passes_per_step",
    "op",
    "gradient_predivide_factor",
    "average_aggregated_gradients",
    "num_groups",
    "groups",
    "process_set",
    "scale_local_gradients",
)


def exchange_options(
    aggregator: Any = None,
    compression: Any = Compression.none,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = None,
    device_dense: Any = "",
    device_sparse: Any = "",
) -> dict[str, Any]:
    """The arguments of `GradientExchange` that correspond to Horovod's.

    Raises:
        ValueError: if an argument is not supported; the message says what to do instead.
    """
    if not isinstance(device_dense, str):  # a recipe may stand in this position
        aggregator, device_dense = _in_place_of_device(aggregator, device_dense), ""
    for name, device in (("device_dense", device_dense), ("device_sparse", device_sparse)):
        if device != "":
            raise ValueError(
                f"{name}={device!r} is not supported: collectives run where their tensors are. Leave it out."
            )
    chosen = choose(aggregator, compression)
    _check_predivide(gradient_predivide_factor, op, chosen)
    _check_groups(num_groups, groups)
    return {
        "aggregator": chosen,
        "op": Sum if is_sum(op) else Average,
        "process_set": own_set(process_set, chosen),
    }


def choose(aggregator: Any, compression: Any) -> Any:
    """The recipe that Horovod's `compression` and our `aggregator` ask for together; None is the default.

    Raises:
        ValueError: if it is not one of Horovod's own, or the recipe cannot send values as float16.
    """
    if compression is Compression.none:
        return aggregator
    if compression is not Compression.fp16:
        raise ValueError(
            f"Expected hvd.Compression.none or hvd.Compression.fp16, got {compression!r}. Other forms of "
            "compression are recipes: pass aggregator=hvd.recipes.hitopk(density=0.01)."
        )
    return wire.with_wire_dtype(recipes.mean() if aggregator is None else aggregator, "float16")


def in_either_order(function: Callable[_Given, _Made]) -> Callable[_Given, _Made]:
    """Lets a function in horovod.tensorflow.keras's argument order be called in that of horovod.tensorflow, too.

    The third argument tells them apart: it is the bool `use_locking` there, and the name of a device here.
    """

    @functools.wraps(function)
    def call(*given: Any, **named: Any) -> _Made:
        if len(given) < 3 or not isinstance(given[2], bool):
            return function(*given, **named)
        if len(given) > len(_WITH_LOCKING):
            raise TypeError(f"Expected at most {len(_WITH_LOCKING)} positional arguments, got {len(given)}.")
        placed = dict(zip(_WITH_LOCKING, given, strict=False))
        twice = [name for name in placed if name in named]
        if twice:
            raise TypeError(f"{function.__name__} got multiple values for argument {twice[0]!r}.")
        arranged: Any = function  # its arguments are in another order
        return arranged(**placed, **named)

    return call


def _in_place_of_device(aggregator: Any, given: Any) -> Any:
    """The argument that was passed in place of a device, by callers that pass a recipe by position."""
    if aggregator is not None or not isinstance(given, Aggregator):
        raise TypeError(
            f"Expected the name of a device for device_dense, got {type(given).__name__}: pass a recipe by name, "
            "such as aggregator=hvd.recipes.hitopk(density=0.01)."
        )
    return given


def _check_predivide(factor: Any, op: Any, aggregator: Aggregator | None) -> None:
    """Raises ValueError unless the factor leaves the mean unchanged, up to rounding."""
    if factor == 1.0:
        return
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0.0 < factor < math.inf:
        raise ValueError(f"Expected a gradient_predivide_factor above 0, got {factor!r}.")
    if is_sum(op):
        raise ValueError(
            f"gradient_predivide_factor={factor} divides a mean in two steps, before and after the sum, and op=hvd.Sum "
            "takes no mean: pass only one of them."
        )
    if any(getattr(part, "wire_dtype", None) in _HALVES for part in parts(aggregator)):
        raise ValueError(
            f"gradient_predivide_factor={factor} is not supported with values in float16, whose sums it should keep "
            "from overflowing: use a recipe with wire_dtype='bfloat16', which has float32's range, or leave it out."
        )


def _check_groups(num_groups: Any, groups: Any) -> None:
    if isinstance(num_groups, bool) or not isinstance(num_groups, int) or num_groups < 0:
        raise ValueError(f"Expected num_groups to be an integer of at least 0, got {num_groups!r}.")
    if groups is None:
        return
    if isinstance(groups, (list, tuple)):
        named = all(isinstance(group, (list, tuple)) and all(map(_is_variable, group)) for group in groups)
    else:
        named = isinstance(groups, int) and not isinstance(groups, bool) and groups > 0
    if not named:
        raise ValueError(
            f"Expected groups to be an integer of at least 1, or a list of lists of variables, got {groups!r}."
        )


def _is_variable(candidate: Any) -> bool:
    return isinstance(candidate, (tf.Variable, keras.Variable))
