"""Fast distributed training on networks that are slower than the GPUs, for TensorFlow, Keras and Horovod.

A Horovod script changes its import line and adds a recipe:

    import hvd_sparse as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, aggregator=hvd.recipes.hitopk(density=0.001))

What a Horovod user knows keeps its name; README.md has the rest.
"""

from hvd_sparse import _command as _command  # first: see there
from hvd_sparse import (
    aggregators,
    callbacks,
    checkpoint,
    collectives,
    compression,
    compressors,
    elastic,
    error_feedback,
    ops,
    quantizers,
    recipes,
    topology,
)
from hvd_sparse.compression import Compression
from hvd_sparse.gradient_exchange import GradientExchange
from hvd_sparse.horovod_names import (
    BroadcastGlobalVariablesHook,
    LocalGradientAggregationHelper,
    broadcast_global_variables,
    ccl_built,
    check_extension,
    check_num_rank_power_of_2,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    gpu_available,
    handle_average_backwards_compatibility,
    is_homogeneous,
    local_rank_op,
    local_size_op,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    process_set_included_op,
    rank_op,
    refs_to_vars,
    rocm_built,
    size_op,
    split_list,
    start_timeline,
    stop_timeline,
    vars_to_refs,
)
from hvd_sparse.joining import join
from hvd_sparse.loss_scale import LossScaleOptimizer
from hvd_sparse.objects import allgather_object, broadcast_object, broadcast_object_fn
from hvd_sparse.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from hvd_sparse.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from hvd_sparse.saving import load_model
from hvd_sparse.sync_batch_norm import SyncBatchNormalization
from hvd_sparse.tape import DistributedGradientTape, PartialDistributedGradientTape
from hvd_sparse.telemetry import Telemetry
from hvd_sparse.topology import (
    cross_rank,
    cross_size,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from hvd_sparse.train_step import compiled_train_step
from hvd_sparse.values import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    allreduce,
    alltoall,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from hvd_sparse.variables import broadcast_, broadcast_variables

__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "GradientExchange",
    "LocalGradientAggregationHelper",
    "LossScaleOptimizer",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "Telemetry",
    "add_process_set",
    "aggregators",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "check_extension",
    "check_num_rank_power_of_2",
    "checkpoint",
    "collectives",
    "compiled_train_step",
    "compression",
    "compressors",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "error_feedback",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "gpu_available",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "load_model",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "ops",
    "process_set_included_op",
    "quantizers",
    "rank",
    "rank_op",
    "recipes",
    "reducescatter",
    "refs_to_vars",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "split_list",
    "start_timeline",
    "stop_timeline",
    "topology",
    "vars_to_refs",
]
__version__ = "0.1.0"
