"""What broke when Horovod was started; on two ranks, which start it themselves."""

from __future__ import annotations

import contextlib
import os
import socket

import tensorflow as tf

import hvd_sparse as hvd

PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")


@contextlib.contextmanager
def _proxy():
    """A socket that listens as a proxy would, named by the environment."""
    before = dict(os.environ)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        os.environ.update({name: f"http://127.0.0.1:{listening.getsockname()[1]}" for name in PROXIES})
        os.environ.pop("no_proxy", None)
        try:
            yield listening
        finally:
            for name in PROXIES:
                os.environ.pop(name)
            os.environ.update(before)


def _require_alive():
    assert hvd.size() == 2
    assert int(hvd.allreduce(tf.constant(hvd.rank() + 1), op=hvd.Sum)) == 3


def behind_a_proxy():
    with _proxy() as listening:
        hvd.init()
        try:
            listening.accept()
        except BlockingIOError:
            pass  # nobody came
        else:
            raise AssertionError("the proxy was asked")
    _require_alive()
    hvd.shutdown()


def in_a_graph():
    with tf.Graph().as_default():
        hvd.init()
    _require_alive()
    hvd.shutdown()


def in_a_function():
    @tf.function
    def traced():
        hvd.init(local_size=1)
        return tf.constant(hvd.size())

    assert int(traced()) == 2
    _require_alive()
    hvd.shutdown()
