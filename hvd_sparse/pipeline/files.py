"""Checkpoints of stages: one file per stage, which other splits of the same model can read.

A variable is identified by its part's number in the whole model and its name in that part, since each rank lets Keras
number only its own layers: those of two stages may have the same paths. In a file it is under its path, with its
identity as attributes; files without these are older.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import h5py
import numpy as np

from hvd_sparse.optimizers.variables import path_of, unique_names
from hvd_sparse.pipeline.stages import Stages
from hvd_sparse.storage.files import replacing

_FORMAT = 1
_PATTERN = "stage-*.h5"
_WEIGHTS, _OPTIMIZER = "weights/", "optimizer/"  # where variables are in a file


def save(model: Stages, folder: str | os.PathLike[str]) -> None:
    """Writes this rank's stage: its weights, and the optimizer's variables if it has been compiled.

    All ranks call it at the same step with a shared folder, a new one for each checkpoint; it is not a collective. Of
    several trainers the first writes. Files appear only when they are complete.

    Args:
        model: its variables must exist.
        folder: created if missing.

    Raises:
        OSError: if it cannot be written.
    """
    if model.trainer > 0:
        return
    path = pathlib.Path(folder) / f"stage-{model.stage}-of-{model.stages}.h5"
    with replacing(path) as content, h5py.File(content, "w") as file:
        file.attrs.update(format=_FORMAT, stages=model.stages, stage=model.stage, step=_step(model))
        file.attrs["parts"] = model.part_count
        for each in _held(model):
            file[each.place] = np.asarray(each.variable)
            file[each.place].attrs.update(part=each.identity.part, variable=each.identity.name)


def load(model: Stages, folder: str | os.PathLike[str]) -> None:
    """Loads this rank's stage from what `save` has written, also by other splits of the same model, or other ranks.

    Variables are found by the number of their part and their name in it. If the model has been cut into other parts, or
    the files are older, they are found by their paths, so layers then need names: the same in both models, and unique
    within each. It is no collective; all trainers read.

    Args:
        model: its variables must exist: parts have known input shapes, or it has been trained.
        folder: of one checkpoint.

    Raises:
        FileNotFoundError: if a stage's file is missing.
        ValueError: if files are of different steps, a variable is missing or has another shape, or several stages have
            variables of its path and nothing tells which of them it is; nothing has changed then.
    """
    if not model.weights:
        raise ValueError("Expected variables to load into, got none yet: begin parts with keras.Input(shape).")
    files = _files(pathlib.Path(folder))
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    held = _held(model)
    stored = [each for path in files for each in _stored(path)]
    ways = (_by_identity(held, stored, model.part_count), _by_stage(held, stored, model))
    pairs = next((pairs for pairs in ways if len(pairs) == len(held)), None) or _by_path(held, stored)
    for each, found in pairs:
        if found.shape != tuple(each.variable.shape):
            raise ValueError(
                f"Expected {each.place} of shape {tuple(each.variable.shape)}, got {found.shape} in {folder}."
            )
    values = [found.read() for _, found in pairs]
    for (each, _), value in zip(pairs, values, strict=True):
        each.variable.assign(value)


class _Identity(NamedTuple):
    """The number of a variable's part, -1 if it belongs to no part, and its name in the part."""

    part: int
    name: str


class _Held(NamedTuple):
    """A variable of this rank's stage, its identity, and its place in a file, from its path."""

    identity: _Identity
    place: str
    variable: Any

    @property
    def is_weight(self) -> bool:
        """Whether it is the model's, not the optimizer's."""
        return self.place.startswith(_WEIGHTS)


class _Stored(NamedTuple):
    """A variable in a file; older files know neither its identity nor how many parts there were."""

    identity: _Identity | None
    parts: int | None
    place: str
    stage: tuple[int, int]
    shape: tuple[int, ...]
    path: pathlib.Path

    @property
    def is_weight(self) -> bool:
        """Whether it is the model's, not the optimizer's."""
        return self.place.startswith(_WEIGHTS)

    def read(self) -> np.ndarray:
        """Its value."""
        with h5py.File(self.path, "r") as file:
            return file[self.place][()]


_Pairs = list[tuple[_Held, _Stored]]


