"""All public names: `import hvd_sparse.keras as hvd`, in place of `horovod.keras`, is `import hvd_sparse as hvd`."""

from hvd_sparse import aggregators, averaging, collectives, compression, ops, pipeline, recipes, servers
from hvd_sparse.compression import Compression, error_feedback, quantizers
from hvd_sparse.compression import selectors as compressors
from hvd_sparse.exchange.gradients import GradientExchange
from hvd_sparse.exchange.telemetry import Telemetry
from hvd_sparse.horovod_api.names import (
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
from hvd_sparse.horovod_api.objects import allgather_object, barrier, broadcast_object, broadcast_object_fn
from hvd_sparse.horovod_api.values import (
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
from hvd_sparse.horovod_api.variables import broadcast_, broadcast_variables
from hvd_sparse.keras import callbacks, checkpoint, copies, elastic, fitting
from hvd_sparse.keras.consolidation import consolidate
from hvd_sparse.keras.loading import load_model
from hvd_sparse.keras.loss_scale import LossScaleOptimizer
from hvd_sparse.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from hvd_sparse.keras.sync_batch_norm import SyncBatchNormalization
from hvd_sparse.keras.tape import DistributedGradientTape, PartialDistributedGradientTape
from hvd_sparse.keras.train_step import compiled_train_step
from hvd_sparse.optimizers.ahead import looking_ahead
from hvd_sparse.transport import topology
from hvd_sparse.transport.joining import join
from hvd_sparse.transport.lost import RankLostError
from hvd_sparse.transport.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from hvd_sparse.transport.topology import (
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
from link import PartnerLostError

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
    "PartnerLostError",
    "ProcessSet",
    "Product",
    "RankLostError",
    "Sum",
    "SyncBatchNormalization",
    "Telemetry",
    "add_process_set",
    "aggregators",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "averaging",
    "barrier",
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
    "consolidate",
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
    "looking_ahead",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "ops",
    "pipeline",
    "process_set_included_op",
    "quantizers",
    "rank",
    "rank_op",
    "recipes",
    "reducescatter",
    "refs_to_vars",
    "remove_process_set",
    "rocm_built",
    "servers",
    "shutdown",
    "size",
    "size_op",
    "split_list",
    "start_timeline",
    "stop_timeline",
    "topology",
    "vars_to_refs",
]

copies.install()
fitting.install()
