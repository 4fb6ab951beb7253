"""The native operations: selection by magnitude, and the processing of gradients around it.

The library is loaded when the first operation is called. All of them run in eager mode and in a `tf.function`, and none
has a gradient. Invalid arguments raise `ValueError` or `TypeError` when a graph is built, and
`tf.errors.InvalidArgumentError` when the operation runs.
"""

from __future__ import annotations

import ctypes
import functools
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import tensorflow as tf

from hvd_sparse.indices import as_int32

Number: TypeAlias = "int | tf.Tensor"

_LIBRARY = Path(__file__).with_name("_ops.so")
_OPERATIONS = (
    "HvdSparseTopk",
    "HvdSparseMstopk",
    *(f"HvdSparseFeedback{kind}" for kind in ("Topk", "Mstopk", "BucketTopk", "Sampled", "Held")),
    "HvdSparseSumParts",
    "HvdSparseMean",
    "HvdSparseMeans",
    "HvdSparseMarkNonfinite",
    "HvdSparseMomentum",
    "HvdSparseClear",
    "HvdSparsePack",
    "HvdSparseUnpack",
    "HvdSparseUnpackCounted",
    "HvdSparseUnpackCoded",
    "HvdSparseSum",
    "HvdSparseSharedExchangeRagged",
    "HvdSparseCheckFaults",
    "HvdSparseClock",
    "HvdSparseUnknown",
    "HvdSparseSharedExchange",
    "HvdDatagramsAverage",
    "HvdStreamPack",
    "HvdStreamSplit",
    "HvdStreamReduce",
    "HvdStreamConcat",
    "HvdStreamDense",
    "HvdStreamSlices",
    *(f"Hvd{way}{kind}" for way in ("Quantize", "Dequantize") for kind in ("", "OneBit", "TwoBits")),
)
_FLOATS = (tf.float32, tf.float16, tf.bfloat16)
_lock = threading.Lock()


def topk(x: tf.Tensor, k: Number) -> tuple[tf.Tensor, tf.Tensor]:
    """Selects the k elements of largest magnitude of each row, exactly (CommLib Eq. 2).

    Args:
        x: [..., d] float32, float16 or bfloat16, finite.
        k: number of elements, in [0, d]; a number or a scalar tensor.

    Returns:
        Values [..., k] in the dtype of x, with their signs, and indices [..., k] int32 in ascending order. Of equal
        magnitudes the lower index wins.

    Raises:
        tf.errors.InvalidArgumentError: if k is outside [0, d], or elements are not finite (it reports their number and
            the place of the first).
    """
    return library().hvd_sparse_topk(x=_floats(x, "x"), k=_integer(k, "k"))


def mstopk(x: tf.Tensor, k: Number, samplings: int = 30, seed: Number = 0) -> tuple[tf.Tensor, tf.Tensor]:
    """Selects k elements of large magnitude of each row by searching for two thresholds (CommLib Algorithm 1).

    Args:
        x: [..., d] float32, float16 or bfloat16, finite.
        k: number of elements, in [0, d]; a number or a scalar tensor.
        samplings: N, the number of thresholds that are tried, at least 1.
        seed: of the random window between the two thresholds; a number or a scalar tensor.

    Returns:
        Values [..., k] in the dtype of x and indices [..., k] int32, always exactly k and distinct: first those above
        the upper threshold, then those of the window, each in ascending order. If Algorithm 1 has no answer (nothing is
        above the upper threshold, or no lower one was found), those of `topk`.

    Raises:
        tf.errors.InvalidArgumentError: as `topk`, and if samplings is less than 1.
    """
    return library().hvd_sparse_mstopk(
        x=_floats(x, "x"), k=_integer(k, "k"), seed=_integer(seed, "seed"), samplings=samplings
    )


