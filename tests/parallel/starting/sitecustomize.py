"""Python runs this at the start of each test process, since `conftest.py` puts this folder on PYTHONPATH.

Keras does not find scikit-learn and matplotlib, as if only hvd_sparse's requirements were installed. Otherwise it would
import both, for wrappers that no test uses, in a third of a process's start-up time. Other importers find them.

The garbage collector also runs less often, because imports and TensorFlow graphs create many long-lived objects.
"""

import gc
import sys


class _HiddenFromKeras:
    """A finder that comes first and tells Keras that these modules do not exist."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        keras = sys.modules.get("keras")
        if name in ("sklearn", "matplotlib") and keras is not None and keras.__spec__._initializing:
            raise ModuleNotFoundError(f"{name} is hidden from Keras")
        return None


sys.meta_path.insert(0, _HiddenFromKeras)
gc.set_threshold(10_000)
