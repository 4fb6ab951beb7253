"""Monitoring of a training: held-out metrics, the time to an accuracy, TensorBoard; callbacks in their required order.

Rank 0 writes the log, one JSON line per epoch: `epoch` from 0, `seconds` since the beginning without evaluation,
`evaluation_seconds` so far, the learning rate, and all metrics; those of held-out data have no prefix, those of
training data begin with train_. Saving counts as training. If there are top1 and top5, dawnbench.tsv is written next to
it, with DAWNBench's columns (epoch from 1, hours without evaluation). A resumed run keeps the lines of the epochs that
it does not train again, and its clock continues from the last of them.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras

import hvd_sparse as hvd
from hvd_sparse.keras.callbacks.base import DistributedCallback

Evaluate = Callable[[keras.Model], dict[str, float]]
_TABLE = "dawnbench.tsv"


class Clock:
    """Seconds since the training began, with evaluation counted separately; it can continue from an earlier run."""

    def __init__(self) -> None:
        self._begun, self._before = time.perf_counter(), 0.0
        self.evaluating = 0.0

    @property
    def training(self) -> float:
        """Seconds of training, without evaluation."""
        return self._before + time.perf_counter() - self._begun - self.evaluating

    def resume(self, training: float, evaluating: float) -> None:
        """Adds the times of an earlier run."""
        self._before += training + evaluating
        self.evaluating += evaluating


class Monitor(DistributedCallback):
    """Evaluates after each epoch and writes the log; use one monitor for all calls of `fit` in a training.

    Args:
        evaluate: maps the model to metrics of held-out data, the same on every rank; all ranks call it.
        log: the log file; None for no log.
        target: a metric and the value that it is to reach.
        every: evaluate after every so many epochs, and after the last one.
        epochs: epochs of the whole training.

    Attributes:
        lines: lines of the log, those of an earlier run included; on every rank.
        reached: seconds of training until the target was reached; None before that.
    """

    def __init__(
        self,
        evaluate: Evaluate,
        log: str | os.PathLike | None = None,
        target: tuple[str, float] | None = None,
        every: int = 1,
        epochs: int | None = None,
    ):
        super().__init__()
        self._evaluate, self._path = evaluate, None if log is None else Path(log)
        self._target, self._every, self._epochs = target, every, epochs
        self.clock = Clock()
        self.lines: list[dict[str, Any]] = []
        self._resumed = False

    @property
    def reached(self) -> float | None:
        """See above."""
        if self._target is None:
            return None
        name, value = self._target
        return next((line["seconds"] for line in self.lines if line.get(name, float("-inf")) >= value), None)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_begin(epoch, logs)
        if not self._resumed:
            self._take_up(epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        logs = {} if logs is None else logs
        line = {"epoch": epoch, "seconds": self.clock.training}
        due = (epoch + 1) % self._every == 0 or epoch + 1 == self._epochs
        held_out = self._timed_evaluation() if due else {}
        if self._target is not None and held_out and self._target[0] not in held_out:
            raise ValueError(f"Expected a target of {', '.join(held_out)}, got {self._target[0]!r}.")
        training = {f"train_{name}": float(value) for name, value in logs.items()}
        rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
        line |= {"evaluation_seconds": self.clock.evaluating, "learning_rate": rate, **training, **held_out}
        had = self.reached
        self.lines.append(line)
        logs.update({f"val_{name}": value for name, value in held_out.items()})
        if hvd.rank() == 0:
            self._write()
            print(_sentence(line), flush=True)
            if had is None and self.reached is not None and self._target is not None:
                name, value = self._target
                print(f"{name} of {value:g} reached after {self.reached:.1f} s, not counting evaluation", flush=True)

    def _timed_evaluation(self) -> dict[str, float]:
        begun = time.perf_counter()
        held_out = self._evaluate(self.model)
        self.clock.evaluating += time.perf_counter() - begun
        return held_out

    def _take_up(self, epoch: int) -> None:
        """Keeps an earlier run's lines for the epochs before this one; a collective."""
        found = []
        if hvd.rank() == 0 and self._path is not None and epoch and self._path.exists():
            found = [line for line in map(json.loads, self._path.read_text().splitlines()) if line["epoch"] < epoch]
        self.lines = hvd.topology.world().gather_descriptions(found, "monitor.lines")[0]
        self._resumed = True
        if self.lines:
            self.clock.resume(self.lines[-1]["seconds"], self.lines[-1]["evaluation_seconds"])

    def _write(self) -> None:
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        _replace(self._path, "".join(f"{json.dumps(line)}\n" for line in self.lines))
        if any("top5" in line for line in self.lines):
            _replace(self._path.with_name(_TABLE), as_dawnbench(self.lines))


def as_dawnbench(lines: Sequence[dict[str, Any]]) -> str:
    """The evaluated epochs in the columns of a DAWNBench submission: epoch, hours, top1Accuracy, top5Accuracy."""
    rows = [
        f"{line['epoch'] + 1}\t{line['seconds'] / 3600:.8f}\t{100 * line['top1']:.3f}\t{100 * line['top5']:.3f}\n"
        for line in lines
        if "top5" in line
    ]
    return "".join(["epoch\thours\ttop1Accuracy\ttop5Accuracy\n", *rows])


def callbacks(
    options: argparse.Namespace,
    monitor: Monitor,
    first: Sequence[keras.callbacks.Callback] = (),
    saving: keras.callbacks.Callback | None = None,
) -> list[keras.callbacks.Callback]:
    """All callbacks of a training, in the order that they require; use them for all its calls of `fit`.

    Args:
        options: the options of `arguments.parser`.
        monitor: made by the script, with its evaluation.
        first: callbacks that run before evaluation.
        saving: saves and resumes; by default `hvd.callbacks.CheckpointCallback`, if there is a --checkpoint-dir.
    """
    if saving is None and options.checkpoint_dir:
        saving = hvd.callbacks.CheckpointCallback(options.checkpoint_dir, required=options.resume)
    shown: list[keras.callbacks.Callback] = []
    if options.tensorboard:
        shown.append(hvd.callbacks.TelemetryCallback(options.tensorboard))
        if hvd.rank() == 0:
            shown.append(keras.callbacks.TensorBoard(options.tensorboard, write_graph=False))
    return [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        *first,
        monitor,
        *([saving] if saving is not None else []),
        *shown,
    ]


def log_path(options: argparse.Namespace) -> Path | None:
    """The path of the log."""
    if options.log:
        return Path(options.log)
    return Path(options.checkpoint_dir, "log.jsonl") if options.checkpoint_dir else None


def _sentence(line: dict[str, Any]) -> str:
    names = [name for name in line if name not in ("epoch", "seconds", "evaluation_seconds")]
    figures = ", ".join(f"{name} {line[name]:.4g}" for name in names)
    return f"epoch {line['epoch'] + 1}, {line['seconds']:.1f} s: {figures}"


def _replace(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    part.replace(path)
