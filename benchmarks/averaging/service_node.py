"""A node of a small request-reply service: python -m benchmarks.averaging.service_node END NAME ADDRESS PORT.

Each node sends the others requests of REQUEST bytes for replies of REPLY bytes, over one TCP connection to each, and
answers theirs. Requests arrive by a Poisson process, with seed and rate from the conductor at END. The time of a
message runs from its scheduled arrival to the last byte of its reply. No node has more than MOST messages in flight;
further ones wait their turn, and the wait counts. All of this is one thread of plain Python.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import selectors
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from benchmarks.machines.conductor import Worker

REQUEST, REPLY = 256, 10_000  # bytes; the paper's size is lost. A reply fits TCP's first window.
MOST = 64  # messages in flight per node
_HEADER = struct.Struct("!Q")


class Arrival(NamedTuple):
    """A message that a node must send.

    Attributes:
        after: seconds, from the beginning.
        to: the node it is sent to.
    """

    after: float
    to: int


def arrivals(rate: float, seconds: float, nodes: int, me: int, seed: int) -> list[Arrival]:
    """A node's part of a Poisson process; each message goes to a random other node.

    Args:
        rate: messages per second of all nodes together.
        seconds: for which they arrive.
        nodes: number of nodes.
        me: the node.
        seed: the same one gives the same messages.
    """
    draws, found, after = random.Random(f"{seed}.{me}"), [], 0.0
    others = [node for node in range(nodes) if node != me]
    while (after := after + draws.expovariate(rate / nodes)) < seconds:
        found.append(Arrival(after, draws.choice(others)))
    return found


class Outstanding:
    """Messages of a node and their times.

    Attributes:
        times: seconds of those that were answered.
        held_back: number of messages that had to wait their turn.
    """

    def __init__(self, most: int):
        """Begins with none.

        Args:
            most: maximum number in flight.
        """
        self._most = most
        self._arrived: dict[int, float] = {}
        self._on_their_way = 0
        self._waiting: collections.deque[tuple[int, int]] = collections.deque()
        self._number = 0
        self.times: list[float] = []
        self.held_back = 0

    def __len__(self) -> int:
        return len(self._arrived)

    def arrive(self, to: int, time: float) -> None:
        """Records that a message for a node has arrived; `next` says when it may go."""
        self._number += 1
        self._arrived[self._number] = time
        self._waiting.append((self._number, to))
        self.held_back += self._on_their_way + len(self._waiting) > self._most

    def next(self) -> tuple[int, int] | None:
        """The number and the destination of the message to send now; None if none may be sent."""
        if not self._waiting or self._on_their_way >= self._most:
            return None
        self._on_their_way += 1
        return self._waiting.popleft()

    def answer(self, number: int, time: float) -> None:
        """Records that the reply has arrived."""
        self.times.append(time - self._arrived.pop(number))
        self._on_their_way -= 1


class Stream:
    """Messages over a connection that nobody waits for; those that come are all of one length.

    Attributes:
        is_open: whether the other side is still there.
    """

    def __init__(self, selector: selectors.BaseSelector, connection: socket.socket, length: int, take: Callable):
        """Takes a connection over.

        Args:
            selector: tells when it is ready; its data are what is to be called then.
            connection: of TCP.
            length: bytes of each message that comes.
            take: is called with the stream and the number of each.
        """
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector, self._connection, self._length, self._take = selector, connection, length, take
        self._out, self._in, self.is_open = bytearray(), bytearray(), True
        self._wake_for(length)
        selector.register(connection, selectors.EVENT_READ, self._be_ready)

    def send(self, number: int, length: int) -> None:
        """Sends a message, as soon as it may go."""
        waited = bool(self._out)
        self._out += _HEADER.pack(number).ljust(length, b"\0")
        if not waited:
            self._flush()

    def _be_ready(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush()
        if events & selectors.EVENT_READ:
            self._receive()

    def _flush(self) -> None:
        try:
            del self._out[: self._connection.send(self._out)]
        except BlockingIOError:
            pass
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)
        self._selector.modify(self._connection, wanted, self._be_ready)

    def _receive(self) -> None:
        try:
            came = self._connection.recv(self._length - len(self._in))
        except BlockingIOError:
            return
        except ConnectionResetError:
            came = b""
        if not came:
            self._selector.unregister(self._connection)
            self._connection.close()
            self.is_open = False
            return
        self._in += came
        if len(self._in) < self._length:
            self._wake_for(self._length - len(self._in))
            return
        number = _HEADER.unpack_from(self._in)[0]
        if len(came) < self._length:
            self._wake_for(self._length)
        self._in.clear()
        self._take(self, number)

    def _wake_for(self, length: int) -> None:
        """Makes the system report data once a whole message has arrived, instead of each packet."""
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, length)


class Node:
    """A node that sends requests and answers them.

    Attributes:
        end: address and port at which it is asked.
    """

    def __init__(self, address: str, port: int):
        """Listens.

        Args:
            address: numeric.
            port: 0 for any.
        """
        self._selector = selectors.SelectSelector()  # to the microsecond; epoll rounds up to milliseconds
        self._server = socket.create_server((address, port), backlog=256)
        self._selector.register(self._server, selectors.EVENT_READ, self._accept)
        self._streams: list[Stream | None] = []
        self._outstanding = Outstanding(MOST)
        self.end: tuple[str, int] = self._server.getsockname()[:2]

    def connect(self, ends: Sequence[Sequence[Any]], me: int) -> None:
        """Connects to the others, all of whom listen by now."""
        for node, end in enumerate(ends):
            connection = None if node == me else socket.create_connection(tuple(end))
            stream = None if connection is None else Stream(self._selector, connection, REPLY, self._take_reply)
            self._streams.append(stream)

    def ask(self, schedule: Sequence[Arrival], begin: float, limit: float) -> dict[str, Any]:
        """Sends requests by a schedule, and answers others meanwhile.

        Args:
            schedule: in order of time.
            begin: of the monotonic clock.
            limit: seconds that it waits for the last replies.

        Returns:
            The times of those that were answered, in seconds; how many were held back; and how many were not answered.
        """
        mine = self._outstanding = Outstanding(MOST)
        for arrival in schedule:
            due = begin + arrival.after
            self._serve_until(due)
            mine.arrive(arrival.to, due)
            self._send_next()
        until = time.monotonic() + limit
        while len(mine) and time.monotonic() < until:
            self._turn(max(0.0, until - time.monotonic()))
        return {"times": mine.times, "held_back": mine.held_back, "unanswered": len(mine)}

    def serve_beside(self, worker: Worker) -> None:
        """Answers requests until there is a command, or the conductor has ended."""
        called: list[int] = []
        self._selector.register(worker.connection, selectors.EVENT_READ, called.append)
        while not called:
            self._turn(None)
        self._selector.unregister(worker.connection)

    def _serve_until(self, due: float) -> None:
        self._turn(0.0)  # one who is late answers nevertheless
        while (left := due - time.monotonic()) > 0:
            self._turn(left)

    def _turn(self, seconds: float | None) -> None:
        for key, events in self._selector.select(seconds):
            key.data(events)

    def _accept(self, _: int) -> None:
        connection, _ = self._server.accept()
        Stream(self._selector, connection, REQUEST, lambda stream, number: stream.send(number, REPLY))

    def _send_next(self) -> None:
        while (going := self._outstanding.next()) is not None:
            number, to = going
            stream = self._streams[to]
            assert stream is not None
            if not stream.is_open:
                raise ConnectionError(f"node {to} has ended")
            stream.send(number, REQUEST)

    def _take_reply(self, _: Stream, number: int) -> None:
        self._outstanding.answer(number, time.monotonic())
        self._send_next()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("end", help="the conductor's ADDRESS:PORT")
    parser.add_argument("name")
    parser.add_argument("address")
    parser.add_argument("port", type=int)
    options = parser.parse_args()
    os.nice(-10)  # it shares the processor with ranks and other nodes, as on hosts of its own it would not
    node = Node(options.address, options.port)
    host, _, port = options.end.rpartition(":")
    work(node, Worker((host, int(port)), options.name, node.end))


def work(node: Node, worker: Worker) -> None:
    """Does what the conductor says until it ends: first "connect" to all "ends" as node "me", then schedules."""
    commands = worker.commands()
    first = next(commands, None)
    if first is None:
        return
    node.connect(first["ends"], first["me"])
    worker.reply(None)
    nodes, me = len(first["ends"]), first["me"]
    while True:
        node.serve_beside(worker)
        told = next(commands, None)
        if told is None:
            return
        schedule = arrivals(told["rate"], told["seconds"], nodes, me, told["seed"])
        worker.reply(node.ask(schedule, told["begin"], told["limit"]))


if __name__ == "__main__":
    main()
