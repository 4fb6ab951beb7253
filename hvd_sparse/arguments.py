"""Horovod's arguments: which are taken, and what to do instead of those that are not."""

from __future__ import annotations

from typing import Any

from hvd_sparse import recipes, topology
from hvd_sparse.aggregators import Aggregator
from hvd_sparse.topology import Compression

_OWN_GROUPS = "Gradients are fused in buckets in the order in which they become ready; set their size by bucket_bytes."
_WHOLE_WORLD = "All ranks take part; keep variables local with local_layers or register_local_var."
_MEAN = "The result is always the mean over all ranks; fold any other factor into the learning rate."
_ACCUMULATE = "Accumulation is Keras's own: pass gradient_accumulation_steps=n to the optimizer."
# Horovod's arguments that are not taken, the values that ask for nothing, and what to do instead.
_NOT_TAKEN: dict[str, tuple[tuple[Any, ...], str]] = {
    "device_dense": (("",), "Collectives run where their tensors are."),
    "device_sparse": (("",), "Collectives run where their tensors are."),
    "op": ((topology.Average,), _MEAN),
    "gradient_predivide_factor": ((1.0,), _MEAN),
    "backward_passes_per_step": ((1,), _ACCUMULATE),
    "average_aggregated_gradients": ((False, True), _ACCUMULATE),
    "num_groups": ((0,), _OWN_GROUPS),
    "groups": ((None,), _OWN_GROUPS),
    "process_set": ((None,), _WHOLE_WORLD),
}


def choose(aggregator: Aggregator | None, compression: Any) -> Aggregator | None:
    """The recipe that Horovod's `compression` and our `aggregator` ask for together; None is the default."""
    if compression is Compression.none:
        return aggregator
    if compression is not Compression.fp16:
        raise ValueError(f"Expected hvd.Compression.none or hvd.Compression.fp16, got {compression!r}.")
    if aggregator is not None:
        raise ValueError(
            "compression and aggregator both say what is sent: leave out compression and pass wire_dtype='float16' to "
            "the recipe, as hvd.recipes.hitopk(density=0.01, wire_dtype='float16')."
        )
    return recipes.dense(wire_dtype="float16")


def refuse(horovods: dict[str, Any]) -> None:
    """Raises where one of Horovod's arguments that are not taken asks for something, or an argument is unknown."""
    for name, value in horovods.items():
        if name not in _NOT_TAKEN:
            raise TypeError(f"Unknown argument {name!r}.")
        neutral, remedy = _NOT_TAKEN[name]
        if not any(value is nothing or value == nothing for nothing in neutral):
            raise ValueError(f"{name}={value!r} is not supported. {remedy}")
