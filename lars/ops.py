"""The native multi-tensor passes of LARS and LAMB: all norms in one read of the tensors, the whole update in one more.

A list of tensors is cut into blocks of `BLOCK` elements, numbered through the list (each tensor begins a new block, its
last one is shorter, an empty tensor has none). A norm is computed from one partial sum of squares for each block, added
in the order of the blocks. The additions inside a block have a fixed order too, so the bits depend neither on which
rank computes which blocks nor on threads or instruction sets (ops/lars/blocks.h).

Weights, velocities and moments are variables, which the updates change in place (a value that is also referenced
elsewhere is copied first, as in TensorFlow's own updates). Tensors of a list may differ in shape and dtype; a weight,
its slots and its gradient may not. For float16 and bfloat16 each result is computed in float32 and rounded once. A
velocity or a moment that would become denormal becomes zero.

The library is loaded when the first operation is called. All of them run in eager mode and in a `tf.function`, and none
has a gradient. Invalid arguments raise `ValueError` or `TypeError` when a graph is built, and
`tf.errors.InvalidArgumentError` when the operation runs; then nothing was changed.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import tensorflow as tf

Number: TypeAlias = "float | tf.Tensor | tf.Variable"
Numbers: TypeAlias = "Sequence[float] | tf.Tensor"
Variables: TypeAlias = "Sequence[tf.Variable]"
Gradients: TypeAlias = "Sequence[tf.Tensor]"

BLOCK = 65_536
"""The elements of a block (ops/lars/blocks.h)."""

_LIBRARY = Path(__file__).with_name("_ops.so")
_OPERATIONS = ("LarsPartials", "LarsUpdate", "LambPartials", "LambUpdate", "LarsLayerSums")
_FLOATS = (tf.float32, tf.float64, tf.float16, tf.bfloat16)
_lock = threading.Lock()


def block_counts(sizes: Sequence[int]) -> list[int]:
    """Returns the number of blocks that each tensor is cut into.

    Args:
        sizes: number of elements of each tensor, none negative.

    Returns:
        ceil(size / BLOCK) for each.

    Raises:
        ValueError: if a size is negative.
    """
    if any(size < 0 for size in sizes):
        raise ValueError(f"Expected sizes of at least 0, got {min(sizes)}.")
    return [-(-size // BLOCK) for size in sizes]


def lars_partials(weights: Variables, gradients: Gradients, first: Number, last: Number) -> tf.Tensor:
    """Sums the squares of weights and gradients, block by block, in one read of both (You et al. 2017).

    Args:
        weights: N variables of float32, float64, float16 or bfloat16.
        gradients: N tensors, each of its weight's shape and dtype.
        first: the first block, a number or a scalar tensor.
        last: the block after the last one, from `first` to the number of blocks.

    Returns:
        float64 [last - first, 2], for each block the sum for the weights and the sum for the gradients; NaN or infinity
        if an element is.

    Raises:
        tf.errors.InvalidArgumentError: if dtypes or shapes do not fit together, or the range of blocks is invalid.
        tf.errors.FailedPreconditionError: if a variable has no value.
    """
    return _library().lars_partials(
        weights=_handles(weights, "weights"),
        gradients=_gradients(gradients, weights),
        first=_integer(first, "first"),
        last=_integer(last, "last"),
    )


def lars_update(
    weights: Variables,
    velocities: Variables,
    gradients: Gradients,
    ratios: Numbers,
    decays: Numbers,
    learning_rate: Number,
    momentum: Number,
    nesterov: bool = False,
) -> tf.Operation | None:
    """Applies the step of LARS to weights, in one read and write (You et al. 2017; CommLib Eq. 11 for the ratio).

    With step = learning_rate * ratio * (gradient + decay * weight): velocity = momentum * velocity + step, and
    weight -= velocity; with Nesterov's momentum weight -= momentum * velocity + step.

    Args:
        weights: N variables, as for `lars_partials`; none may occur twice among weights and velocities.
        velocities: N variables, each of its weight's shape and dtype.
        gradients: as for `lars_partials`.
        ratios: [N] floating, the trust ratio of each weight.
        decays: [N] floating, the weight decay of each weight.
        learning_rate: a number or a scalar tensor.
        momentum: a number or a scalar tensor.
        nesterov: whether the momentum is Nesterov's.

    Returns:
        The operation; None in eager mode.

    Raises:
        tf.errors.InvalidArgumentError: if dtypes, shapes or lengths do not fit together, or a variable occurs twice.
        tf.errors.FailedPreconditionError: if a variable has no value.
    """
    return _library().lars_update(
        weights=_handles(weights, "weights"),
        velocities=_handles(velocities, "velocities", weights),
        gradients=_gradients(gradients, weights),
        ratios=_double(ratios, "ratios"),
        decays=_double(decays, "decays"),
        learning_rate=_double(learning_rate, "learning_rate"),
        momentum=_double(momentum, "momentum"),
        nesterov=nesterov,
    )


def lamb_partials(
    weights: Variables,
    first_moments: Variables,
    second_moments: Variables,
    gradients: Gradients,
    decays: Numbers,
    beta_1: Number,
    beta_2: Number,
    epsilon: Number,
    step: Number,
    first: Number,
    last: Number,
) -> tf.Tensor:
    """Sums the squares of weights and of LAMB's directions u, block by block, in one read (You et al. 2020, Alg. 2).

    The directions are those of `lamb_update` with the same arguments; nothing is changed.

    Args:
        weights: N variables, as for `lars_partials`.
        first_moments: N variables, each of its weight's shape and dtype, as they were before the step.
        second_moments: N variables, likewise.
        gradients: as for `lars_partials`.
        decays: [N] floating, the weight decay of each weight.
        beta_1: of the first moment, in [0, 1); a number or a scalar tensor.
        beta_2: of the second moment, in [0, 1); a number or a scalar tensor.
        epsilon: of the divisor, at least 0; a number or a scalar tensor.
        step: the number of the step, from 1, for the correction of the bias; an integer or a scalar tensor.
        first: as for `lars_partials`.
        last: as for `lars_partials`.

    Returns:
        float64 [last - first, 2], for each block the sum for the weights and the sum for u.

    Raises:
        tf.errors.InvalidArgumentError: as `lars_partials`, and if betas, epsilon or step are outside their range.
        tf.errors.FailedPreconditionError: if a variable has no value.
    """
    return _library().lamb_partials(
        weights=_handles(weights, "weights"),
        first_moments=_handles(first_moments, "first_moments", weights),
        second_moments=_handles(second_moments, "second_moments", weights),
        gradients=_gradients(gradients, weights),
        decays=_double(decays, "decays"),
        beta_1=_double(beta_1, "beta_1"),
        beta_2=_double(beta_2, "beta_2"),
        epsilon=_double(epsilon, "epsilon"),
        step=_integer(step, "step"),
        first=_integer(first, "first"),
        last=_integer(last, "last"),
    )


def lamb_update(
    weights: Variables,
    first_moments: Variables,
    second_moments: Variables,
    gradients: Gradients,
    ratios: Numbers,
    decays: Numbers,
    learning_rate: Number,
    beta_1: Number,
    beta_2: Number,
    epsilon: Number,
    step: Number,
) -> tf.Operation | None:
    """Applies the step of LAMB to moments and weights, in one read and write (You et al. 2020, Algorithm 2).

    first = beta_1 * first + (1 - beta_1) * gradient; second = beta_2 * second + (1 - beta_2) * gradient^2;
    r = (first / (1 - beta_1^step)) / (sqrt(second / (1 - beta_2^step)) + epsilon); u = r + decay * weight;
    weight -= learning_rate * ratio * u.

    Args:
        weights: N variables, as for `lars_partials`; none may occur twice among weights and moments.
        first_moments: as for `lamb_partials`.
        second_moments: as for `lamb_partials`.
        gradients: as for `lars_partials`.
        ratios: [N] floating, |weight| / |u| of each weight.
        decays: as for `lamb_partials`.
        learning_rate: a number or a scalar tensor.
        beta_1: as for `lamb_partials`.
        beta_2: as for `lamb_partials`.
        epsilon: as for `lamb_partials`.
        step: as for `lamb_partials`.

    Returns:
        The operation; None in eager mode.

    Raises:
        tf.errors.InvalidArgumentError: as `lars_update`, and if betas, epsilon or step are outside their range.
        tf.errors.FailedPreconditionError: if a variable has no value.
    """
    return _library().lamb_update(
        weights=_handles(weights, "weights"),
        first_moments=_handles(first_moments, "first_moments", weights),
        second_moments=_handles(second_moments, "second_moments", weights),
        gradients=_gradients(gradients, weights),
        ratios=_double(ratios, "ratios"),
        decays=_double(decays, "decays"),
        learning_rate=_double(learning_rate, "learning_rate"),
        beta_1=_double(beta_1, "beta_1"),
        beta_2=_double(beta_2, "beta_2"),
        epsilon=_double(epsilon, "epsilon"),
        step=_integer(step, "step"),
    )


def layer_sums(partials: tf.Tensor, sizes: Sequence[int] | tf.Tensor) -> tf.Tensor:
    """Adds the partial sums of each tensor in the order of its blocks.

    Args:
        partials: float64 [blocks, columns], a row for each block of the list.
        sizes: [N], number of elements of each tensor.

    Returns:
        float64 [N, columns]; zero for an empty tensor.

    Raises:
        tf.errors.InvalidArgumentError: unless there is one row for each block.
    """
    return _library().lars_layer_sums(
        sizes=tf.cast(tf.convert_to_tensor(sizes, dtype_hint=tf.int64), tf.int64), partials=partials
    )


def _library() -> ModuleType:
    with _lock:  # ranks simulated by threads arrive here together
        return _load()


@functools.cache
def _load() -> ModuleType:
    built_for = _built_for()
    if built_for != tf.__version__:
        raise ImportError(
            f"lars's operations were compiled for TensorFlow {built_for}, this is TensorFlow {tf.__version__}: "
            "compile them again with `pip install --force-reinstall --no-deps .` in the source."
        )
    library = tf.load_op_library(str(_LIBRARY))
    for operation in _OPERATIONS:
        tf.no_gradient(operation)
    return library


def _built_for() -> str:
    try:
        return json.loads(_LIBRARY.with_suffix(".json").read_text())["tensorflow"]
    except FileNotFoundError:
        raise ImportError(
            f"lars's operations are not compiled ({_LIBRARY} is missing): run `make build` or `python setup.py "
            "build_ext --inplace` in the source, or install the package with `pip install .`."
        ) from None


def _handles(variables: Variables, name: str, weights: Variables | None = None) -> list[tf.Tensor]:
    if weights is not None and len(variables) != len(weights):
        raise ValueError(f"Expected {name} for each of the {len(weights)} weights, got {len(variables)}.")
    for number, variable in enumerate(variables):
        _check_variable(variable, f"{name}[{number}]")
    return [variable.handle for variable in variables]


def _check_variable(variable: Any, name: str) -> None:
    if not isinstance(variable, tf.Variable):
        raise TypeError(
            f"Expected {name} to be a tf.Variable, such as a Keras variable's value, got {type(variable).__name__}."
        )
    if variable.dtype not in _FLOATS:
        raise TypeError(f"Expected {name} of float32, float64, float16 or bfloat16, got {variable.dtype.name}.")


def _gradients(gradients: Gradients, weights: Variables) -> list[tf.Tensor]:
    if len(gradients) != len(weights):
        raise ValueError(f"Expected one gradient for each of the {len(weights)} weights, got {len(gradients)}.")
    pairs = zip(gradients, weights, strict=True)
    return [_gradient(gradient, weight, number) for number, (gradient, weight) in enumerate(pairs)]


def _gradient(gradient: Any, weight: tf.Variable, number: int) -> tf.Tensor:
    if isinstance(gradient, tf.IndexedSlices):
        raise TypeError(
            f"Expected gradients[{number}] to be a dense tensor, got tf.IndexedSlices: decay and momentum touch all "
            "rows, so make it dense with tf.convert_to_tensor."
        )
    converted = tf.convert_to_tensor(gradient)
    if converted.dtype != weight.dtype or not converted.shape.is_compatible_with(weight.shape):
        raise ValueError(
            f"Expected gradients[{number}] like its weight, {weight.dtype.name} {weight.shape}, got "
            f"{converted.dtype.name} {converted.shape}."
        )
    return converted


def _integer(number: Any, name: str) -> tf.Tensor:
    converted = tf.convert_to_tensor(number, dtype_hint=tf.int64)
    if not converted.dtype.is_integer:
        raise TypeError(f"Expected {name} to be an integer, got {number!r}: round it first.")
    return tf.cast(converted, tf.int64)


def _double(numbers: Any, name: str) -> tf.Tensor:
    if isinstance(numbers, tf.Tensor | tf.Variable):
        if not (numbers.dtype.is_floating or numbers.dtype.is_integer):
            raise TypeError(f"Expected {name} to be numbers, got {numbers.dtype.name}.")
        return tf.cast(numbers, tf.float64)
    return tf.convert_to_tensor(numbers, dtype=tf.float64)  # so that a Python number is not rounded to float32 first
