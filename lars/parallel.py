"""The parallel tensor operator: all ranks have the same tensors; each computes its share and receives the others'."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

if TYPE_CHECKING:
    from hvd_sparse.transport.communicator import Communicator


def parallel_map(
    fn: Callable[[tf.Tensor], tf.Tensor],
    tensors: Sequence[tf.Tensor],
    communicator: Communicator | None = None,
    block: int | None = None,
    name: str = "parallel_map",
) -> list[tf.Tensor]:
    """Applies a function to tensors that are the same on all ranks, each rank to its share (CommLib 4.2, Eq. 12 to 14).

    Every rank must call it, with tensors of the same values: nothing checks that they are.

    Args:
        fn: takes one tensor (or one block) and returns a tensor of one shape and dtype for all of them; small, as the
            results are what crosses the network.
        tensors: of known shapes, the same on every rank.
        communicator: the ranks that share the work, such as `hvd_sparse.topology.world()`; with None or a group of one,
            this rank does all of it.
        block: None gives each whole tensor to one rank. A number cuts each tensor, flattened, into blocks of this many
            elements, the last one shorter, and shares these, so that one long tensor is shared too. The blocks do not
            depend on the number of ranks, and neither do the bits of what is computed from them.
        name: the same on every rank, unique among the collectives in flight.

    Returns:
        One result for each tensor, identical on every rank: fn's result, or with `block` fn's results for its blocks
            [blocks, ...] in order.

    Raises:
        ValueError: if a shape is not known, or block is less than 1.

    Steps and bytes sent per rank: P - 1 and (P - 1) times the results of its share, as a ring.
    """
    sizes = [_size(tensor) for tensor in tensors]
    if not sizes:
        return []
    if block is None:
        results = parallel_range(lambda first, last: _stacked(fn, tensors, first, last), sizes, communicator, name)
        return tf.unstack(results, len(sizes))
    pieces = [piece for tensor, size in zip(tensors, sizes, strict=True) for piece in _pieces(tensor, size, block)]
    samples = pieces or [tf.reshape(tensors[0], [-1])]
    lengths = block_sizes(sizes, block)
    results = parallel_range(lambda first, last: _stacked(fn, samples, first, last), lengths, communicator, name)
    return tf.split(results, [_count(size, block) for size in sizes])


def parallel_range(
    fn: Callable[[int, int], tf.Tensor], sizes: Sequence[int], communicator: Communicator | None, name: str
) -> tf.Tensor:
    """A function's results for all items of a numbered list, of which each rank computes a run (CommLib Eq. 13, 14).

    Args:
        fn: called as fn(first, last), returns [last - first, ...], one row per item; the run may be empty.
        sizes: of the items, by which the runs are balanced; the same on every rank.
        communicator: the ranks that share the work; with None or a group of one, this rank does all of it.
        name: the same on every rank, unique among the collectives in flight.

    Returns:
        [len(sizes), ...], identical on every rank.

    Steps and bytes sent per rank: P - 1 and (P - 1) times the rows of its run, as a ring.
    """
    if communicator is None or communicator.size == 1 or not sizes:
        return fn(0, len(sizes))
    runs = shares(sizes, communicator.size)
    own = fn(*runs[communicator.rank])
    return communicator.allgather(own, name, [last - first for first, last in runs])


def shares(sizes: Sequence[int], count: int) -> list[tuple[int, int]]:
    """Cuts a list into runs so that the largest sum of sizes is as small as possible.

    Args:
        sizes: of the items, in order.
        count: of the runs, at least 1.

    Returns:
        (first, last) of each run, last excluded; runs at the end may be empty.
    """
    low, high = max([-(-sum(sizes) // count), *sizes]), sum(sizes)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(_filled(sizes, middle)) <= count else (middle + 1, high)
    ends = _filled(sizes, low)
    ends += [len(sizes)] * (count - len(ends))
    return list(zip([0, *ends[:-1]], ends, strict=True))


def block_sizes(sizes: Sequence[int], block: int) -> list[int]:
    """The number of elements of each block: each tensor begins a new block, and its last one may be shorter."""
    if block < 1:
        raise ValueError(f"Expected blocks of at least one element, got block = {block}.")
    return [min(block, size - begin) for size in sizes for begin in range(0, size, block)]


def _filled(sizes: Sequence[int], capacity: int) -> list[int]:
    """The ends of runs that are filled one after another up to a capacity, which no item exceeds."""
    ends, held = [], 0
    for number, size in enumerate(sizes):
        if held + size > capacity:
            ends.append(number)
            held = 0
        held += size
    return [*ends, len(sizes)]


def _size(tensor: tf.Tensor) -> int:
    size = tensor.shape.num_elements()
    if size is None:
        raise ValueError(
            f"Expected a tensor of known shape, got {tensor.shape}: the ranks share the work by sizes known "
            "beforehand. Use tf.ensure_shape."
        )
    return size


def _count(size: int, block: int) -> int:
    return -(-size // block)


def _pieces(tensor: tf.Tensor, size: int, block: int) -> list[tf.Tensor]:
    flat = tf.reshape(tensor, [-1])
    # Slices, because tf.split copies each piece, including those that are other ranks' work.
    return [tf.slice(flat, [block * number], [length]) for number, length in enumerate(block_sizes([size], block))]


def _stacked(fn: Callable[[tf.Tensor], tf.Tensor], tensors: Sequence[tf.Tensor], first: int, last: int) -> tf.Tensor:
    if first == last:  # only fn's result for a tensor shows the shape and dtype of an empty result
        return tf.stack([fn(tensors[0])])[:0]
    return tf.stack([fn(tensor) for tensor in tensors[first:last]])
