"""Horovod's arguments: what they mean here, and what to do instead of those that cannot be had."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from hvd_sparse import recipes, topology, wire
from hvd_sparse.aggregators import Aggregator, Auto, Hierarchical
from hvd_sparse.topology import Compression

_OPS = {
    topology.Average: "hvd.Average",
    topology.Sum: "hvd.Sum",
    topology.Adasum: "hvd.Adasum",
    topology.Min: "hvd.Min",
    topology.Max: "hvd.Max",
    topology.Product: "hvd.Product",
}
_HALVES = ("float16",)  # whose sums over many ranks can overflow
# The order of horovod.tensorflow's DistributedOptimizer; that of horovod.tensorflow.keras is our own.
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
    op: Any = topology.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = None,
    device_dense: Any = "",
    device_sparse: Any = "",
) -> dict[str, Any]:
    """The arguments of `GradientExchange` that Horovod's ask for.

    Raises:
        ValueError: where an argument cannot be had, with what to do instead.
    """
    if not isinstance(device_dense, str):  # where a recipe stood before Horovod's arguments were all taken
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
        "op": topology.Sum if is_sum(op) else topology.Average,
        "process_set": own_set(process_set, chosen),
    }


def choose(aggregator: Any, compression: Any) -> Any:
    """The recipe that Horovod's `compression` and our `aggregator` ask for together; None is the default.

    Raises:
        ValueError: where it is none of Horovod's own, or the recipe cannot send values as float16.
    """
    if compression is Compression.none:
        return aggregator
    if compression is not Compression.fp16:
        raise ValueError(
            f"Expected hvd.Compression.none or hvd.Compression.fp16, got {compression!r}. What else can be sent is a "
            "recipe: pass aggregator=hvd.recipes.hitopk(density=0.01)."
        )
    return wire.with_wire_dtype(recipes.mean() if aggregator is None else aggregator, "float16")


def is_sum(op: Any) -> bool:
    """Whether gradients are added up, and not averaged.

    Raises:
        ValueError: where it is another of Horovod's operations, or none.
    """
    name = None if isinstance(op, bool) else _OPS.get(op) if isinstance(op, int) else None
    if op is None or name == "hvd.Average":
        return False
    if name == "hvd.Sum":
        return True
    if name == "hvd.Adasum":
        raise ValueError(
            "op=hvd.Adasum is not supported for gradients here: Horovod has it with MPI alone, and not for Keras "
            "optimizers. Use hvd.Average; under MPI, in a loop of your own, call hvd.allreduce(gradient, "
            "op=hvd.Adasum) on the gradients of a plain tf.GradientTape."
        )
    raise ValueError(
        f"op={name or repr(op)} is not supported for gradients: use hvd.Average or hvd.Sum. Tensors of other kinds are "
        "reduced by hvd.allreduce(tensor, op=...)."
    )


def own_set(process_set: Any, aggregator: Aggregator | None) -> Any:
    """The process set in which gradients are exchanged; None for all ranks.

    Raises:
        TypeError: where it is no process set.
        ValueError: where the recipe exchanges by nodes, which a process set does not have.
    """
    if process_set is None or process_set is topology.global_process_set:
        return None
    if not isinstance(process_set, topology.ProcessSet):
        raise TypeError(f"Expected process_set to be an hvd.ProcessSet, got {type(process_set).__name__}.")
    by_nodes = next((part for part in wire.parts(aggregator) if isinstance(part, (Hierarchical, Auto))), None)
    if by_nodes is not None:
        raise ValueError(
            f"process_set={process_set} cannot be had beside {type(by_nodes).__name__}, which exchanges inside the "
            "nodes of all ranks and across them. In a process set use a recipe of one level, as hvd.recipes.mean(), "
            "topk(density), mstopk(density) or sparcml(density)."
        )
    return process_set


def in_either_order(function: Callable[..., Any]) -> Callable[..., Any]:
    """Lets a function of horovod.tensorflow.keras's order be called in that of horovod.tensorflow, known by its bool.

    The third argument is `use_locking` there, and the name of a device here.
    """

    @functools.wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        if len(given) < 3 or not isinstance(given[2], bool):
            return function(*given, **named)
        if len(given) > len(_WITH_LOCKING):
            raise TypeError(f"Expected at most {len(_WITH_LOCKING)} arguments by position, got {len(given)}.")
        placed = dict(zip(_WITH_LOCKING, given, strict=False))
        twice = [name for name in placed if name in named]
        if twice:
            raise TypeError(f"{function.__name__} got {twice[0]!r} by position and by name.")
        return function(**placed, **named)

    return call


def _in_place_of_device(aggregator: Any, given: Any) -> Any:
    """What was given in the place of a device, by who passes a recipe by position."""
    if aggregator is not None or not isinstance(given, Aggregator):
        raise TypeError(
            f"Expected the name of a device for device_dense, got {type(given).__name__}: pass a recipe by its name, "
            "as aggregator=hvd.recipes.hitopk(density=0.01)."
        )
    return given


def _check_predivide(factor: Any, op: Any, aggregator: Aggregator | None) -> None:
    """Raises where the mean with this factor is not the one without, up to rounding."""
    if factor == 1.0:
        return
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0.0 < factor < math.inf:
        raise ValueError(f"Expected a gradient_predivide_factor above 0, got {factor!r}.")
    if is_sum(op):
        raise ValueError(
            f"gradient_predivide_factor={factor} divides before and after the sum that a mean is made of, and "
            "op=hvd.Sum is no mean: leave one of them out."
        )
    if any(getattr(part, "wire_dtype", None) in _HALVES for part in wire.parts(aggregator)):
        raise ValueError(
            f"gradient_predivide_factor={factor} is not supported where values travel as float16, whose sums it would "
            "keep from overflowing: pass the recipe wire_dtype='bfloat16', which has float32's range, or leave it out."
        )


def _check_groups(num_groups: Any, groups: Any) -> None:
    if isinstance(num_groups, bool) or not isinstance(num_groups, int) or num_groups < 0:
        raise ValueError(f"Expected num_groups to be a whole number, at least 0, got {num_groups!r}.")
    if groups is None:
        return
    if isinstance(groups, (list, tuple)):
        named = all(isinstance(group, (list, tuple)) and all(map(_is_variable, group)) for group in groups)
    else:
        named = isinstance(groups, int) and not isinstance(groups, bool) and groups > 0
    if not named:
        raise ValueError(
            f"Expected groups to be a number of groups, at least 1, or a list of lists of variables, got {groups!r}."
        )


def _is_variable(candidate: Any) -> bool:
    return isinstance(candidate, (tf.Variable, keras.Variable))
