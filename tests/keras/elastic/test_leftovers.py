"""What an interrupted call leaves behind is not destroyed by the thread that trains."""

import gc
import threading

from hvd_sparse.keras.elastic.leftovers import destroy_elsewhere


class Iterator:
    """Notes which thread destroys it."""

    def __init__(self, ended):
        self._ended = ended

    def __del__(self):
        self._ended.append(threading.current_thread().name)


def test_another_thread_destroys_what_frames_and_cycles_hold():
    ended = []

    def interrupted():
        iterator = Iterator(ended)
        in_a_cycle = Iterator(ended)
        in_a_cycle.self = in_a_cycle
        raise RuntimeError(f"hosts come or go {iterator is in_a_cycle}")

    gc.collect()
    held = []
    try:
        interrupted()
    except RuntimeError as error:
        held.append(error)
    assert ended == []
    destroy_elsewhere(held)
    for thread in threading.enumerate():
        if thread.name == "hvd_sparse_leftovers":
            thread.join()
    assert ended == ["hvd_sparse_leftovers"] * 2 and held == []
