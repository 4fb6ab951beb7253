"""How long a server takes to apply a push, against passes over memory: python -m benchmarks.servers.apply RESULTS.

The number of threads is TF_NUM_INTRAOP_THREADS. Adam reads parameters, gradient and two slots and writes all but the
gradient; the floor is a native pass that reads and writes as much and computes almost nothing. A push adds its elements
to the sum of gradients, which is a vector of the same size, and takes them out again. A lazy update touches only the
elements of a push; its floor reads and writes the cache lines of parameters and slots that hold them, in ascending
order.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import os
import pathlib
import threading
import time
import timeit
from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf

from benchmarks.passes.lars_arms import Floors, compiled, in_large_pages, in_small_pages
from benchmarks.reporting import timing
from hvd_sparse.servers.applying import LazyPieces, ServedPieces
from hvd_sparse.servers.gathering import Gathering
from hvd_sparse.servers.messages import Entries
from hvd_sparse.servers.pages import use_large_pages
from hvd_sparse.servers.shard import Parameters
from hvd_sparse.spec import Segment, Spec
from hvd_sparse.transport.communicator import Grid

FLOOR, DENSE, SPARSE = "passes", "apply", "apply a push of 1%"
LINES, LAZY, LAZY_PUSH = "touched lines", "apply 1% lazily", "apply a push of 1% lazily"
_DENSITY = 0.01
_LINE = 16  # elements
_LINES_FLOOR = pathlib.Path(__file__).parents[1] / "native" / "line_floors.cc"
_AHEAD = (0, 8, 16, 32, 64)  # prefetch distances of the floor, in lines
_PAGES = in_small_pages, in_large_pages


def arms_of(size: int, threads: int) -> dict[str, Callable[[], object]]:
    """The arms that are timed."""
    spec = Spec(size, Grid.lone(), segments=(Segment("weights", (size,)),))
    random = np.random.default_rng(0)
    served, lazy = (
        kind(keras.optimizers.Adam(1e-3), [keras.Variable(np.zeros(size, np.float32))], spec)
        for kind in (ServedPieces, LazyPieces)
    )
    gradient = tf.Variable(random.standard_normal(size, np.float32))
    use_large_pages([gradient])  # as the sum of sparse pushes
    places = np.sort(random.permutation(size)[: round(_DENSITY * size)]).astype(np.int32)
    pushed = Entries(random.standard_normal(len(places), np.float32), places)
    held = lazy.gathering()
    held.add(pushed)
    mean = held.mean()
    return {
        FLOOR: _floor(size, threads),
        DENSE: lambda: served.apply(gradient.read_value(), 1e-3),
        SPARSE: functools.partial(_push, pushed, served, served.gathering()),
        LINES: _lines_floor(size, places, threads),
        LAZY: lambda: lazy.apply(mean, 1e-3),
        LAZY_PUSH: functools.partial(_push, pushed, lazy, lazy.gathering()),
    }


def _push(pushed: Entries, served: Parameters, gathered: Gathering) -> None:
    gathered.add(pushed)
    served.apply(gathered.mean(), 1e-3)
    gathered.clear()


def _lines_floor(size: int, places: np.ndarray, threads: int) -> Callable[[], object]:
    """Reads and writes each line with a place in three vectors, in the pages and with the prefetch distance with which
    that is fastest; each thread has its share of the lines."""
    made, library = [[allocate(size) for _ in range(3)] for allocate in _PAGES], compiled(_LINES_FLOOR)
    lines = places[np.unique(places // _LINE, return_index=True)[1]]
    parts = [np.append(part, np.full(max(_AHEAD), part[-1])) for part in np.array_split(lines, threads)]

    def run(vectors: list[np.ndarray], part: np.ndarray, ahead: int) -> None:
        pointers = (ctypes.c_void_p * 3)(*(vector.ctypes.data for vector in vectors))
        count = len(part) - max(_AHEAD)
        library.touch_lines(pointers, 3, part.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(count), ahead)

    def all_of(vectors: list[np.ndarray], ahead: int) -> Callable[[], object]:
        return _together([functools.partial(run, vectors, part, ahead) for part in parts])

    return _fastest([all_of(vectors, ahead) for vectors in made for ahead in _AHEAD])


def _floor(size: int, threads: int) -> Callable[[], object]:
    """Adds a vector to three others, in the pages in which that is fastest; each thread has its share of them."""
    made = [[Floors(size // threads, allocate) for _ in range(threads)] for allocate in _PAGES]
    fastest = _fastest([_together([each.passes("LAMB")["update"] for each in floors]) for floors in made])
    return lambda: (fastest(), made)  # whose memory it is


def _fastest(runs: Sequence[Callable[[], object]]) -> Callable[[], object]:
    return min(runs, key=lambda run: min(timeit.repeat(run, number=1, repeat=5)))


def _together(parts: list[Callable[[], object]]) -> Callable[[], object]:
    """A call of all parts, each on its own thread."""

    def together() -> None:
        others = [threading.Thread(target=part) for part in parts[1:]]
        for other in others:
            other.start()
        parts[0]()
        for other in others:
            other.join()

    return together


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--size", type=int, default=6_250_000)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    arms = arms_of(options.size, int(os.environ["TF_NUM_INTRAOP_THREADS"]))
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(-3, options.rounds):
        for name in timing.shuffled(arms, number):
            began = time.perf_counter()
            arms[name]()
            if number >= 0:
                seconds[name].append(time.perf_counter() - began)
    options.results.write_text(json.dumps(seconds))


if __name__ == "__main__":
    main()
