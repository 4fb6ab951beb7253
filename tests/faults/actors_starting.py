"""Bugs in starting Horovod; on two ranks, which start it themselves."""

from __future__ import annotations

import contextlib
import http.server
import os
import threading

import tensorflow as tf

import hvd_sparse as hvd

PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")


@contextlib.contextmanager
def _proxy():
    """A proxy, set in the environment, that lets nothing through; yields the list of requests it received."""
    asked = []

    class Proxy(http.server.BaseHTTPRequestHandler):
        def handle_one_request(self):
            asked.append(self.rfile.readline())
            self.close_connection = True

    before = dict(os.environ)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        os.environ.update({name: f"http://127.0.0.1:{server.server_port}" for name in PROXIES})
        for name in ("no_proxy", "NO_PROXY"):
            os.environ.pop(name, None)
        try:
            yield asked
        finally:
            server.shutdown()
            os.environ.clear()
            os.environ.update(before)


def _require_alive():
    assert hvd.size() == 2
    assert int(hvd.allreduce(tf.constant(hvd.rank() + 1), op=hvd.Sum)) == 3


def behind_a_proxy():
    with _proxy() as asked:
        hvd.init()
    assert not asked, asked
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
