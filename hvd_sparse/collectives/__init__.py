"""Collectives that gather or combine the sparse contributions of several ranks; each algorithm has its own file.

`allgather_sum` and its variants return the contributions as they are. All others combine them, by SparCML's algorithms
(5.3) or by the algorithms that these are compared with:

    collective(slices, communicator, op="sum", name=..., dense_above=None)

slices: tf.IndexedSlices, values [k] or [k, ...] of float16, float32 or float64, indices [k] int32 or int64 in any order
(rows of the same index are combined first), and a dense_shape that is known when the collective is called. k may differ
between ranks, and be 0. op: "sum", "max", "min" or "product"; a row that no rank contributes is the neutral element.
dense_above: rows above which a message is dense; by default the count above which that is fewer bytes.

The result has the same bits on every rank: tf.IndexedSlices with ascending indices, or a tensor of the dense shape. All
ranks check that their calls agree; invalid input on one of them raises the same ValueError on all. In eager code this
check is an all-gather of 16 bytes per rank before each call. In a graph it is done when the graph is built; an index
outside the shape, which is known only when the graph runs, raises tf.errors.InvalidArgumentError on all ranks, by means
of an additional all-reduce of 4 bytes. Neither is counted in the steps and bytes of the collectives.
"""

from hvd_sparse.collectives.allgather import allgather
from hvd_sparse.collectives.allgather_coded import (
    allgather_coded,
    allgather_coded_counted,
    coded_bytes,
    coded_counted_bytes,
)
from hvd_sparse.collectives.allgather_counted import allgather_counted, counted_bytes
from hvd_sparse.collectives.allgather_sum import allgather_sum, count, message_bytes
from hvd_sparse.collectives.auto import Auto, auto
from hvd_sparse.collectives.dynamic import QuantizedTotal, dynamic, dynamic_quantized, own_rows
from hvd_sparse.collectives.handles import Handle, start
from hvd_sparse.collectives.recursive_doubling import recursive_doubling
from hvd_sparse.collectives.rings import dense_ring, sparse_ring
from hvd_sparse.collectives.split_allgather import split_allgather

__all__ = [
    "Auto",
    "Handle",
    "QuantizedTotal",
    "allgather",
    "allgather_coded",
    "allgather_coded_counted",
    "allgather_counted",
    "allgather_sum",
    "auto",
    "coded_bytes",
    "coded_counted_bytes",
    "count",
    "counted_bytes",
    "dense_ring",
    "dynamic",
    "dynamic_quantized",
    "message_bytes",
    "own_rows",
    "recursive_doubling",
    "sparse_ring",
    "split_allgather",
    "start",
]
