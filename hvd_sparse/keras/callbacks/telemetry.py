"""A callback that records what the exchange costs."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_sparse.keras.callbacks.base import DistributedCallback
from hvd_sparse.optimizers.attached import Figures
from hvd_sparse.transport import topology


class TelemetryCallback(DistributedCallback):
    """Measures the exchanges, keeps the figures in `records`, and writes them for TensorBoard.

    The figures are those of `hvd.Telemetry`, for single steps of this rank. Use it from the first step on. With
    `hvd.servers.ShardedServers` they are those of `optimizer.servers.telemetry()`, for all steps so far. If a model has
    several distributed optimizers, each of them has its own records, with "optimizer" for where the model has it.

    Args:
        log_dir: TensorBoard's folder; each rank writes into its own folder below it. With None, nothing is written.
        every: the number of steps from one record to the next; there is also one of the last step of each epoch.

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
        self._seen: dict[str, int] = {}
        self._recorded: dict[str, int] = {}
        self._measured: dict[str, Figures] = {}

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._measured = self._figures()
        self._seen, self._recorded = {}, {}
        if self.log_dir is not None and self._writer is None:
            folder = os.path.join(self.log_dir, f"rank{topology.world().rank}")
            self._writer = tf.summary.create_file_writer(folder)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        for path, source in self._measured.items():
            step = source.step()
            before, self._seen[path] = self._seen.get(path, step - 1), step
            if step > 0 and step // self.every != before // self.every:
                self._record(path, source, step)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        for path, source in self._measured.items():
            step = source.step()
            if step > 0 and step != self._recorded.get(path):
                self._record(path, source, step)
        if self._writer is not None:
            self._writer.flush()

    def _record(self, path: str, source: Figures, step: int) -> None:
        several = {"optimizer": path} if len(self._measured) > 1 else {}
        self.records.append({**source.read(), **several})
        self._recorded[path] = step
        if self._writer is not None:
            self._write(source.group, self.records[-1])

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self._writer is not None:
            self._writer.flush()

    def _figures(self) -> dict[str, Figures]:
        """Where the figures of each optimizer come from."""
        measured = {path: part.measured(self.every) for path, part in self.attached.items()}
        found = {path: figures for path, figures in measured.items() if figures is not None}
        if not found:
            self.required_exchanges()
        if len(found) == 1:
            return found
        return {path: figures._replace(group=f"{figures.group}/{path}") for path, figures in found.items()}

    def _write(self, group: str, record: dict[str, Any]) -> None:
        with self._writer.as_default(step=record["step"]):
            for name, value in record.items():
                if name in ("recipe", "parts"):
                    tf.summary.text(f"{group}/{name}", value)
                elif name == "staleness":
                    tf.summary.histogram("servers/staleness", np.repeat(list(value), list(value.values())))
                elif name not in ("step", "optimizer"):
                    tf.summary.scalar(f"{group}/{name}", value)
