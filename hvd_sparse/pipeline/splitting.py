"""Functional models, cut into parts after named layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras


def split(model: keras.Model, after: Sequence[str]) -> list[keras.Model]:
    """Cuts a functional model into parts for `Stages`.

    Args:
        model: must have one output. Parts share its layers.
        after: names of layers, in order; the single tensor of each is sent on from there.

    Returns:
        The parts, one more than there are names. Each takes the previous part's tensor, and those inputs of the model
        that it also needs.

    Raises:
        ValueError: if the model has no such layer, or more than that tensor is used after it.
    """
    known = {layer.name: layer for layer in model.layers}
    unknown = [name for name in after if name not in known]
    if unknown or not getattr(model, "inputs", None) or len(model.outputs) != 1:
        raise ValueError(
            f"Expected layers of a functional model with one output, got {unknown or list(after)} of {model.name} with "
            f"the layers {sorted(known)}."
        )
    cuts = [*(known[name].output for name in after), model.outputs[0]]
    parts: list[keras.Model] = []
    for number, output in enumerate(cuts):
        source = [cuts[number - 1]] if number else []
        parts.append(_part(model, source, output, f"{model.name}_part_{number}"))
        _require_disjoint(parts, after)
    return parts


def _part(model: keras.Model, source: list[Any], output: Any, name: str) -> keras.Model:
    """The layers from one tensor to the next, with as few of the model's inputs as possible."""
    needed = keras.utils.get_source_inputs(output)
    for each in list(needed):
        fewer = [other for other in needed if other is not each]
        if (source or fewer) and _connects([*source, *fewer], output):
            needed = fewer
    return keras.Model([*source, *needed], output, name=name)


def _connects(inputs: list[Any], output: Any) -> bool:
    try:
        keras.Model(inputs, output)
    except ValueError:
        return False
    return True


def _require_disjoint(parts: Sequence[keras.Model], after: Sequence[str]) -> None:
    *before, last = ({layer.name for layer in part.layers if not _is_input(layer)} for part in parts)
    for number, own in enumerate(before):
        if own & last:
            raise ValueError(
                f"Expected a single tensor to cross the split after {after[number]!r}, but the outputs of "
                f"{sorted(own & last)} are needed on both sides of it: split elsewhere."
            )


def _is_input(layer: Any) -> bool:
    return isinstance(layer, keras.layers.InputLayer)
