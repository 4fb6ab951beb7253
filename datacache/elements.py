"""What users get of a sample: an element, made from the array and the label that levels keep of it.

Levels keep an array and an integer. If decoding returns just that, elements are (array, label), or the array alone if
there is no label. Anything else is packed into an array of bytes, and the label is the source's, if it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from datacache import nests
from datacache.layout import Layout
from datacache.nests import Leaf, Nest, Packing

_LABEL = Leaf("int64", ())


def weighted(element: Any, weights: Any, product: Callable[[Any, Any], Any]) -> Any:
    """An element, or a batch, with the weights that `fit` takes.

    Args:
        element: such as (x, y), which gets them as third part, or (x, y, weight), whose third part is multiplied.
            Anything else becomes (element, weights).
        weights: of the element, or of each one of the batch.
        product: of the third part and the weights.
    """
    if not isinstance(element, tuple) or len(element) not in (2, 3):
        return element, weights
    return (*element[:2], product(element[2], weights) if len(element) == 3 else weights)


class Elements:
    """The elements of all samples of a cache.

    Attributes:
        layout: of the arrays that levels keep.
        packing: of what is packed in them; None if they are part of the element themselves.
        leaves: the parts of an element that have no parts, in order; the label is the last one, if it counts.
        labelled: whether the label is part of the element.
    """

    def __init__(self, nest: Nest, packed: bool, labelled: bool):
        """Takes what decoding returns, without the label, whether it is packed, and whether the label counts."""
        self.labelled, self._nest = labelled, nest
        self.packing = Packing(nest) if packed else None
        self.layout = Layout(*nest) if self.packing is None else self.packing.layout
        self.leaves = [*nests.leaves(nest), _LABEL] if labelled else nests.leaves(nest)

    def __str__(self) -> str:
        return str(self._nest)

    def built(self, values: Iterable[Any]) -> Any:
        """The element with these values in place of its leaves."""
        taken = iter(values)
        made = nests.built(self._nest, taken)
        return (made, next(taken)) if self.labelled else made

    def one(self, sample: np.ndarray, label: int) -> Any:
        """The element of a sample."""
        values = [sample] if self.packing is None else [array[()] for array in self.packing.unpack(sample)]
        return self.built([*values, label])

    def batch(self, samples: Any, labels: np.ndarray) -> Any:
        """The elements of a batch as one: each leaf an array [b, ...], or a list of arrays if its shape varies."""
        return self.built(self.columns(samples, labels))

    def columns(self, samples: Any, labels: np.ndarray) -> list[Any]:
        """The leaves of `batch`, in order.

        Args:
            samples: [b, ...], or a list of arrays if the layout varies.
            labels: int64 [b].
        """
        last = [labels] if self.labelled else []
        if self.packing is None:
            return [samples, *last]
        if not self.layout.varies:
            return [*self.packing.rows(samples), *last]
        unpacked = [self.packing.unpack(sample) for sample in samples]
        found = [[each[number] for each in unpacked] for number in range(len(self.packing.leaves))]
        return [*map(nests.stacked, self.packing.leaves, found), *last]

    def to_json(self) -> dict[str, Any]:
        """The elements as what JSON has; `from_json` is its inverse."""
        return {"nest": nests.to_json(self._nest), "packed": self.packing is not None, "labelled": self.labelled}

    @staticmethod
    def from_json(told: dict[str, Any]) -> Elements:
        """The elements of which this is `to_json`; arrays with labels, if it is a layout's dtype and shape alone."""
        return Elements(nests.from_json(told.get("nest", told)), told.get("packed", False), told.get("labelled", True))
