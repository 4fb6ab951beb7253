"""Models in stages on several ranks, with few of their activations on the network (DCT; Gupta et al. 2021).

- `rows`: of each sample's row the largest elements, and rows that are zero elsewhere.
- `threshold`: `Threshold`, the layer that passes only those.
- `stages`: `Stages`, a Keras model whose parts are computed by different ranks; `grid` says which by whom.
- `splitting`: `split`, which cuts a functional model into parts; `files`: checkpoints of stages.
- `steps`: what a stage does of each batch, in the order of a schedule (`schedules`); `chain` and `passes` compute it.
- `neighbours`, `wire`, `messages`: how stages talk, over `link`.
- `tables`: `ShardedTables`, embeddings whose rows lie on all ranks, and `row_exchange`, how these get them.
"""

from hvd_sparse.pipeline.files import load, save
from hvd_sparse.pipeline.grid import Grid
from hvd_sparse.pipeline.neighbours import StageError
from hvd_sparse.pipeline.splitting import split
from hvd_sparse.pipeline.stages import Stages
from hvd_sparse.pipeline.tables import ShardedTables
from hvd_sparse.pipeline.threshold import Threshold

__all__ = ["Grid", "ShardedTables", "StageError", "Stages", "Threshold", "load", "save", "split"]
