"""Models in stages on several ranks, with few of their activations on the network (DCT; Gupta et al. 2021).

- `rows`: the largest elements of each sample's row, and rows that are zero elsewhere.
- `threshold`: `Threshold`, the layer that passes only those elements.
- `stages`: `Stages`, a Keras model whose parts are computed by different ranks; `grid` assigns stages to ranks.
- `splitting`: `split`, which cuts a functional model into parts; `files`: checkpoints of stages.
- `steps`: what a stage does with each batch, in the order of a schedule (`schedules`); `chain` and `passes` compute it.
- `neighbours`, `wire`, `messages`: how stages communicate, over `link`.
- `tables`: `ShardedTables`, embeddings whose rows are spread over all ranks; `row_exchange`: how ranks get them.
"""

from hvd_sparse.pipeline.files import load, save
from hvd_sparse.pipeline.grid import Grid
from hvd_sparse.pipeline.neighbours import StageError
from hvd_sparse.pipeline.splitting import split
from hvd_sparse.pipeline.stages import Stages
from hvd_sparse.pipeline.tables import ShardedTables
from hvd_sparse.pipeline.threshold import Threshold

__all__ = ["Grid", "ShardedTables", "StageError", "Stages", "Threshold", "load", "save", "split"]
