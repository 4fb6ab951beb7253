"""The sparse all-reduces between which `Auto` and `SparseAllReduce` choose, by the names of `costs.collectives`."""

from hvd_sparse.collectives.allgather import combine_gathered
from hvd_sparse.collectives.recursive_doubling import combine_pairs
from hvd_sparse.collectives.split_allgather import combine_pieces

# Each takes (layout, message, communicator, name), as `prepared.prepare` makes them, and returns a `Result`.
SPARSE = {
    "recursive_doubling": combine_pairs,
    "split_allgather": combine_pieces,
    "allgather": combine_gathered,
}
