"""Fast distributed training on networks that are slower than the GPUs, for TensorFlow, Keras and Horovod.

In a Horovod script, change the import line and add a recipe:

    import hvd_sparse as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, aggregator=hvd.recipes.hitopk(density=0.001))

Horovod's functions and classes keep their names; see README.md for the rest.
"""

from hvd_sparse import _command  # isort: skip - first: see there
from hvd_sparse import _compiled, _dependencies, _logging
from hvd_sparse._version import __version__ as __version__

_logging.prepare()
if _command.running() != _command.DOCTOR:  # which also runs where the rest cannot be imported, and says why
    _compiled.check()
    with _dependencies.explained():
        from hvd_sparse import _short_names
        from hvd_sparse.keras import *  # noqa: F403 - the names are listed there
        from hvd_sparse.keras import __all__ as __all__

    _short_names.hand_on()
