"""Fast distributed training on networks that are slower than the GPUs, for TensorFlow, Keras and Horovod.

A Horovod script changes its import line and adds a recipe:

    import hvd_sparse as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, aggregator=hvd.recipes.hitopk(density=0.001))

What a Horovod user knows keeps its name; README.md has the rest.
"""

from hvd_sparse import _command as _command  # isort: skip - first: see there
from hvd_sparse import _moved
from hvd_sparse._version import __version__ as __version__
from hvd_sparse.keras import *  # noqa: F403 - the names are listed there
from hvd_sparse.keras import __all__ as __all__

_moved.hand_on()
