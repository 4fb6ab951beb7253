"""Residuals on disk: what is kept back survives a restart, another recipe, other buckets and another number of ranks.

Keras saves variables of the model and of the optimizer, which are the same on every rank. What is kept back is not, and
is saved here, in two parts:

- PATH, written by rank 0: for each variable the sum over all ranks of what they keep back. It fits any recipe,
  buckets and number of ranks P'; scaled by P' / P, each rank gets an equal share.
- PATH.rank3of8, written by every rank: its own state, to the bit. Used where everything is as it was, so that training
  goes on as if it had not stopped; where one is missing, all ranks use PATH.

Both are NumPy archives (.npz) without pickled objects, which numpy.load(path, allow_pickle=False) reads anywhere, with
a JSON manifest and a SHA-256 of it all. They are written under a temporary name and renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_sparse import keras_hooks, topology
from hvd_sparse.gradient_exchange import GradientExchange
from hvd_sparse.planned_exchange import Kept, Own

_FORMAT = "hvd_sparse residuals 1"
_MANIFEST, _DIGEST = "manifest", "sha256"
Path = str | os.PathLike


def save(path: Path, of: Any, exact: bool = True, own_variables: Sequence[Any] = ()) -> None:
    """Saves what is kept back; a collective: every rank calls it, at the same step.

    Args:
        path: ends in .npz; the same on every rank.
        of: a distributed optimizer or a `GradientExchange`.
        exact: also save each rank's own state, a file a rank.
        own_variables: variables that are not the same on every rank, to be saved beside it.

    Raises:
        OSError: on every rank alike where a rank cannot write, naming it.
        RuntimeError: before the first exchange.
    """
    exchange = _exchange_of(of)
    world = topology.world()
    kept = exchange.kept()
    manifest, arrays = _written(kept, world.size)
    problem = None
    try:
        if world.rank == 0:
            write(path, manifest, arrays)
        if exact:
            write(_own_path(path), *_written_own(exchange.own(), _digest(manifest, arrays), own_variables))
    except OSError as error:
        problem = str(error)
    raise_together(problem, "write the residuals")


def restore(path: Path, of: Any, own_variables: Sequence[Any] = ()) -> bool | None:
    """Restores what `save` saved; a collective. PATH is read by rank 0 only.

    Args:
        path: what `save` got.
        of: a distributed optimizer or a `GradientExchange`, before or after its first exchange.
        own_variables: what `save` got; they are written only where this rank's own file is there.

    Returns:
        Whether training goes on to the bit; None before the first exchange, when that is not known yet.

    Raises:
        OSError: on every rank alike where PATH cannot be read, or is damaged.
        ValueError: where its variables are not those of the optimizer.
    """
    exchange = _exchange_of(of)
    manifest, arrays = _read_together(path)
    own = _read_own(_own_path(path), _digest(manifest, arrays), own_variables)
    scale = topology.world().size / manifest["ranks"]
    shapes = {name: tuple(shape) for name, shape in manifest["variables"]}
    residuals = {name: arrays[name] * np.float32(scale) for name in shapes if name in arrays}
    return exchange.restore(Kept(shapes, residuals, manifest["step"], manifest["counters"]), own)


def write(path: Path, manifest: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Writes an archive under a temporary name, and renames it when all of it is on disk."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = np.frombuffer(json.dumps(manifest).encode(), np.uint8)
    numbered = {f"array{number}": array for number, array in enumerate(arrays.values())}
    digest = np.frombuffer(bytes.fromhex(_digest(manifest, arrays)), np.uint8)
    names = np.frombuffer(json.dumps(list(arrays)).encode(), np.uint8)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            np.savez(file, allow_pickle=False, **{_MANIFEST: text, _DIGEST: digest, "names": names, **numbered})
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The manifest and the arrays of an archive.

    Raises:
        OSError: where it is not there, not whole, or not what was written.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            manifest = json.loads(archive[_MANIFEST].tobytes())
            names = json.loads(archive["names"].tobytes())
            arrays = {name: archive[f"array{number}"] for number, name in enumerate(names)}
            expected = archive[_DIGEST].tobytes().hex()
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise OSError(f"{path} is not a whole archive of residuals ({error}); use an older checkpoint.") from error
    if manifest.get("format") != _FORMAT:
        raise OSError(f"{path} holds {manifest.get('format')!r}, expected {_FORMAT!r}.")
    if _digest(manifest, arrays) != expected:
        raise OSError(f"{path} is damaged: its checksum is not the one that was written; use an older checkpoint.")
    return manifest, arrays


def _exchange_of(of: Any) -> GradientExchange:
    exchange = of if isinstance(of, GradientExchange) else keras_hooks.exchange_of(of)
    if exchange is None:
        raise TypeError(f"Expected a distributed optimizer or a GradientExchange, got {type(of).__name__}.")
    return exchange


def _own_path(path: Path) -> str:
    world = topology.world()
    return f"{os.fspath(path)}.rank{world.rank}of{world.size}"


def _written(kept: Kept, ranks: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    manifest = {
        "format": _FORMAT,
        "ranks": ranks,
        "step": kept.step,
        "counters": kept.counters,
        "variables": [[name, list(shape)] for name, shape in kept.shapes.items()],
    }
    return manifest, kept.residuals


def _written_own(own: Own, beside: str, variables: Sequence[Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    manifest = {"format": _FORMAT, "beside": beside, "account": own.account}
    return manifest, {**own.values, **{f"own {number}": _plain(variable) for number, variable in enumerate(variables)}}


def _plain(variable: Any) -> np.ndarray:
    """A variable's value in a dtype that NumPy can store: bfloat16 as float32, which holds it exactly."""
    tensor = tf.convert_to_tensor(variable)
    return (tf.cast(tensor, tf.float32) if tensor.dtype == tf.bfloat16 else tensor).numpy()


def _read_own(path: Path, beside: str, variables: Sequence[Any]) -> Own | None:
    """This rank's own state where it is there, whole, and belongs to the archive of all ranks."""
    try:
        manifest, arrays = read(path)
    except OSError:
        return None
    if manifest["beside"] != beside:
        return None
    for number, variable in enumerate(variables):
        value = arrays.pop(f"own {number}", None)
        if value is not None:
            variable.assign(value)
    return Own(manifest["account"], arrays)


def _read_together(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What rank 0 reads, on every rank."""
    world = topology.world()
    manifest: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    problem = None
    if world.rank == 0:
        try:
            manifest, arrays = read(path)
        except OSError as error:
            problem = str(error)
    raise_together(problem, "read the residuals")
    manifest, names = world.gather_descriptions([manifest, list(arrays)], "checkpoint.manifest")[0]
    shapes = dict(manifest["variables"])
    for name in names:
        value = tf.constant(arrays.get(name, np.zeros(shapes[name], np.float32)))
        arrays[name] = world.broadcast(value, 0, "checkpoint.residual").numpy()
    return manifest, arrays


def raise_together(problem: str | None, verb: str) -> None:
    """Raises OSError on every rank where one of them has a problem; a collective."""
    problems = topology.world().gather_descriptions(problem, "checkpoint.problems")
    faulty = [f"rank {rank}: {text}" for rank, text in enumerate(problems) if text is not None]
    if faulty:
        raise OSError(f"Could not {verb}. {'; '.join(faulty)}")


def _digest(manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode())
    for name, array in arrays.items():
        digest.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
