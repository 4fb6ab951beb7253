"""Horovod's collectives of values, under its names and with its arguments, for whatever users pass.

Numbers, lists, NumPy arrays, and Keras and TensorFlow variables are converted to tensors first. bfloat16, which Horovod
does not know, is sent as float32.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as _horovod
import tensorflow as tf

from hvd_sparse.compression import Compression
from hvd_sparse.horovod_api import reduce_scatter
from hvd_sparse.horovod_api.inputs import (
    Widened,
    as_tensor,
    by_dtype,
    carried,
    compressed,
    dense,
    moved,
    place,
    values_of,
)
from hvd_sparse.transport.process_sets import ProcessSet, global_process_set, require_member

Average, Sum, Min, Max, Product, Adasum = (
    _horovod.Average,
    _horovod.Sum,
    _horovod.Min,
    _horovod.Max,
    _horovod.Product,
    _horovod.Adasum,
)
NAMES = {Average: "Average", Sum: "Sum", Min: "Min", Max: "Max", Product: "Product", Adasum: "Adasum"}


@tf.autograph.experimental.do_not_convert
def allreduce(
    tensor: Any,
    average: bool | str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> tf.Tensor | tf.IndexedSlices:
    """Combines a value over the ranks, element by element; differentiable.

    Args:
        tensor: a number, list, array, tensor or variable, of the same shape and dtype on every rank; or
            `tf.IndexedSlices`, whose rows may differ.
        average: deprecated: True is `op=hvd.Average`, False `op=hvd.Sum`. A string in its place is taken as the `name`,
            which comes second in `horovod.tensorflow.keras`.
        device_dense: the device on which dense values are combined; by default where they are.
        device_sparse: the device on which `tf.IndexedSlices` are gathered; by default where they are.
        compression: `hvd.Compression.none` or `hvd.Compression.fp16`.
        op: `hvd.Average`, the default, `Sum`, `Min`, `Max`, `Product`, or with MPI `Adasum`. Integers are averaged as
            in Horovod: the sum is divided and truncated.
        prescale_factor: factor applied before the reduction.
        postscale_factor: factor applied after it.
        name: of the operation; by default derived from the tensor's.
        process_set: the ranks that take part.
        ignore_name_scope: name the operation without TensorFlow's name scopes.

    Returns:
        A tensor of the same shape and dtype, the same on every rank; for `tf.IndexedSlices` the rows of all ranks.

    Raises:
        ValueError: if `op` is unknown, or given together with `average`.
        NotImplementedError: for `Adasum` without MPI; for `tf.IndexedSlices` with factors or an `op` other than average
            or sum.
    """
    require_member(process_set)
    if isinstance(average, str):
        name, average = average, None
    common = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor, "op": _operation(op, average)}
    common |= {"process_set": process_set, "ignore_name_scope": ignore_name_scope}
    wanted = as_tensor(tensor)
    if isinstance(wanted, tf.IndexedSlices):
        return _rows(wanted, device_sparse, common)
    there = place(device_dense, [wanted])
    return _horovod.allreduce(wanted, device_dense=there, compression=Widened(compression), name=name, **common)


@tf.autograph.experimental.do_not_convert
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[tf.Tensor | tf.IndexedSlices]:
    """Combines several values over the ranks, each as `allreduce` does, all values of one dtype at once.

    Args:
        tensors: as for `allreduce`; dtypes may be mixed.
        average: as for `allreduce`, like all others.
        device_dense: the device on which dense values are combined; by default where they are.
        device_sparse: the device on which `tf.IndexedSlices` are gathered; by default where they are.
        compression: `hvd.Compression.none` or `hvd.Compression.fp16`.
        op: `hvd.Average` by default.
        prescale_factor: factor applied before the reduction.
        postscale_factor: factor applied after it.
        process_set: the ranks that take part.
        ignore_name_scope: name the operations without TensorFlow's name scopes.
        name: of the operations; by default derived from the tensors'.

    Returns:
        A list of tensors, in the order of `tensors`.

    Raises:
        ValueError: as `allreduce` does.
        NotImplementedError: as `allreduce` does.
    """
    require_member(process_set)
    op = _operation(op, average)
    common = {"op": op, "prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    common |= {"process_set": process_set, "ignore_name_scope": ignore_name_scope}

    def reduce(group: list[tf.Tensor], own_name: str | None) -> list[tf.Tensor]:
        there = place(device_dense, group)
        return _horovod.grouped_allreduce(
            group, device_dense=there, compression=Widened(compression), name=own_name, **common
        )

    wanted = [as_tensor(each) for each in tensors]
    whole = [each for each in wanted if not isinstance(each, tf.IndexedSlices)]
    reduced = iter(by_dtype(whole, reduce, name))
    return [
        _rows(each, device_sparse, common) if isinstance(each, tf.IndexedSlices) else next(reduced) for each in wanted
    ]


@tf.autograph.experimental.do_not_convert
def allgather(
    tensor: Any, name: str | None = None, ignore_name_scope: bool = False, process_set: ProcessSet = global_process_set
) -> tf.Tensor:
    """Concatenates the values of all ranks along the first dimension, in rank order; differentiable.

    Args:
        tensor: a list, array, tensor or variable, [length, ...]; length may differ between ranks.
        name: of the operation; by default derived from the tensor's.
        ignore_name_scope: name the operation without TensorFlow's name scopes.
        process_set: the ranks that take part.

    Returns:
        [sum of the lengths, ...], the same on every rank.
    """
    require_member(process_set)
    common = {"name": name, "ignore_name_scope": ignore_name_scope, "process_set": process_set}
    return moved(dense(tensor), lambda sent: _horovod.allgather(sent, **common))


@tf.autograph.experimental.do_not_convert
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Gathers several values, each as `allgather` does, all values of one dtype at once.

    Args:
        tensors: as for `allgather`; dtypes may be mixed.
        name: of the operations; by default derived from the tensors'.
        ignore_name_scope: name the operations without TensorFlow's name scopes.
        process_set: the ranks that take part.

    Returns:
        A list of tensors, in the order of `tensors`.
    """
    require_member(process_set)
    common = {"ignore_name_scope": ignore_name_scope, "process_set": process_set}

    def gather(group: list[tf.Tensor], own_name: str | None) -> list[tf.Tensor]:
        gathered = _horovod.grouped_allgather([carried(each) for each in group], name=own_name, **common)
        return [values_of(each, own.dtype) for each, own in zip(gathered, group, strict=True)]

    return by_dtype([dense(each) for each in tensors], gather, name)


