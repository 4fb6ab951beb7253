"""Fast distributed training on networks that are slower than the GPUs, for TensorFlow, Keras and Horovod.

A Horovod script changes its import line and adds a recipe:

    import hvd_sparse as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, aggregator=hvd.recipes.hitopk(density=0.001))

What a Horovod user knows keeps its name; README.md has the rest.
"""

from hvd_sparse import (
    aggregators,
    callbacks,
    checkpoint,
    collectives,
    compressors,
    error_feedback,
    ops,
    quantizers,
    recipes,
    topology,
)
from hvd_sparse.gradient_exchange import GradientExchange
from hvd_sparse.loss_scale import LossScaleOptimizer
from hvd_sparse.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from hvd_sparse.saving import load_model
from hvd_sparse.tape import DistributedGradientTape, PartialDistributedGradientTape
from hvd_sparse.telemetry import Telemetry
from hvd_sparse.topology import (
    Average,
    Compression,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    allreduce,
    alltoall,
    broadcast,
    broadcast_variables,
    cross_rank,
    cross_size,
    gloo_built,
    init,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    nccl_built,
    rank,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from hvd_sparse.train_step import compiled_train_step

__all__ = [
    "Average",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "GradientExchange",
    "LossScaleOptimizer",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "PartialDistributedOptimizer",
    "Product",
    "Sum",
    "Telemetry",
    "aggregators",
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_variables",
    "callbacks",
    "checkpoint",
    "collectives",
    "compiled_train_step",
    "compressors",
    "cross_rank",
    "cross_size",
    "error_feedback",
    "gloo_built",
    "init",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "nccl_built",
    "ops",
    "quantizers",
    "rank",
    "recipes",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "topology",
]
__version__ = "0.1.0"
