"""The side that asks: one thread for a process, with a link to each owner."""

from __future__ import annotations

import concurrent.futures
import os
import queue
import threading
from collections.abc import Sequence

import numpy as np
import zmq

from datacache.peers import sockets
from datacache.peers.link import Answer, Caller, Link, Request

_TICK = 100  # milliseconds between two looks at the clock where it matters


class Client:
    """Asks owners for samples; called by several threads at once."""

    def __init__(self, addresses: Sequence[str], caller: Caller):
        """Takes the address of each node, host:port, in their order; connects when an owner is first asked.

        Raises:
            ValueError: where that is no address.
        """
        for each in addresses:
            sockets.split(each)
        self._process, self._closing, self._lock = os.getpid(), False, threading.Lock()
        self.samples_at_a_time = sockets.samples_at_a_time(caller.sample_bytes)
        self._context, self._alarm = zmq.Context(), sockets.Alarm()
        self._links = [Link(self._context, caller, node, place) for node, place in enumerate(addresses)]
        self._inbox: queue.SimpleQueue[tuple[int, Request]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="datacache-client", daemon=True)
        self._thread.start()

    def ask(self, owner: int, indices: np.ndarray) -> concurrent.futures.Future[Answer] | None:
        """Asks an owner for samples.

        Args:
            owner: its node.
            indices: uint64 [n], no more than `samples_at_a_time`.

        Returns:
            The answer, which comes in any case; None where the owner is left alone at present, and in a process that
            was forked from the one that made this.
        """
        if os.getpid() != self._process:
            return None
        if self._links[owner].is_left_alone:
            self._links[owner].complain()
            return None
        request = Request(indices)
        with self._lock:
            if self._closing:
                return None
            self._inbox.put((owner, request))
            self._alarm.ring()
        return request.answer

    def close(self) -> None:
        """Gives up what is waited for, and closes all connections; calling it again does nothing."""
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._closing:
                return
            self._closing = True
            self._alarm.ring()
        self._thread.join()
        self._alarm.close()

    def _run(self) -> None:
        try:
            while not self._closing:
                self._poll()
                self._alarm.quiet()
                while not self._inbox.empty():
                    owner, request = self._inbox.get()
                    self._links[owner].ask(request)
                for link in self._links:
                    link.take_all()
                    link.look_at_clock()
        finally:
            self._end()

    def _poll(self) -> None:
        poller = zmq.Poller()
        poller.register(self._alarm.fileno(), zmq.POLLIN)
        for link in self._links:
            for socket in link.sockets():
                poller.register(socket, zmq.POLLIN)
        poller.poll(_TICK if any(link.needs_clock for link in self._links) else None)

    def _end(self) -> None:
        with self._lock:
            self._closing = True
        for link in self._links:
            link.close()
        while not self._inbox.empty():
            self._inbox.get()[1].give_up()
        self._context.destroy(linger=0)
