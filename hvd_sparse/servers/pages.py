"""Memory pages of a server's vectors."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from hvd_sparse import ops


def use_large_pages(variables: Iterable[tf.Variable]) -> None:
    """Moves float32 variables on the CPU into memory pages of 2 MB, as far as the kernel has any; their values stay.

    TensorFlow's allocator leaves vectors in pages of 4 KB, over which an optimizer's step takes up to twice as long.
    """
    ops.library().hvd_servers_use_large_pages(variables=[variable.handle for variable in variables])
