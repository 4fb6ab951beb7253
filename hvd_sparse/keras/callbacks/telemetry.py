"""A callback that records what the exchange costs."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_sparse.exchange.telemetry import Telemetry
from hvd_sparse.keras.callbacks.base import DistributedCallback
from hvd_sparse.servers.optimizer import is_served, served
from hvd_sparse.transport import topology


class TelemetryCallback(DistributedCallback):
    """Measures the exchanges, keeps the figures in `records`, and writes them for TensorBoard.

    The figures are those of `hvd.Telemetry`, for single steps of this rank. Use it from the first step on. With
    `hvd.servers.ShardedServers` they are those of `optimizer.servers.telemetry()`, for all steps so far.

    Args:
        log_dir: TensorBoard's folder; each rank writes into its own folder below it. None writes nothing.
        every: the number of steps from one record to the next.

    Raises:
        ValueError: when `fit` begins, if models are averaged; use `hvd.averaging.Telemetry` for these.
    """

    of_averaged = (
        "has no exchange of gradients to measure: leave it out, and pass telemetry=hvd.averaging.Telemetry() to "
        "ModelAveraging, whose read() reports what was lost"
    )

    def __init__(self, log_dir: str | os.PathLike | None = None, every: int = 100):
        super().__init__()
        self.log_dir = log_dir
        self.every = every
        self.records: list[dict[str, Any]] = []
        self._writer: Any = None
        self._seen: int | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if not is_served(self.model.optimizer):
            exchange = self.required_exchange()
            if exchange.telemetry is None:
                exchange.measure(Telemetry(norms_every=self.every))
        self._seen = None
        if self.log_dir is not None and self._writer is None:
            folder = os.path.join(self.log_dir, f"rank{topology.world().rank}")
            self._writer = tf.summary.create_file_writer(folder)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        step = self._step()
        before, self._seen = step - 1 if self._seen is None else self._seen, step
        if step // self.every == before // self.every:
            return
        self.records.append(self._read())
        if self._writer is not None:
            self._write(self.records[-1])

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self._writer is not None:
            self._writer.flush()

    def _step(self) -> int:
        if is_served(self.model.optimizer):
            return served(self.model.optimizer).member.connections.number
        measured = self.required_exchange().telemetry
        assert measured is not None  # set when training began
        return measured.step

    def _read(self) -> dict[str, Any]:
        if is_served(self.model.optimizer):
            return served(self.model.optimizer).member.telemetry()
        return self.required_exchange().read_telemetry()

    def _write(self, record: dict[str, Any]) -> None:
        group = "servers" if is_served(self.model.optimizer) else "exchange"
        with self._writer.as_default(step=record["step"]):
            for name, value in record.items():
                if name == "recipe":
                    tf.summary.text("exchange/recipe", value)
                elif name == "staleness":
                    tf.summary.histogram("servers/staleness", np.repeat(list(value), list(value.values())))
                elif name != "step":
                    tf.summary.scalar(f"{group}/{name}", value)
