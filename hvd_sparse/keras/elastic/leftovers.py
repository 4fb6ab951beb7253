"""What a call of `fit` that was interrupted leaves behind, and who destroys it.

TensorFlow 2.21 may take a minute to destroy an iterator of tf.data: the thread that tunes it sleeps between two rounds,
longer each time, up to 60 s, and can miss that it is to end (`CancellationManager::StartCancel` wakes it before it
counts as cancelled). Whoever destroys the iterator waits for that thread. Exceptions and frames refer to each other, so
this is the garbage collector, at any time: a rank then stands still in the middle of tracing its next step.
"""

from __future__ import annotations

import gc
import threading


def destroy_elsewhere(held: list[BaseException]) -> None:
    """Has a thread destroy what these exceptions refer to, and all other garbage.

    Args:
        held: emptied; no one else may refer to the exceptions.
    """
    threading.Thread(target=_destroy, args=(held,), name="hvd_sparse_leftovers", daemon=True).start()


def _destroy(held: list[BaseException]) -> None:
    held.clear()
    gc.collect()  # meanwhile no other thread collects
