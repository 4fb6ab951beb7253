"""Batches that ranks take from a common pool, so that a fast rank takes more of them than a slow one."""

from __future__ import annotations

import atexit
import contextlib
import sys
import warnings
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_sparse.servers.presence import Presence
from hvd_sparse.transport import topology
from hvd_sparse.transport.meeting import meet
from link import Caller, Client, Events, LinkError, Protocol, Request, Server, WireError, result_of

_FAREWELL = 60.0  # seconds for which rank 0 keeps telling others that no batches are left
_EPOCHS = 2**31
_RAN_OUT = "Your input ran out of data; interrupting training"  # of Keras
_PROTOCOL = Protocol(
    name="hvd_sparse batches",
    version=1,
    requests={"take": {"epoch": (int, _EPOCHS)}, "part": {}},
    answers={"batch": {"batch": (int, 2**62), "left": (bool, 1)}, "parted": {}},
    request_bytes=0,
    answer_bytes=0,
)


class SharedBatches:
    """An epoch as a number of samples that all ranks take together, each taking a batch when it is ready for one.

        batches = hvd.servers.SharedBatches(len(x), batch_size=64)
        dataset = batches.dataset().map(lambda rows: (tf.gather(x, rows), tf.gather(y, rows)))
        model.fit(dataset, epochs=10)

    With `ShardedServers` no rank then waits for a slower one, and every sample is seen once per epoch. Rank 0 counts. A
    batch costs one message to rank 0 and back, which is sent while the previous batch is in use.

    All ranks create it together (a collective); after that each rank is on its own.

    Args:
        samples: number of samples in an epoch.
        batch_size: of one rank; the last batch of an epoch holds what is left.
        seed: of the order of samples, which differs in each epoch and is the same on every rank; None keeps the order.
        first_epoch: number of the first epoch, from 0, for training that resumes from a checkpoint.
        interface: as in `ShardedServers`, for rank 0.

    Raises:
        ValueError: if there is no batch, or, on every rank, if ranks disagree.
        OSError: on every rank, if rank 0 cannot listen.
    """

    def __init__(
        self,
        samples: int,
        batch_size: int,
        seed: int | None = 0,
        interface: str | None = None,
        first_epoch: int = 0,
    ):
        if samples < 1 or batch_size < 1 or first_epoch < 0:
            raise ValueError(
                "Expected samples and batch_size of at least 1 and first_epoch of at least 0, got "
                f"{samples}, {batch_size} and {first_epoch}."
            )
        self._samples, self._batch_size, self._seed = samples, batch_size, seed
        self._epoch = first_epoch
        topology.size()  # raises if hvd.init() was forgotten
        world = topology.grid().world
        account = {"samples": samples, "batch_size": batch_size, "seed": seed, "first_epoch": first_epoch}
        world.agree(account, "the shared batches", "batches.agree")
        meeting = meet(world, [0], interface, "batches")
        events = Events("hvd_sparse batches")
        self._counter: _Counter | None = None
        self._server: Server | None = None
        if meeting.held is not None:
            self._counter = _Counter(self.batches, world.size)
            self._server = Server(
                meeting.addresses[0], 0, "batches", meeting.secret, _PROTOCOL, self._counter.handle, events
            )
            meeting.held.close()
        caller = Caller(world.rank, "batches", meeting.secret, _PROTOCOL, events=events)
        self._client = Client(meeting.addresses, caller)
        self._closed = False
        atexit.register(self._close_at_exit)

    @property
    def batches(self) -> int:
        """The number of batches in an epoch, over all ranks."""
        return -(-self._samples // self._batch_size)

    def dataset(self) -> tf.data.Dataset:
        """The rows of the batches that this rank takes, int64 [rows] each; each pass is the next epoch.

        A `map` behind it works on several batches at once if `num_parallel_calls` says so, not on as many as tf.data
        chooses: a batch that waits in this rank is one that a faster rank cannot take.

        How many batches there are is known when they end, of which Keras warns ("Your input ran out of data"). That
        warning is turned off, as here it is how every epoch ends.
        """
        warnings.filterwarnings("ignore", _RAN_OUT, UserWarning)
        signature = tf.TensorSpec([None], tf.int64)
        options = tf.data.Options()
        options.experimental_optimization.map_parallelization = False
        return tf.data.Dataset.from_generator(self.epoch, output_signature=signature).prefetch(1).with_options(options)

    def epoch(self) -> Any:
        """Yields the rows of the batches that this rank takes in the next epoch, int64 [rows] each."""
        self._epoch += 1
        order = self._order(self._epoch)
        while (batch := self._take(self._epoch)) is not None:
            yield order[batch * self._batch_size : (batch + 1) * self._batch_size]

    def close(self) -> None:
        """Takes no more batches; rank 0 also waits for the others. Calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self._close_at_exit)
        with contextlib.suppress(LinkError):
            result_of(self._client.ask(0, "part", check=lambda *_: None))
        if self._counter is not None:
            self._counter.presence.wait_for_nobody(_FAREWELL)
        self._client.close()
        if self._server is not None:
            self._server.close()

    def _close_at_exit(self) -> None:
        """At the end of the process; a process that ends with an error waits for no rank."""
        if getattr(sys, "last_value", None) is None:
            self.close()

    def _order(self, epoch: int) -> np.ndarray:
        if self._seed is None:
            return np.arange(self._samples)
        return np.random.default_rng([self._seed, epoch]).permutation(self._samples)

    def _take(self, epoch: int) -> int | None:
        def taken(kind: str, fields: dict[str, Any], payload: Any) -> int | None:
            return fields["batch"] if fields["left"] else None

        try:
            return result_of(self._client.ask(0, "take", check=taken, epoch=epoch))
        except LinkError as lost:
            raise RuntimeError(f"Rank 0, which counts the batches, does not answer: {lost}.") from None


class _Counter:
    """Rank 0's count of the batches taken in each epoch."""

    def __init__(self, batches: int, ranks: int):
        self._batches = batches
        self._taken: dict[int, int] = {}
        self.presence = Presence(ranks)

    def handle(self, request: Request) -> None:
        self.presence.shows(request.asker)
        if request.kind == "part":
            request.answer("parted")
            self.presence.ends(request.asker)
            return
        if request.payload:
            raise WireError("a payload where none belongs")
        epoch = request.fields["epoch"]
        batch = self._taken.get(epoch, 0)
        if batch < self._batches:
            self._taken[epoch] = batch + 1
        request.answer("batch", batch=batch, left=batch < self._batches)