@tf.autograph.experimental.do_not_convert
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Gives every rank the value of one rank; differentiable.

    Args:
        tensor: a number, list, array, tensor or variable, of the same shape and dtype on every rank.
        root_rank: the rank whose value all get, as numbered among all ranks.
        name: of the operation; by default derived from the tensor's.
        ignore_name_scope: name the operation without TensorFlow's name scopes.
        process_set: the ranks that take part.

    Returns:
        A tensor of the same shape and dtype, the same on every rank.
    """
    require_member(process_set)
    common = {"name": name, "ignore_name_scope": ignore_name_scope, "process_set": process_set}
    return moved(dense(tensor), lambda sent: _horovod.broadcast(sent, root_rank, **common))


@tf.autograph.experimental.do_not_convert
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
    """Sends consecutive pieces of a value to the ranks, and concatenates what arrives in rank order; differentiable.

    Args:
        tensor: a list, array, tensor or variable, [length, ...]; length may differ between ranks.
        splits: [P] integers: the number of rows for each rank; by default the same for all.
        name: of the operation; by default derived from the tensor's.
        ignore_name_scope: name the operation without TensorFlow's name scopes.
        process_set: the ranks that take part.

    Returns:
        What has arrived, [rows, ...]; if `splits` were given also the number of rows from each rank, [P] int32.
    """
    require_member(process_set)
    sent = dense(tensor)
    common = {"name": name, "ignore_name_scope": ignore_name_scope, "process_set": process_set}
    if splits is None:
        return moved(sent, lambda each: _horovod.alltoall(each, **common))
    splits = tf.cast(tf.convert_to_tensor(splits), tf.int32)
    received, lengths = _horovod.alltoall(carried(sent), splits, **common)
    return values_of(received, sent.dtype), lengths


@tf.autograph.experimental.do_not_convert
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Combines a value over the ranks and gives each rank its share of the first dimension; differentiable.

    It is an all-to-all and a sum in rank order: Horovod 0.28.1's own, through Gloo, occasionally returns wrong sums.

    Args:
        tensor: a list, array, tensor or variable, [length, ...], of the same shape and dtype on every rank. If P does
            not divide length, the first ranks get one row more.
        device_dense: the device on which values are combined; by default where they are.
        compression: `hvd.Compression.none` or `hvd.Compression.fp16`.
        op: `hvd.Average` or `hvd.Sum`.
        name: of the operation; by default derived from the tensor's.
        process_set: the ranks that take part.
        ignore_name_scope: name the operation without TensorFlow's name scopes.
        prescale_factor: factor applied before the reduction.
        postscale_factor: factor applied after it.

    Returns:
        This rank's rows, of the same dtype.

    Raises:
        ValueError: if `op` is another one, or the value has no dimensions.
        tf.errors.FailedPreconditionError: on every rank, if shapes or dtypes differ between ranks.
    """
    require_member(process_set)
    wanted = [dense(tensor)]
    scatter = reduce_scatter.ReduceScatter(
        _sum_or_average(op), prescale_factor, postscale_factor, process_set, name, ignore_name_scope
    )
    with tf.device(place(device_dense, wanted)):
        return compressed(wanted, Widened(compression), scatter.scatter)[0]


