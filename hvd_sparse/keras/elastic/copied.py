"""Copies of variables in host memory, and in the files of a backup."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_sparse.keras.checkpoint import raise_together, storable
from hvd_sparse.optimizers.variables import resource, unique_names
from hvd_sparse.storage.archives import Archive

Copies = list[tuple[Any, np.ndarray]]


def copies(variables: Iterable[Any]) -> Copies:
    """Each variable with a copy of its value in host memory."""
    return [(each, tf.convert_to_tensor(resource(each)).numpy()) for each in variables]


def assign(copied: Copies) -> None:
    """Assigns copies to their variables."""
    for variable, value in copied:
        resource(variable).assign(tf.cast(value, variable.dtype))


def described(variables: Sequence[Any]) -> list[list[Any]]:
    """Names and shapes, as a backup has them."""
    return [[name, list(each.shape)] for name, each in zip(unique_names(variables), variables, strict=True)]


def numbered(copied: Copies) -> dict[str, np.ndarray]:
    """Copies as the arrays of a backup."""
    return {f"variable {number}": storable(value) for number, (_, value) in enumerate(copied)}


def paired(variables: Sequence[Any], whole: Archive) -> Copies:
    """Variables with their values in a backup."""
    return [(each, whole.arrays[f"variable {number}"]) for number, each in enumerate(variables)]


def require_same(saved: list[list[Any]] | None, here: list[list[Any]]) -> None:
    """Checks that a backup has the variables that there are here; a collective.

    Args:
        saved: names and shapes in the backup; None on ranks that have not read them.
        here: those of this rank.

    Raises:
        ValueError: on every rank, if it has others; it names the first.
    """
    problem = None
    if saved is not None and saved != here:
        pairs = itertools.zip_longest(saved, here)
        was, now = next((was, now) for was, now in pairs if was != now)
        problem = (
            f"It has {_shown(was)}, expected {_shown(now)}: "
            "choose another backup_dir, or remove its files to start from scratch."
        )
    raise_together(problem, "go on from the backup", ValueError)


def _shown(described: list[Any] | None) -> str:
    return "no more variables" if described is None else f"{described[0]} of shape {described[1]}"
