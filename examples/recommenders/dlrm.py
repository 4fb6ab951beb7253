"""The deep learning recommendation model (Naumov et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

BOTTOM, TOP = (512, 256, 64, 16), (512, 256, 128, 1)


@keras.saving.register_keras_serializable(package="examples")
class PairwiseDots(keras.layers.Layer):
    """Dot products of all pairs of different vectors.

    Shapes:
        from n inputs [batch, features] to [batch, n (n - 1) / 2], in the order (1, 0), (2, 0), (2, 1), (3, 0), ...
    """

    def call(self, inputs: Sequence[Any]) -> Any:
        """See above."""
        count = len(inputs)
        vectors = keras.ops.stack(inputs, axis=1)
        products = keras.ops.matmul(vectors, keras.ops.transpose(vectors, (0, 2, 1)))
        rows, columns = np.tril_indices(count, -1)
        return keras.ops.take(keras.ops.reshape(products, (-1, count * count)), rows * count + columns, axis=1)

    def compute_output_shape(self, input_shape: Sequence[tuple[int | None, ...]]) -> tuple[int | None, int]:
        count = len(input_shape)
        return (input_shape[0][0], count * (count - 1) // 2)


def dlrm(
    features: int,
    sizes: Sequence[int],
    bottom: Sequence[int] = BOTTOM,
    top: Sequence[int] = TOP,
    after: Mapping[str, keras.Layer] = {},
    seed: int = 0,
) -> keras.Model:
    """The model of Gupta et al. 2021 (3.1): two perceptrons, with the interaction of all embeddings between them.

    Inputs are "numbers" float32 [batch, features] and "categories" int32 [batch, len(sizes)]; the output is logits
    [batch, 1]. Layers are "bottom_1" to "bottom_4", each with its ReLU, the embeddings "table_1" and so on,
    "interaction", and "top_1" to "top_4", the last of which has no ReLU. The paper splits the model after "bottom_2"
    and "top_2".

    Args:
        features: number of numeric features per row.
        sizes: rows of each embedding table.
        bottom: units of the first perceptron's layers; those of the last layer are the length of an embedding.
        top: units of the second perceptron's layers.
        after: further layers, by the name of the layer that they follow.
        seed: seed of the initial weights.

    Raises:
        ValueError: if `after` names a layer that does not exist.
    """
    names = [f"bottom_{number}" for number in range(1, len(bottom) + 1)]
    names += [f"top_{number}" for number in range(1, len(top) + 1)]
    unknown = [name for name in after if name not in names]
    if unknown:
        raise ValueError(f"Expected layers {', '.join(names)}, got {unknown[0]!r}.")
    numbers = keras.Input((features,), name="numbers")
    categories = keras.Input((len(sizes),), dtype="int32", name="categories")
    first = 1_000 * seed
    x = _perceptron(numbers, "bottom", bottom, after, first + 500)
    vectors = [_table(size, bottom[-1], number + 1, first)(categories[:, number]) for number, size in enumerate(sizes)]
    dots = PairwiseDots(name="interaction")([x, *vectors])
    logits = _perceptron(keras.layers.Concatenate(name="joined")([x, dots]), "top", top, after, first + 600)
    return keras.Model([numbers, categories], logits, name="dlrm")


def _table(size: int, features: int, number: int, seed: int) -> keras.Layer:
    first = keras.initializers.RandomUniform(-0.05, 0.05, seed=seed + number)
    return keras.layers.Embedding(size, features, first, name=f"table_{number}")


def _perceptron(x: Any, name: str, units: Sequence[int], after: Mapping[str, keras.Layer], seed: int) -> Any:
    for number, width in enumerate(units, start=1):
        last = name == "top" and number == len(units)
        first = keras.initializers.GlorotUniform(seed=seed + number)
        own = f"{name}_{number}"
        x = keras.layers.Dense(width, None if last else "relu", kernel_initializer=first, name=own)(x)
        x = after[own](x) if own in after else x
    return x
