"""Models that were saved with any optimizer, loaded to train on distributed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import keras

from hvd_sparse import keras_hooks
from hvd_sparse.aggregators import Aggregator
from hvd_sparse.optimizer import distribute, without_loss_scaling
from hvd_sparse.topology import Compression


def load_model(
    filepath: str | os.PathLike,
    custom_optimizers: Iterable[type] = (),
    custom_objects: Mapping[str, Any] | None = None,
    aggregator: Aggregator | None = None,
    compression: Any = Compression.none,
    **options: Any,
) -> keras.Model:
    """Loads a compiled model and makes its optimizer distributed; momentum and step counts go on from the file.

    What the ranks kept back is not in the file: see `hvd.checkpoint`.

    Args:
        filepath: what `model.save` wrote, with any optimizer.
        custom_optimizers: optimizer classes of one's own that the model may have.
        custom_objects: as for `keras.models.load_model`.
        aggregator: as for `DistributedOptimizer`.
        compression: as for `DistributedOptimizer`.
        **options: the other arguments of `DistributedOptimizer`.

    Raises:
        ValueError: where the model was saved without an optimizer, or an argument cannot be had.
    """
    named = {optimizer.__name__: optimizer for optimizer in custom_optimizers}
    model = keras.models.load_model(filepath, custom_objects={**named, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is None:
        raise ValueError(
            f"{filepath} holds no optimizer: load it with keras.models.load_model and compile it with "
            "hvd.DistributedOptimizer(optimizer)."
        )
    distribute(without_loss_scaling(model.optimizer), aggregator, compression, **options)
    keras_hooks.adopt(model)
    return model