def _held(model: Stages) -> list[_Held]:
    """What a checkpoint holds of a stage."""
    weights: dict[int, tuple[_Identity, Any]] = {}
    for number, part in model.numbered_parts:
        for name, variable in zip(unique_names(part.weights), part.weights, strict=True):
            weights.setdefault(id(variable), (_Identity(number, f"{_WEIGHTS}{name}"), variable))
    for variable in model.weights:
        weights.setdefault(id(variable), (_Identity(-1, f"{_WEIGHTS}{path_of(variable)}"), variable))
    named = [(identity, f"{_WEIGHTS}{path_of(variable)}", variable) for identity, variable in weights.values()]
    optimizer = model.optimizer
    slots = optimizer.variables if optimizer is not None and optimizer.built else []
    named += _slots(slots, [weights[id(each)] for each in model.weights])
    seen: dict[str, int] = {}
    found = []
    for identity, place, variable in named:
        seen[place] = seen.get(place, 0) + 1
        found.append(_Held(identity, place if seen[place] == 1 else f"{place}#{seen[place]}", variable))
    return found


def _slots(slots: Sequence[Any], weights: Sequence[tuple[_Identity, Any]]) -> list[tuple[_Identity, str, Any]]:
    """The optimizer's variables; the slots of a weight, which Keras names after its path, have its identity."""
    seen: dict[str, int] = {}
    found = []
    for slot in slots:
        own = path_of(slot).partition("/")[2]  # without the optimizer's own name
        paths = [path_of(weight).replace("/", "_") for _, weight in weights]
        longest = max((path for path in paths if own.startswith(f"{path}_")), key=len, default=None)
        number = seen[own] = seen.get(own, -1) + 1
        if longest is None:
            identity = _Identity(-1, f"{_OPTIMIZER}{own}")
        else:
            alike = [each for each, path in zip(weights, paths, strict=True) if path == longest]
            weight = alike[number % len(alike)][0]  # weights of equal paths have their slots in the same order
            name = f"{_OPTIMIZER}{weight.name.removeprefix(_WEIGHTS)}{own.removeprefix(longest)}"
            identity = _Identity(weight.part, name)
        found.append((identity, f"{_OPTIMIZER}{own}", slot))
    return found


def _by_identity(held: Sequence[_Held], stored: Sequence[_Stored], parts: int) -> _Pairs:
    """Pairs by identity; none unless the whole model had as many parts, and those of this rank had the same weights."""
    found = {each.identity: each for each in stored if each.identity is not None}
    numbers = {each.identity.part for each in held}
    here = {each.identity for each in held if each.is_weight}
    there = {identity for identity, each in found.items() if each.is_weight and identity.part in numbers}
    if any(each.parts != parts for each in stored) or here != there:
        return []
    return [(each, found[each.identity]) for each in held if each.identity in found]


def _by_stage(held: Sequence[_Held], stored: Sequence[_Stored], model: Stages) -> _Pairs:
    """Pairs by path in this stage's own file; none unless that has the same weights."""
    own = {each.place: each for each in stored if each.stage == (model.stage, model.stages)}
    here = {each.place for each in held if each.is_weight}
    if here != {place for place, each in own.items() if each.is_weight}:
        return []
    return [(each, own[each.place]) for each in held if each.place in own]


def _by_path(held: Sequence[_Held], stored: Sequence[_Stored]) -> _Pairs:
    """Pairs by path in any file."""
    found: dict[str, list[_Stored]] = {}
    for one in stored:
        found.setdefault(one.place, []).append(one)
    missing = [each.place for each in held if each.place not in found]
    if missing:
        raise ValueError(
            f"Expected {missing[0]} and {len(missing) - 1} other variables in {stored[0].path.parent}, which are not "
            "there: give layers the same names in both models, and compile the same optimizer."
        )
    for each in held:
        several = found[each.place]
        if len(several) > 1 and (each.is_weight or each.identity.part >= 0):
            where = " and ".join(other.path.name for other in several)
            raise ValueError(
                f"Expected one variable {each.place}, got it in {where}, as "
                "Keras has numbered the layers of each stage by itself: load the checkpoint with the same parts and as "
                "many stages as have saved it, and save it anew, or give each layer a name of its own."
            )
    return [(each, found[each.place][0]) for each in held]


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


def _stored(path: pathlib.Path) -> list[_Stored]:
    """The variables in a file."""
    with h5py.File(path, "r") as file:
        parts = int(file.attrs["parts"]) if "parts" in file.attrs else None
        stage = int(file.attrs["stage"]), int(file.attrs["stages"])
        return [
            _Stored(_identity(file[place]), parts, place, stage, tuple(file[place].shape), path)
            for place in _places(file)
        ]


def _identity(stored: h5py.Dataset) -> _Identity | None:
    if "variable" not in stored.attrs:
        return None
    return _Identity(int(stored.attrs["part"]), str(stored.attrs["variable"]))


def _places(file: h5py.File) -> Iterator[str]:
    names: list[str] = []
    file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    yield from names
