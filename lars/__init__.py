"""LARS and LAMB, each with its norms and updates in one native pass, and the work of the norms shared by the ranks.

The parallel tensor operator of Shi et al. (CommLib, 4.2), and the optimizers of You et al. for which it is meant.

    optimizer = hvd.DistributedOptimizer(lars.LARS(3.2, weight_decay=5e-5), aggregator=hvd.recipes.hitopk(0.01))
"""

from lars.choice import Choice
from lars.lamb import LAMB
from lars.lars import LARS
from lars.parallel import parallel_map

__all__ = ["LAMB", "LARS", "Choice", "parallel_map"]
