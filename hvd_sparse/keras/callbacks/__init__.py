"""Keras callbacks for distributed training, under Horovod's names and with its arguments.

Each of them tells a recipe that changes by epoch which epoch begins.
"""

from hvd_sparse.callbacks.averaging import BroadcastGlobalVariablesCallback, MetricAverageCallback
from hvd_sparse.callbacks.best_model import BestModelCheckpoint
from hvd_sparse.callbacks.learning_rate import LearningRateScheduleCallback, LearningRateWarmupCallback
from hvd_sparse.callbacks.measuring import TelemetryCallback
from hvd_sparse.callbacks.saving import CheckpointCallback

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "CheckpointCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "TelemetryCallback",
]