def feedback_topk(
    parts: tf.Tensor, residual: tf.Tensor, k: Number, wire_dtype: tf.DType | None = None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Sums parts and residual, selects like `topk` and subtracts what the receivers decode, in one pass over memory.

    With acc = ((p_0 + p_1) + ...) + residual in float32 (CommLib Algorithm 2, lines 3 to 9, with error feedback):

    Args:
        parts: [n, d] float32, float16 or bfloat16, n at least 1.
        residual: [d] float32; it is not changed.
        k: number of elements, in [0, d]; a number or a scalar tensor.
        wire_dtype: the dtype in which values are sent, rounded to nearest even; float32 by default.

    Returns:
        values: [k] in wire_dtype, acc at the indices.
        indices: [k] int32, as `topk` returns them for acc.
        residual_out: [d] float32, acc where it was not selected, otherwise acc minus the value sent.
        culprit: [] int32: 0; 1 + the lowest number of a part that holds a NaN or an infinity; or 1 + n if all parts are
            finite but acc is not. If it is not 0, values and residual_out are invalid; indices are still distinct.

    Raises:
        tf.errors.InvalidArgumentError: if shapes do not fit together or k is outside [0, d].
    """
    return library().hvd_sparse_feedback_topk(
        parts=_floats(parts, "parts"), residual=residual, k=_integer(k, "k"), wire_dtype=_wire(wire_dtype)
    )


def feedback_mstopk(
    parts: tf.Tensor,
    residual: tf.Tensor,
    k: Number,
    samplings: int = 30,
    seed: Number = 0,
    wire_dtype: tf.DType | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """The same as `feedback_topk` with the selection of `mstopk` (CommLib Algorithms 1 and 2).

    Args:
        parts: as for `feedback_topk`.
        residual: as for `feedback_topk`.
        k: as for `feedback_topk`.
        samplings: as for `mstopk`.
        seed: as for `mstopk`.
        wire_dtype: as for `feedback_topk`.

    Returns:
        values, indices, residual_out and culprit, as `feedback_topk` does; the indices are those of `mstopk`.

    Raises:
        tf.errors.InvalidArgumentError: as `feedback_topk`, and if samplings is less than 1.
    """
    return library().hvd_sparse_feedback_mstopk(
        parts=_floats(parts, "parts"),
        residual=residual,
        k=_integer(k, "k"),
        seed=_integer(seed, "seed"),
        samplings=samplings,
        wire_dtype=_wire(wire_dtype),
    )


def feedback_bucket_topk(
    parts: tf.Tensor, residual: tf.Tensor, k: int, bucket: int, wire_dtype: tf.DType | None = None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """The same as `feedback_topk` with the selection of `topk` in every bucket of consecutive elements (SparCML 8.3).

    Args:
        parts: as for `feedback_topk`.
        residual: as for `feedback_topk`.
        k: number of elements of each bucket, in [1, bucket]; a shorter last bucket sends min(k, its length).
        bucket: number of elements of a bucket.
        wire_dtype: as for `feedback_topk`.

    Returns:
        values, indices, residual_out and culprit, as `feedback_topk` does; the indices ascend.

    Raises:
        tf.errors.InvalidArgumentError: if shapes do not fit together or k is outside [1, bucket].
    """
    return library().hvd_sparse_feedback_bucket_topk(
        parts=_floats(parts, "parts"), residual=residual, k=k, bucket=bucket, wire_dtype=_wire(wire_dtype)
    )


def sum_parts(parts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Sums the rows of a matrix in order, in float32 (the local step of a reduce-scatter, CommLib Algorithm 2, line 2).

    Args:
        parts: [n, d] float32, float16 or bfloat16, n at least 1.

    Returns:
        sum: [d] float32, ((p_0 + p_1) + ...) + p_{n-1}.
        culprit: [] int32, as in `feedback_topk`.

    Raises:
        tf.errors.InvalidArgumentError: if parts is not a matrix or has no row.
    """
    return library().hvd_sparse_sum_parts(parts=_floats(parts, "parts"))


def mean(total: tf.Tensor, divisor: float | tf.Tensor, dtype: tf.DType) -> tuple[tf.Tensor, tf.Tensor]:
    """Divides a sum, and checks in the same pass whether the result is finite.

    Args:
        total: [d] float32, float16 or bfloat16.
        divisor: a number or a scalar tensor.
        dtype: of the result, float32, float16 or bfloat16.

    Returns:
        mean: [d] of dtype: total / divisor in float32, rounded to nearest even. It reuses total's memory if nothing
            else refers to it.
        nonfinite: [] bool, whether the mean holds a NaN or an infinity.

    Raises:
        tf.errors.InvalidArgumentError: if total is not a vector or divisor not a scalar.
    """
    return library().hvd_sparse_mean(
        total=_floats(total, "total"), divisor=tf.cast(divisor, tf.float32), dtype=_float_type(dtype, "dtype")
    )


def mark_nonfinite(values: tf.Tensor, nonfinite: tf.Tensor) -> tf.Tensor:
    """Makes the first value NaN if a vector is invalid, so that its receivers notice.

    Args:
        values: [k] float32, float16 or bfloat16.
        nonfinite: [] bool.

    Returns:
        The values, uncopied, if nonfinite is false or there are none.

    Raises:
        tf.errors.InvalidArgumentError: if values is not a vector or nonfinite not a scalar.
    """
    return library().hvd_sparse_mark_nonfinite(values=_floats(values, "values"), nonfinite=nonfinite)


def pack(values: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    """Puts values and indices into one message, so that one collective carries both (CommLib Algorithm 2, line 11).

    Args:
        values: [k] float32, float16 or bfloat16.
        indices: [k] int32 or int64.

    Returns:
        int32 [k + ceil(k * itemsize / 4)]: the indices, then the values' bytes, padded with zeros to a whole word.

    Raises:
        tf.errors.InvalidArgumentError: if the two are not vectors of the same length.
    """
    return library().hvd_sparse_pack(values=_floats(values, "values"), indices=as_int32(indices, "indices"))


def unpack(messages: tf.Tensor, counts: tf.Tensor, dtype: tf.DType) -> tuple[tf.Tensor, tf.Tensor]:
    """Splits the concatenated messages of several ranks into values and indices.

    Args:
        messages: int32 [sum of words], what `pack` made on each rank.
        counts: int32 [r], k of each rank.
        dtype: of the values.

    Returns:
        Values [sum of counts] and indices [sum of counts] int32, rank after rank.

    Raises:
        tf.errors.InvalidArgumentError: if a count is negative, or counts and dtype do not give the messages' length.
    """
    return library().hvd_sparse_unpack(messages=messages, counts=counts, T=_float_type(dtype, "dtype"))


def sparse_sum(
    values: tf.Tensor,
    indices: tf.Tensor,
    size: Number,
    divisor: float | tf.Tensor = 1,
    offset: Number = 0,
    dtype: tf.DType = tf.float32,
) -> tf.Tensor:
    """Adds up sparse contributions to a dense vector (CommLib Algorithm 2, lines 13 and 14).

    Args:
        values: [t] float32, float16 or bfloat16.
        indices: [t] int32 or int64; an index may repeat.
        size: of the result, in [0, 2^31 - 1]; a number or a scalar tensor.
        divisor: each sum is divided by it once, in float32; a number or a scalar tensor.
        offset: the index of the first element of the result; a number or a scalar tensor.
        dtype: of the result, float32, float16 or bfloat16.

    Returns:
        [size] of dtype: the float32 sums of the values in the order given, divided, then rounded to nearest even; zero
        where there is no value.

    Raises:
        tf.errors.InvalidArgumentError: if an index is outside [offset, offset + size) (it reports which), or shapes do
            not fit together.
    """
    return library().hvd_sparse_sum(
        values=_floats(values, "values"),
        indices=as_int32(indices, "indices"),
        size=_integer(size, "size"),
        divisor=tf.cast(divisor, tf.float32),
        offset=_integer(offset, "offset"),
        dtype=_float_type(dtype, "dtype"),
    )


def check_faults(culprits: tf.Tensor, labels: Sequence[str], remedy: str) -> tf.Tensor:
    """Raises an error if a rank's gradient was not finite.

    Args:
        culprits: int32 [b], the largest code of all ranks: 0, or 1 + the number of a rank; -1 if only the sum over the
            ranks is not finite.
        labels: b strings that name what each code is about.
        remedy: what the user can do; the end of the message.

    Returns:
        The culprits, all 0.

    Raises:
        tf.errors.InvalidArgumentError: if a code is not 0; it names label, rank and remedy.
    """
    return library().hvd_sparse_check_faults(culprits=culprits, labels=list(labels), remedy=remedy)


def clock(unknown: tf.Tensor) -> tf.Tensor:
    """Returns the time at which it runs, from an arbitrary start.

    Unlike `tf.timestamp` it waits only for its input and its control dependencies: a `tf.function` runs stateful
    operations one after another, so stateful clocks on parallel branches would serialise these.

    Args:
        unknown: [] float64; it only matters that it is not known before the graph runs, because nothing else prevents a
            clock from being read just once, when the graph is optimised.

    Returns:
        [] float64, seconds.
    """
    return library().hvd_sparse_clock(unknown=unknown)


@functools.cache
def kernels() -> ctypes.CDLL:
    """The library's plain C functions (ops/*.h)."""
    library()  # TensorFlow only accepts operations that a library registers while TensorFlow loads it
    return ctypes.CDLL(str(_LIBRARY))


def library() -> ModuleType:
    """The operations as wrapped by TensorFlow, for modules that add types and errors to other families of them."""
    with _lock:  # ranks simulated by threads arrive here together
        return _load()


@functools.cache
def _load() -> ModuleType:
    built_for = _built_for()
    if built_for != tf.__version__:
        raise ImportError(
            f"hvd_sparse's operations were compiled for TensorFlow {built_for}, this is TensorFlow {tf.__version__}: "
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
            f"hvd_sparse's operations are not compiled ({_LIBRARY} is missing): run `make build` or `python setup.py "
            "build_ext --inplace` in the source, or install the package with `pip install .`."
        ) from None


def _integer(number: Number, name: str) -> tf.Tensor:
    converted = tf.convert_to_tensor(number, dtype_hint=tf.int64)
    if not converted.dtype.is_integer:
        raise TypeError(f"Expected {name} to be an integer, got {number!r}: round it first.")
    return tf.cast(converted, tf.int64)


def _floats(tensor: Any, name: str) -> tf.Tensor:
    converted = tf.convert_to_tensor(tensor)
    _float_type(converted.dtype, name)
    return converted


def _wire(dtype: tf.DType | None) -> tf.DType:
    return _float_type(tf.float32 if dtype is None else dtype, "wire_dtype")


def _float_type(dtype: Any, name: str) -> tf.DType:
    given = tf.as_dtype(dtype)
    if given not in _FLOATS:
        raise TypeError(f"Expected {name} of float32, float16 or bfloat16, got {given.name}; cast it first.")
    return given
