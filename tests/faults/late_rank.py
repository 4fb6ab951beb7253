"""Two ranks that end Horovod while threads begin collectives, round by round: python -m tests.faults.late_rank FOLDER.

Rank 0 ends Horovod. On rank 1 each thread has one collective of many tensors, which takes milliseconds to hand over,
and they begin one after another around that moment. Rank 1 writes to FOLDER/answered.N how many were answered in round
N.
"""

import os
import pathlib
import sys
import threading
import time

import horovod.tensorflow as hvd
import tensorflow as tf

ROUNDS, THREADS, TENSORS = 8, 12, 1000
APART = 0.002  # seconds between the beginnings of two threads
ANSWERED = 30.0  # seconds until all are, even on a busy machine


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    tensors = [tf.zeros([1])] * TENSORS
    for number in range(ROUNDS):
        while not (folder / f"begin.{number}").exists():
            time.sleep(0.01)
        hvd.init()
        hvd.allreduce(tensors[0], name="both")
        if hvd.rank() == 1:
            new = folder / "new"
            new.write_text(str(answered(tensors)))
            new.rename(folder / f"answered.{number}")
        else:
            time.sleep(APART * THREADS / 2)
        hvd.shutdown()
    os._exit(0)  # not by way of threads that were not answered


def answered(tensors: list[tf.Tensor]) -> int:
    """How many threads have got an error in place of a result, as they must when Horovod ends."""
    errors = []

    def collective(name: str) -> None:
        try:
            hvd.grouped_allreduce(tensors, op=hvd.Sum, name=name)
        except tf.errors.OpError as error:
            errors.append(error)

    threads = [threading.Thread(target=collective, args=(f"only{each}",), daemon=True) for each in range(THREADS)]
    for thread in threads:
        thread.start()
        time.sleep(APART)
    deadline = time.monotonic() + ANSWERED
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return len(errors)


if __name__ == "__main__":
    main()
