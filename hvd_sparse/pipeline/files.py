"""Checkpoints of stages: one file per stage, which other splits of the same model can read."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np

from hvd_sparse.pipeline.stages import Stages

_FORMAT = 1
_PATTERN = "stage-*.h5"


def save(model: Stages, folder: str | os.PathLike[str]) -> None:
    """Writes this rank's stage: its weights, and the optimizer's variables if it has been compiled.

    All ranks call it at the same step with a shared folder, a new one for each checkpoint; it is not a collective. Of
    several trainers the first writes. Files appear only when they are complete.

    Args:
        model: its variables must exist.
        folder: created if missing.

    Raises:
        ValueError: if two variables have the same path.
        OSError: if it cannot be written.
    """
    if model.trainer > 0:
        return
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"stage-{model.stage}-of-{model.stages}.h5"
    kept = _named(model)
    partly = path.with_suffix(f".{os.getpid()}.part")
    try:
        with h5py.File(partly, "w") as file:
            file.attrs.update(format=_FORMAT, stages=model.stages, stage=model.stage, step=_step(model))
            for name, variable in kept.items():
                file[name] = np.asarray(variable)
        os.replace(partly, path)
    finally:
        partly.unlink(missing_ok=True)


def load(model: Stages, folder: str | os.PathLike[str]) -> None:
    """Loads this rank's stage from what `save` has written, also by other splits of the same model, or other ranks.

    Variables are found by their paths, so layers need names: the same in both models, and unique within each. It is no
    collective; all trainers read.

    Args:
        model: its variables must exist: parts have known input shapes, or it has been trained.
        folder: of one checkpoint.

    Raises:
        FileNotFoundError: if a stage's file is missing.
        ValueError: if files are of different steps, or a variable is missing or has another shape.
    """
    if not model.weights:
        raise ValueError("Expected variables to load into, got none yet: begin parts with keras.Input(shape).")
    files = _files(pathlib.Path(folder))
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    wanted, found = _named(model), {}
    for path in files:
        with h5py.File(path, "r") as file:
            found.update({name: file[name][()] for name in _variables(file) if name in wanted})
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ValueError(
            f"Expected {missing[0]} and {len(missing) - 1} other variables in {folder}, which are not there: give "
            "layers the same names in both models, and compile the same optimizer."
        )
    for name, variable in wanted.items():
        if tuple(found[name].shape) != tuple(variable.shape):
            raise ValueError(f"Expected {name} of shape {tuple(variable.shape)}, got {found[name].shape} in {folder}.")
    for name, variable in wanted.items():
        variable.assign(found[name])


def _named(model: Stages) -> dict[str, Any]:
    """What a checkpoint holds of a stage, by name."""
    optimizer = model.optimizer
    slots = optimizer.variables if optimizer is not None and optimizer.built else ()
    names = [f"weights/{each.path}" for each in model.weights]
    names += [f"optimizer/{each.path.partition('/')[2]}" for each in slots]  # without the optimizer's own name
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"Expected variables of different paths, got two of {twice[0]}: rename one of the layers.")
    return dict(zip(names, [*model.weights, *slots], strict=True))


def _step(model: Stages) -> int:
    return int(model.optimizer.iterations) if model.optimizer is not None else 0


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
    """All files of a checkpoint, of the same step."""
    files = sorted(folder.glob(_PATTERN))
    told = {}
    for path in files:
        with h5py.File(path, "r") as file:
            told[path.name] = {name: int(file.attrs[name]) for name in ("format", "stages", "stage", "step")}
    stages = max((each["stages"] for each in told.values()), default=1)
    if sorted(each["stage"] for each in told.values()) != list(range(stages)):
        raise FileNotFoundError(
            f"Expected the files of {stages} stages in {folder}, got {[path.name for path in files]}."
        )
    if len({(each["format"], each["step"]) for each in told.values()}) > 1:
        steps = {name: each["step"] for name, each in told.items()}
        raise ValueError(
            f"Expected files of the same step in {folder}, got {steps}: save each checkpoint in a new folder."
        )
    return files


def _variables(file: h5py.File) -> Iterator[str]:
    names: list[str] = []
    file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    yield from names
