"""How the sparse contributions of several ranks meet, one file an algorithm.

`allgather_sum` and its kin hand contributions on as they are. All others combine them, by SparCML's algorithms (5.3)
and by what they are compared with:

    collective(slices, communicator, op="sum", name=..., dense_above=None)

slices: tf.IndexedSlices, values [k] or [k, ...] of float16, float32 or float64, indices [k] int32 or int64 in any order
(rows of the same index are combined first), and a dense_shape that is known when the collective is called. k may differ
between ranks, and be 0. op: "sum", "max", "min" or "product"; a row that no rank brings is the neutral element.
dense_above: rows above which a message is dense; by default the count from which that is fewer bytes.

What comes back has the same bits on every rank: tf.IndexedSlices with ascending indices, or a tensor of the dense
shape. All ranks check that they were called alike; bad input on one of them is the same ValueError on all. That check
is an all-gather of 16 bytes a rank before each call in eager code. In a graph it is made while the graph is made, and
an index outside the shape, which is known only when the graph runs, is a tf.errors.InvalidArgumentError on all ranks,
told by an all-reduce of 4 bytes beside the exchange. Neither is counted in the steps and bytes of the collectives.
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
