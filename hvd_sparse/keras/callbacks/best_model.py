"""A callback that keeps the best model."""

from __future__ import annotations

import os
from typing import Any

import keras

from hvd_sparse.keras.callbacks.base import DistributedCallback
from hvd_sparse.transport import topology


class BestModelCheckpoint(DistributedCallback, keras.callbacks.ModelCheckpoint):
    """Keras's ModelCheckpoint, which keeps only the best model, written by rank 0.

    List it after `MetricAverageCallback`, so that the metrics of all ranks decide, not only those of rank 0. Load its
    files with `hvd.load_model`.

    Args:
        monitor: the metric that decides.
        verbose: 1 prints a line on rank 0 for each epoch.
        save_weights_only: save only the weights, not the whole model.
        mode: "min", "max", or "auto", by the metric's name.
        save_freq: "epoch", or a number of batches.
        filepath: the file, ending with ".keras", or ".weights.h5" for weights only. Without it, set the attribute
            `filepath` before training begins, as with Horovod's.

    Raises:
        ValueError: if `filepath` has another ending, or is not set when training begins.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        filepath: str | os.PathLike | None = None,
    ):
        usual = "best.weights.h5" if save_weights_only else "best.keras"
        super().__init__(
            filepath=usual if filepath is None else filepath,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath = None if filepath is None else os.fspath(filepath)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        ending = ".weights.h5" if self.save_weights_only else (".keras", ".h5")
        if self.filepath is None or not os.fspath(self.filepath).endswith(ending):
            raise ValueError(
                f"Expected BestModelCheckpoint to have a filepath ending with {ending!r}, got {self.filepath}: pass "
                "filepath=, or set its attribute filepath before fit."
            )
        self.filepath = os.fspath(self.filepath)
        super().on_train_begin(logs)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if topology.world().rank == 0:
            super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.consolidate()  # a collective, so called on every rank
        if topology.world().rank == 0:
            super().on_epoch_end(epoch, logs)
