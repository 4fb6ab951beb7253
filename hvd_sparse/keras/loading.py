"""Loads models that were saved with any optimizer, to continue training distributed."""

from __future__ import annotations

import os
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from typing import Any

import keras

from hvd_sparse.aggregators import Aggregator
from hvd_sparse.compression import Compression
from hvd_sparse.keras import hooks
from hvd_sparse.keras.optimizer import distribute
from hvd_sparse.keras.tracked import optimizers_of
from hvd_sparse.optimizers import slots
from hvd_sparse.transport import first_rank


def load_model(
    filepath: str | os.PathLike,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
    *,
    aggregator: Aggregator | None = None,
    **options: Any,
) -> keras.Model:
    """Loads a compiled model and makes its optimizers distributed; momentum and step counts continue from the file.

    All optimizers of the model count, such as the two of a GAN. The file has one value of each variable, and every rank
    gets it, also what was each rank's own when it was saved: moving statistics, local variables with their slots, and
    sums of gradients between two updates are then those of the rank that saved. Residuals, random seeds and states of
    stateful RNN layers are not in the file: see `hvd.checkpoint` and `hvd.callbacks.CheckpointCallback`.

    It is not a collective: each rank that calls it reads the file itself and raises its own errors, which are the same
    on all ranks if all call it and see the same file. Rank 0 may call it alone if the others build the same model and
    `hvd.callbacks.BroadcastGlobalVariablesCallback` follows.

    Args:
        filepath: a file written by `model.save`, with any optimizer; Keras's format (.keras) has checksums, HDF5 none.
        custom_optimizers: your own optimizer classes that the model may use.
        custom_objects: as for `keras.models.load_model`.
        compression: as for `DistributedOptimizer`.
        legacy_opts: must be False, as Keras 3 has no legacy optimizers.
        aggregator: as for `DistributedOptimizer`.
        **options: the other arguments of `DistributedOptimizer`.

    Raises:
        FileNotFoundError: if the file does not exist.
        OSError: if a file in Keras's format is damaged.
        ValueError: if the model was saved without an optimizer, or an argument is not supported.
    """
    if legacy_opts:
        raise ValueError(
            "legacy_opts=True asks for tf.keras.optimizers.legacy, which Keras 3 does not have: leave it out. The "
            "model loads with the optimizer of the same name, or compile it with a new one."
        )
    _check(os.fspath(filepath))
    named = {optimizer.__name__: optimizer for optimizer in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**named, **(custom_objects or {})})
    found = [slots.without_loss_scaling(each) for each in optimizers_of(model).values()]
    if not found:
        raise ValueError(
            f"{filepath} holds no optimizer: load it with keras.models.load_model and compile it with "
            "hvd.DistributedOptimizer(optimizer). If its class has a compile method of its own, Keras restores "
            "optimizers only if the class also has get_compile_config and compile_from_config."
        )
    for optimizer in found:
        _say_how_it_accumulates(optimizer, options)
        distribute(optimizer, aggregator, compression, **options)
    hooks.adopt(model)
    return model


def _say_how_it_accumulates(optimizer: keras.optimizers.Optimizer, options: Mapping[str, Any]) -> None:
    """Warns if a file leaves open whether the gradients of several passes are summed or averaged."""
    passes = optimizer.gradient_accumulation_steps
    if passes and "backward_passes_per_step" not in options:
        warnings.warn(
            f"The saved optimizer accumulates the gradients of {passes} passes and averages them, as Keras does. If "
            f"it was trained with Horovod's backward_passes_per_step={passes}, pass that here to sum them instead, or "
            "together with average_aggregated_gradients=True to average them without this warning.",
            stacklevel=first_rank.users_level(),
        )


def _check(path: str) -> None:
    """Checks that a file on this machine exists, and is intact if its format has checksums.

    Otherwise Keras may raise any kind of error, and it skips the checksums if memory is short.
    """
    if "://" in path:
        return
    if not os.path.exists(path):
        raise FileNotFoundError(f"{path} does not exist: expected a model written by model.save; check the path.")
    if not path.endswith(".keras") or os.path.isdir(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except Exception as error:  # a damaged byte can make the parsers raise almost any exception
        damaged = str(error) or type(error).__name__
    if damaged is not None:
        raise OSError(f"{path} is damaged ({damaged}): load an older file, or copy it again.")
