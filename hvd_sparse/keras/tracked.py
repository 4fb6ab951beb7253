"""What a model tracks: its layers, wherever they are, and its optimizers, of which a GAN has two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from hvd_sparse.optimizers import slots

_HOLDERS = (keras.layers.Layer, keras.optimizers.Optimizer, tf.Module, tf.train.Checkpoint)


def optimizers_of(tracked: Any) -> dict[str, keras.optimizers.Optimizer]:
    """All optimizers that a model, a layer or a `tf.train.Checkpoint` holds, by where they are ("d_optimizer").

    Attributes of it and of its layers count, also in lists, tuples and dicts, as for what Keras saves. Each optimizer
    counts once, a loss-scaling one together with its inner one. `model.optimizer` comes first, the others in the order
    of their places, which is the same on all ranks.
    """
    own = getattr(tracked, "optimizer", None)  # also if that is a property or an attribute of the class
    found = {"optimizer": own} if isinstance(own, keras.optimizers.Optimizer) else {}
    found |= {
        path: each
        for path, each in _walked(tracked)
        if isinstance(each, keras.optimizers.Optimizer) and each is not own
    }
    scaled = {id(slots.without_loss_scaling(each)) for each in found.values() if _scales(each)}
    kept = {path: each for path, each in found.items() if id(each) not in scaled}
    return dict(sorted(kept.items(), key=lambda item: item[1] is not own))


def layers_of(model: keras.Model) -> list[keras.layers.Layer]:
    """The model and all layers in it, each once."""
    return [each for _, each in _walked(model) if isinstance(each, keras.layers.Layer)]


def _walked(root: Any) -> Iterator[tuple[str, Any]]:
    """Everything that holds variables below an object, with its path; what is nearest comes first."""
    seen = {id(root)}
    level = [("", root)]
    while level:
        yield from ((path, each) for path, each in level if isinstance(each, _HOLDERS))
        below = []
        for path, holder in level:
            for name, each in _parts(holder):
                if isinstance(each, (*_HOLDERS, list, tuple, dict)) and id(each) not in seen:
                    seen.add(id(each))
                    below.append((f"{path}/{name}" if path else name, each))
        level = below


def _parts(holder: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(holder, list | tuple):
        yield from ((str(number), each) for number, each in enumerate(holder))
    elif isinstance(holder, dict):
        yield from ((str(key), each) for key, each in holder.items())
    else:  # names that the user gave before those of Keras
        yield from sorted(vars(holder).items(), key=lambda item: (item[0].startswith("_"), item[0]))


def _scales(optimizer: Any) -> bool:
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
