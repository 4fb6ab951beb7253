"""Arguments of an exchange: Horovod's operation and process set, and what a recipe needs from the optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.aggregators import Aggregator, DenseBelow, LocalSteps, Schedule
from hvd_sparse.compression.momentum import MomentumCorrection
from hvd_sparse.compression.senders import Sender
from hvd_sparse.compression.updates import LocalUpdates
from hvd_sparse.horovod_api import values
from hvd_sparse.spec import LocalOptimizer, parts
from hvd_sparse.transport.process_sets import ProcessSet, global_process_set


def is_sum(op: Any) -> bool:
    """Whether gradients are summed instead of averaged.

    Raises:
        ValueError: if it is another of Horovod's operations, or not an operation.
    """
    name = None if isinstance(op, bool) else values.NAMES.get(op) if isinstance(op, int) else None
    if op is None or name == "Average":
        return False
    if name == "Sum":
        return True
    if name == "Adasum":
        raise ValueError(
            "op=hvd.Adasum is not supported for gradients: Horovod has it only with MPI, and not for Keras "
            "optimizers. Use hvd.Average; with MPI, in your own loop, call hvd.allreduce(gradient, "
            "op=hvd.Adasum) on the gradients of a plain tf.GradientTape."
        )
    told = f"hvd.{name}" if name else repr(op)
    raise ValueError(
        f"op={told} is not supported for gradients: use hvd.Average or hvd.Sum. Reduce other tensors with "
        "hvd.allreduce(tensor, op=...)."
    )


def own_set(process_set: Any, aggregator: Aggregator | None) -> Any:
    """The process set in which gradients are exchanged; None for all ranks.

    Raises:
        TypeError: if it is not a process set.
        ValueError: if the recipe needs nodes, which a process set does not have.
    """
    if process_set is None or process_set is global_process_set:
        return None
    if not isinstance(process_set, ProcessSet):
        raise TypeError(f"Expected process_set to be an hvd.ProcessSet, got {type(process_set).__name__}.")
    members = (part for part in parts(aggregator) if isinstance(part, Aggregator))
    by_nodes = next((part for part in members if part.goes_by_nodes), None)
    if by_nodes is not None:
        raise ValueError(
            f"process_set={process_set} cannot be combined with {type(by_nodes).__name__}, which exchanges within and "
            "across the nodes of all ranks. In a process set use a single-level recipe, such as hvd.recipes.mean(), "
            "topk(density), mstopk(density) or sparcml(density)."
        )
    return process_set


def is_deterministic() -> bool:
    """Whether `tf.config.experimental.enable_op_determinism` was called."""
    with tf.init_scope(), tf.device("CPU"):
        return bool(ops.library().hvd_sparse_is_deterministic())


def takes_momentum(recipe: Any) -> bool:
    """Whether a part of a recipe takes over the optimizer's momentum.

    Raises:
        ValueError: if a stage of a schedule does so.
    """
    return any(isinstance(part, MomentumCorrection) and part.momentum is None for part in _parts(recipe))


def sends_updates(recipe: Any, op: Any = None) -> bool:
    """Whether a recipe runs the optimizer itself and returns means to be subtracted from the weights.

    Raises:
        ValueError: as for `takes_momentum`; or if `op` asks for sums, which such a recipe does not have.
    """
    found = any(isinstance(part, LocalUpdates) for part in _parts(recipe))
    if found and is_sum(op):
        raise ValueError("op=hvd.Sum cannot be used with a recipe that exchanges weight updates: use hvd.Average.")
    return found


def dense_apart(recipe: Any, shapes: Mapping[str, Sequence[int]]) -> set[str]:
    """The variables that a recipe sends whole while it sends a part of the others."""
    found = (part for part in _parts(recipe) if isinstance(part, DenseBelow))
    return {name for part in found for name in part.small(shapes)}


def looks_ahead(recipe: Any) -> bool:
    """Whether gradients are computed at the weights that a node would have if its unsent updates were applied."""
    return any(isinstance(part, LocalUpdates) and part.ahead for part in _parts(recipe))


def trains_alone(recipe: Any) -> bool:
    """Whether a node takes steps between two exchanges, at its own weights."""
    return any(isinstance(part, LocalSteps) for part in _parts(recipe))


def takes_over(recipe: Any) -> bool:
    """Whether a recipe takes over the optimizer's momentum or its whole step.

    Raises:
        ValueError: as for `takes_momentum`.
    """
    return takes_momentum(recipe) or sends_updates(recipe)


def _parts(recipe: Any) -> list[Any]:
    """All parts of a recipe; raises ValueError if a stage of a schedule keeps state that the next one would lack."""
    found = list(parts(recipe))
    if any(isinstance(part, Schedule) for part in found) and any(isinstance(part, Sender) for part in found):
        raise ValueError(
            "A stage of this schedule keeps momentum, which the next stage would lack. If only the density "
            "changes, use hvd.recipes.warmup(recipe, stage_steps); otherwise leave out momentum correction and updates."
        )
    return found


def described(optimizer: Any) -> LocalOptimizer | None:
    """Returns the description of an optimizer; raises TypeError if it is the optimizer itself."""
    if optimizer is None or isinstance(optimizer, LocalOptimizer):
        return optimizer
    raise TypeError(
        f"An exchange does not own an optimizer, got {type(optimizer).__name__}: use "
        "hvd.DistributedOptimizer(optimizer, aggregator=...), and its apply(gradients, variables) in your own loop."
    )


def require_no_residual(aggregator: Aggregator) -> None:
    """Raises TypeError if a recipe has a residual, which a gradient that belongs to no variable cannot have."""
    if not aggregator.sends_all:
        raise TypeError(
            "Expected variables as sources, got a tensor: a residual belongs to a variable. Compute the "
            "gradients of tensors with a tape and a dense recipe, or average them with hvd.allreduce."
        )


def require_all_ranks(process_set: Any) -> None:
    """Raises ValueError if the ranks of a process set exchange, whose residuals no checkpoint holds."""
    if process_set is not None:
        raise ValueError(
            f"The residuals of {process_set} cannot be saved or restored: checkpoints hold those of all "
            "ranks. Save model and optimizer with model.save, or leave out process_set."
        )