@tf.autograph.experimental.do_not_convert
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[tf.Tensor]:
    """Combines and scatters several values, each as `reducescatter` does, all values of one dtype at once.

    Args:
        tensors: as for `reducescatter`; dtypes may be mixed.
        device_dense: the device on which values are combined; by default where they are.
        compression: `hvd.Compression.none` or `hvd.Compression.fp16`.
        op: `hvd.Average` or `hvd.Sum`.
        process_set: the ranks that take part.
        prescale_factor: factor applied before the reduction.
        postscale_factor: factor applied after it.

    Returns:
        This rank's rows of each, in the order of `tensors`.

    Raises:
        ValueError: as `reducescatter` does.
        tf.errors.FailedPreconditionError: as `reducescatter` does.
    """
    require_member(process_set)
    op = _sum_or_average(op)

    def scatter(group: list[tf.Tensor], own_name: str | None) -> list[tf.Tensor]:
        running = reduce_scatter.ReduceScatter(op, prescale_factor, postscale_factor, process_set, own_name, False)
        return compressed(group, Widened(compression), running.scatter)

    wanted = [dense(each) for each in tensors]
    with tf.device(place(device_dense, wanted)):
        return by_dtype(wanted, scatter, None)


def _rows(slices: tf.IndexedSlices, device: str, common: dict[str, Any]) -> tf.IndexedSlices:
    """The rows of all ranks; bfloat16 is sent as float32."""
    dtype = slices.values.dtype
    sent = tf.cast(slices.values, tf.float32) if dtype == tf.bfloat16 else slices.values
    wide = tf.IndexedSlices(sent, slices.indices, slices.dense_shape)
    reduced = _horovod.allreduce(wide, device_sparse=place(device, [sent]), **common)
    if dtype != tf.bfloat16:
        return reduced
    return tf.IndexedSlices(tf.cast(reduced.values, dtype), reduced.indices, reduced.dense_shape)


def _operation(op: int | None, average: bool | None = None) -> int:
    """The operation that Horovod's two arguments for it together ask for."""
    if op is not None and average is not None:
        raise ValueError("op and average both say how values are combined: pass op only.")
    if average is not None:
        replaced = "op=hvd.Average" if average else "op=hvd.Sum"
        warnings.warn(f"average={average} is deprecated: pass {replaced}.", DeprecationWarning, stacklevel=3)
        op = Average if average else Sum
    op = Average if op is None else op
    if op not in NAMES:
        raise ValueError(f"Expected one of {', '.join(f'hvd.{name}' for name in NAMES.values())} as op, got {op!r}.")
    if op == Adasum and not _horovod.mpi_enabled():
        raise NotImplementedError(
            "hvd.Adasum needs MPI, which this run does not use: use op=hvd.Average, or build Horovod with "
            "HOROVOD_WITH_MPI=1 and start with mpirun."
        )
    return op


def _sum_or_average(op: int) -> int:
    if op not in (Sum, Average):
        given = f"hvd.{NAMES[op]}" if op in NAMES else repr(op)
        raise ValueError(f"Expected hvd.Average or hvd.Sum as op, got {given}.")
    return op
