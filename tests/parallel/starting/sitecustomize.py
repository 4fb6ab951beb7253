"""What Python runs at the start of each process of the tests, as `conftest.py` puts this folder on PYTHONPATH.

Keras finds no scikit-learn and no matplotlib, as where only hvd_sparse's requirements are installed. Else it imports
both, for wrappers that no test uses: a third of a process's start. Whoever else asks for them gets them.

The garbage collector begins less often, too: imports and graphs of TensorFlow make many objects that stay.
"""

import gc
import sys


class _HiddenFromKeras:
    """A finder that finds nothing, but says so before others find."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        keras = sys.modules.get("keras")
        if name in ("sklearn", "matplotlib") and keras is not None and keras.__spec__._initializing:
            raise ModuleNotFoundError(f"{name} is hidden from Keras")
        return None


sys.meta_path.insert(0, _HiddenFromKeras)
gc.set_threshold(10_000)
