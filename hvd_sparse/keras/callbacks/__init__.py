"""Keras callbacks for distributed training, with Horovod's names and arguments.

Each of them also tells a recipe that changes by epoch which epoch begins.
"""

from hvd_sparse.keras.callbacks.averaging import BroadcastGlobalVariablesCallback, MetricAverageCallback
from hvd_sparse.keras.callbacks.best_model import BestModelCheckpoint
from hvd_sparse.keras.callbacks.checkpoint import CheckpointCallback
from hvd_sparse.keras.callbacks.learning_rate import LearningRateScheduleCallback, LearningRateWarmupCallback
from hvd_sparse.keras.callbacks.mean_of_models import MeanOfModelsCallback
from hvd_sparse.keras.callbacks.replicas import ReplicaGuardCallback
from hvd_sparse.keras.callbacks.servers import AverageStatisticsCallback, PublishedParametersCallback
from hvd_sparse.keras.callbacks.servers_checkpoint import ServersCheckpointCallback
from hvd_sparse.keras.callbacks.telemetry import TelemetryCallback

__all__ = [
    "AverageStatisticsCallback",
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "CheckpointCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MeanOfModelsCallback",
    "MetricAverageCallback",
    "PublishedParametersCallback",
    "ReplicaGuardCallback",
    "ServersCheckpointCallback",
    "TelemetryCallback",
]
