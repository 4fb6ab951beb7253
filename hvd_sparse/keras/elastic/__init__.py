"""Elastic training: ranks come and go while it runs, under Horovod's names.

`running` handles changes of the ranks; `states` has what is committed, restored and synchronised; `models` what that is
for a model and its exchanges; `callbacks` those of `fit`. See docs/elastic.md.
"""

from hvd_sparse.keras.elastic.base import State
from hvd_sparse.keras.elastic.callbacks import CommitStateCallback, UpdateBatchStateCallback, UpdateEpochStateCallback
from hvd_sparse.keras.elastic.model_states import KerasState, TensorFlowKerasState
from hvd_sparse.keras.elastic.running import run
from hvd_sparse.keras.elastic.states import ObjectState, TensorFlowState
from hvd_sparse.transport.membership import HorovodInternalError

__all__ = [
    "CommitStateCallback",
    "HorovodInternalError",
    "KerasState",
    "ObjectState",
    "State",
    "TensorFlowKerasState",
    "TensorFlowState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]
