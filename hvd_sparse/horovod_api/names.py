"""Horovod's queries and helpers unchanged, and those of its names that have no use with Keras 3.

Importing one of the latter works, as does `hasattr`; using it raises an error that says what to do instead.
"""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as _horovod
import tensorflow as tf

ccl_built = _horovod.ccl_built
check_extension = _horovod.check_extension
check_num_rank_power_of_2 = _horovod.check_num_rank_power_of_2
cuda_built = _horovod.cuda_built
ddl_built = _horovod.ddl_built
gloo_built = _horovod.gloo_built
gloo_enabled = _horovod.gloo_enabled
gpu_available = _horovod.gpu_available
handle_average_backwards_compatibility = _horovod.handle_average_backwards_compatibility
is_homogeneous = _horovod.is_homogeneous
local_rank_op = _horovod.local_rank_op
local_size_op = _horovod.local_size_op
mpi_built = _horovod.mpi_built
mpi_enabled = _horovod.mpi_enabled
mpi_threads_supported = _horovod.mpi_threads_supported
nccl_built = _horovod.nccl_built
process_set_included_op = _horovod.process_set_included_op
rank_op = _horovod.rank_op
refs_to_vars = _horovod.refs_to_vars
rocm_built = _horovod.rocm_built
size_op = _horovod.size_op
split_list = _horovod.split_list
start_timeline = _horovod.start_timeline
stop_timeline = _horovod.stop_timeline
vars_to_refs = _horovod.vars_to_refs

REFUSED = {
    "BroadcastGlobalVariablesHook": (
        "hvd.BroadcastGlobalVariablesHook is a hook for TensorFlow 1 sessions: pass "
        "hvd.callbacks.BroadcastGlobalVariablesCallback(0) to model.fit, or call "
        "hvd.broadcast_variables(model.variables, 0) in your own loop."
    ),
    "LocalGradientAggregationHelper": (
        "hvd.LocalGradientAggregationHelper sums gradients inside TensorFlow 1 optimizers: pass "
        "backward_passes_per_step=n to hvd.DistributedOptimizer."
    ),
    "broadcast_global_variables": (
        "hvd.broadcast_global_variables broadcasts the variables that a TensorFlow 1 graph has collected, and Keras 3 "
        "collects none: call hvd.broadcast_variables(model.variables, root_rank), and the same for optimizer.variables."
    ),
}


def broadcast_global_variables(root_rank: int) -> tf.Operation:
    """Raises an error except in a TensorFlow 1 graph: Keras 3 has no collection of all variables.

    Args:
        root_rank: the rank whose variables all get.

    Returns:
        The operation that broadcasts the variables.

    Raises:
        NotImplementedError: outside such a graph, saying what to do instead.
    """
    if not tf.executing_eagerly() and not tf.inside_function():
        return _horovod.broadcast_global_variables(root_rank)
    raise NotImplementedError(REFUSED["broadcast_global_variables"])


class BroadcastGlobalVariablesHook:
    """Raises an error: it belongs to TensorFlow 1's sessions.

    Raises:
        NotImplementedError: always, saying what to do instead.
    """

    def __init__(self, *arguments: Any, **options: Any):
        raise NotImplementedError(REFUSED["BroadcastGlobalVariablesHook"])


class LocalGradientAggregationHelper:
    """Raises an error: Keras accumulates gradients itself.

    Raises:
        NotImplementedError: always, saying what to do instead.
    """

    def __init__(self, *arguments: Any, **options: Any):
        raise NotImplementedError(REFUSED["LocalGradientAggregationHelper"])
