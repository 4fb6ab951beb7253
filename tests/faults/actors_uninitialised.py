"""Bugs in starting on machines with GPUs; on two ranks, which start Horovod themselves, before any other operation."""

from __future__ import annotations

import tensorflow as tf

import hvd_sparse as hvd

threading = tf.config.threading


def a_script_may_still_configure_tensorflow_after_init():
    """As scripts do that select their GPU after init: TensorFlow refuses any change once it is initialised."""
    hvd.init(local_size=1)
    threading.set_inter_op_parallelism_threads(threading.get_inter_op_parallelism_threads() + 1)


def ranks_of_one_host_are_connected_without_tensorflow():
    hvd.shutdown()
    hvd.init(process_sets=[[1]])
    threading.set_inter_op_parallelism_threads(threading.get_inter_op_parallelism_threads() + 1)


def control_what_is_initialised_is_refused():
    hvd.shutdown()
    hvd.init()
    assert int(hvd.allreduce(tf.constant(hvd.rank() + 1), op=hvd.Sum)) == 3
    try:
        threading.set_inter_op_parallelism_threads(threading.get_inter_op_parallelism_threads() + 1)
    except RuntimeError:
        return
    finally:
        hvd.shutdown()
    raise AssertionError("TensorFlow was not initialised by a collective")
