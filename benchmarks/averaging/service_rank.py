"""A rank that trains beside the service: python -m benchmarks.averaging.service_rank JOB.

JOB is a JSON file: {"end": the conductor's address and port, "size": elements of a vector}. A step is a wait, which
stands for the computation and leaves the cores free, and an average of a vector over all ranks: by Horovod's all-reduce
over TCP, or by the library's datagrams. Each result is checked as far as losses allow.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import time
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from benchmarks.averaging.service_arms import DATAGRAMS
from benchmarks.machines.conductor import Worker
from hvd_sparse.averaging import Datagrams

WARM = 3  # steps that do not count
MOST_STEPS = 1 << 16
_GOES_ON, _ENDS = 1, 2


class Decisions:
    """Whether there is another step: the first rank decides, and the others read its decision.

    It is in shared memory, which nodes in a box can use, so that no message of it is on the links.
    """

    def __init__(self, path: str, first: bool):
        """Opens what `new_decisions` has made."""
        self._said = np.memmap(path, np.int8, "r+", shape=(MOST_STEPS,))
        self._first = first

    def another(self, step: int, yes: bool) -> bool:
        """Whether this step is made.

        Args:
            step: its number.
            yes: what the first rank says.
        """
        if self._first:
            self._said[step] = _GOES_ON if yes else _ENDS
        while self._said[step] == 0:
            time.sleep(0.001)
        return bool(self._said[step] == _GOES_ON)


def new_decisions(path: pathlib.Path) -> None:
    """Makes a file in which nothing is decided."""
    path.write_bytes(bytes(MOST_STEPS))


class Exchange(Protocol):
    """Averages a vector."""

    def average(self, vector: tf.Tensor) -> tuple[np.ndarray, int, int]:
        """The mean, or what has arrived of it; the number of pieces expected, and the number that arrived."""
        ...

    def close(self) -> None:
        """Closes the exchange."""
        ...


class OverTcp:
    """Horovod's all-reduce over TCP."""

    def average(self, vector: tf.Tensor) -> tuple[np.ndarray, int, int]:
        """See `Exchange`."""
        world = hvd.topology.world()
        return world.allreduce(vector, "sum", "service.step").numpy() / world.size, 0, 0

    def close(self) -> None:
        """See `Exchange`."""


class ByDatagrams:
    """The library's own, by packets of one MTU each, as the network has them."""

    def __init__(self, size: int, rate: float, name: str):
        """Opens a channel; a collective."""
        transport = Datagrams("eth0", rate=rate, offload=False)
        self._channel = transport.open(size, hvd.topology.world(), True, name)
        self._round = 0

    def average(self, vector: tf.Tensor) -> tuple[np.ndarray, int, int]:
        """See `Exchange`."""
        averaged = self._channel.average(vector, tf.constant(self._round, tf.int64))
        self._round = int(averaged.round) + 1
        expected, arrived = (int(tf.reduce_sum(each)) for each in (averaged.expected, averaged.arrived))
        return averaged.vector.numpy(), expected, arrived

    def close(self) -> None:
        """See `Exchange`."""
        self._channel.close()


class Trainer:
    """Makes the steps of one cell after another."""

    def __init__(self, size: int):
        """Takes part with a vector of this many elements, all of them the number of the rank."""
        self._size, self._compute = size, 0.0
        self._exchange: Exchange = OverTcp()
        self._own = tf.fill([size], float(hvd.rank()))

    def prepare(self, number: int, transport: str, rate: float, compute: float) -> None:
        """Opens what the next cell trains by, and warms it up."""
        by_datagrams = transport == DATAGRAMS
        self._exchange = ByDatagrams(self._size, rate, f"service.{number}") if by_datagrams else OverTcp()
        self._compute = compute
        for _ in range(WARM):
            self._step()

    def train(self, path: str, begin: float, seconds: float) -> dict[str, Any]:
        """Steps until the time is up.

        Args:
            path: of the decisions.
            begin: of the monotonic clock, which is that of all nodes.
            seconds: from then on.

        Returns:
            Steps; seconds until the last has ended; pieces that were to come, and that came; and what averaging took,
            by step.
        """
        decisions = Decisions(path, hvd.rank() == 0)
        time.sleep(max(0.0, begin - time.monotonic()))
        steps: list[tuple[int, int, float]] = []
        ended = begin
        while decisions.another(len(steps), time.monotonic() < begin + seconds):
            steps.append(self._step())
            ended = time.monotonic()
        self._exchange.close()
        expected, arrived, taken = zip(*steps, strict=True)
        return {
            "steps": len(steps),
            "seconds": ended - begin,
            "expected": sum(expected),
            "arrived": sum(arrived),
            "averaging": taken,
        }

    def _step(self) -> tuple[int, int, float]:
        time.sleep(self._compute)
        began = time.perf_counter()
        mean, expected, arrived = self._exchange.average(self._own)
        taken = time.perf_counter() - began
        require_mean(mean, lossless=expected == 0)
        return expected, arrived, taken


def require_mean(mean: np.ndarray, lossless: bool) -> None:
    """Raises AssertionError if this is not the mean of all ranks' numbers; or, by datagrams, of any of them."""
    last = hvd.size() - 1
    low, high = float(mean.min()), float(mean.max())
    if (lossless and not low == high == last / 2) or not 0 <= low <= high <= last:
        raise AssertionError(f"Wrong mean of ranks 0 to {last}: between {low} and {high}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", type=pathlib.Path)
    job = json.loads(parser.parse_args().job.read_text())
    hvd.init(local_size=1)
    trainer = Trainer(job["size"])
    worker = Worker(job["end"], f"rank {hvd.rank()}")
    for told in worker.commands():
        make = getattr(trainer, told.pop("what"))
        worker.reply(make(**told))


if __name__ == "__main__":
    main()
