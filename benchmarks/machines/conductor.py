"""One process tells many what to do next and receives their results, as lines of JSON over TCP.

It runs the cells of a benchmark that changes links between arms: the conductor is a process outside the namespaces,
while the processes inside them keep running.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


class Conductor:
    """The process that sends commands.

    Attributes:
        end: address and port at which it listens.
    """

    def __init__(self, address: str, limit: float):
        """Listens.

        Args:
            address: numeric IP address.
            limit: maximum seconds to wait for a worker.
        """
        self._limit = limit
        self._server = socket.create_server((address, 0), backlog=256)
        self._server.settimeout(limit)
        self._workers: dict[str, tuple[socket.socket, Any]] = {}
        self.end: tuple[str, int] = self._server.getsockname()[:2]

    def __enter__(self) -> Conductor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections, which ends the workers' commands."""
        for connection, lines in self._workers.values():
            lines.close()
            connection.close()
        self._server.close()

    def await_workers(self, count: int) -> dict[str, Any]:
        """Waits until `count` workers have connected; returns each one's report about itself, by name.

        Raises:
            TimeoutError: if they do not connect in time.
        """
        said: dict[str, Any] = {}
        while len(said) < count:
            connection, _ = self._server.accept()
            connection.settimeout(self._limit)
            lines = connection.makefile("r")
            name, told = json.loads(lines.readline())
            self._workers[name] = connection, lines
            said[name] = told
        return said

    def tell(self, names: Sequence[str], command: Mapping[str, Any]) -> None:
        """Sends the same command to some workers."""
        line = json.dumps(command).encode() + b"\n"
        for name in names:
            self._workers[name][0].sendall(line)

    def hear(self, names: Sequence[str]) -> list[Any]:
        """Waits for the replies of some workers; returns them in the order of the names.

        Raises:
            RuntimeError: if a worker has ended.
            TimeoutError: if a worker does not reply.
        """
        return [self._heard(name) for name in names]

    def ask(self, names: Sequence[str], command: Mapping[str, Any]) -> list[Any]:
        """Sends a command and waits for the replies."""
        self.tell(names, command)
        return self.hear(names)

    def _heard(self, name: str) -> Any:
        line = self._workers[name][1].readline()
        if not line:
            raise RuntimeError(f"{name} has ended.")
        return json.loads(line)


class Worker:
    """A process that receives commands.

    Attributes:
        connection: readable when there is a command.
    """

    def __init__(self, end: Sequence[Any], name: str, told: Any = None):
        """Connects.

        Args:
            end: the conductor's address and port.
            name: unique name.
            told: its report about itself.
        """
        self.connection = socket.create_connection(tuple(end))
        self._lines = self.connection.makefile("r")
        self.reply([name, told])

    def commands(self) -> Iterator[dict[str, Any]]:
        """Yields commands as they arrive, until the conductor has ended; each needs a `reply` before the next."""
        for line in self._lines:
            yield json.loads(line)

    def reply(self, result: Any) -> None:
        """Sends the result of a command."""
        self.connection.sendall(json.dumps(result).encode() + b"\n")
