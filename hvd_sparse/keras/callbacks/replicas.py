"""A callback that checks that replicas are equal."""

from __future__ import annotations

import collections
import concurrent.futures
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import xxhash

from hvd_sparse.keras.broadcasting import broadcast_state
from hvd_sparse.keras.callbacks.base import DistributedCallback
from hvd_sparse.keras.checkpoint import plain
from hvd_sparse.keras.ownership import own_of
from hvd_sparse.keras.tracked import optimizers_of
from hvd_sparse.optimizers.variables import path_of, resource, unique_names
from hvd_sparse.transport import first_rank, topology

_log = logging.getLogger(__name__)
ERROR, RESYNCHRONISE = "error", "resynchronise"


class ReplicaGuardCallback(DistributedCallback):
    """Checks every few steps that what all ranks share has the same bits on all of them.

    Weights and optimizers' variables are copied after a step, a thread computes their digests while the next step runs,
    and after that the ranks compare them. What is each rank's own is left out (docs/saving.md has the table). A
    difference comes from a fault of memory or of a GPU, or from a script that writes to variables on some ranks only.

    Args:
        every: the number of steps from one check to the next.
        on_difference: "error" raises an error on all ranks; "resynchronise" warns, and gives all ranks the variables of
            the first rank of the majority; what waits to be sent is dropped then.

    Raises:
        RuntimeError: on every rank, naming the first variable that differs, on which ranks, and the step.
        ValueError: if an argument is wrong, or models are averaged, as they differ between ranks.

    Steps and bytes sent per rank: an all-gather of 8 bytes for each variable.
    """

    of_averaged = "would compare models that differ during training: leave it out"
    waits = "to compare them"

    def __init__(self, every: int = 100, on_difference: str = ERROR):
        super().__init__()
        if every < 2:
            raise ValueError(f"Expected every of at least 2 steps, got {every}.")
        if on_difference not in (ERROR, RESYNCHRONISE):
            raise ValueError(f"Expected {ERROR!r} or {RESYNCHRONISE!r} as on_difference, got {on_difference!r}.")
        self.every, self.on_difference = every, on_difference
        self._steps = 0
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "hvd_sparse_replicas")
        self._digests: concurrent.futures.Future[np.ndarray] | None = None

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._steps += 1
        self._compare()
        if self._steps % self.every == 0:
            copied = [plain(each) for each in replicated(self.model).values()]
            self._digests = self._thread.submit(digests, copied)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._compare()

    def _compare(self) -> None:
        """Compares the digests of the last step, if it was one to check; a collective."""
        if self._digests is None:
            return
        own, self._digests = self._digests.result(), None
        step = self._steps - self._steps % self.every
        group = topology.world()
        every_rank = group.allgather(tf.constant(own[None]), "replicas.digests").numpy()
        if (every_rank == every_rank[0]).all():
            return
        told = differences(every_rank, [path_of(each) for each in replicated(self.model).values()])
        text = f"After step {step} replicas differ: {told}."
        if self.on_difference == ERROR:
            raise RuntimeError(
                f"{text} Look for a script that writes to variables on some ranks only, and for faulty memory on the "
                "hosts of these ranks; then start the job again from its last checkpoint."
            )
        root = majority(every_rank)
        first_rank.warn(f"{text} All ranks get the variables of rank {root}, which most ranks have.")
        broadcast_state(self.model, root, [each.variable for each in own_of(self.model).values()])


def replicated(model: keras.Model) -> Mapping[str, Any]:
    """The variables of a model and of its optimizers that all ranks share, by names that are alike on all ranks."""
    own = {id(resource(each.variable)) for each in own_of(model).values()}
    optimizers = enumerate(optimizers_of(model).values())
    held = {
        f"optimizer {number} {place}": each for number, one in optimizers for place, each in enumerate(one.variables)
    }
    found = {**dict(zip(unique_names(model.weights), model.weights, strict=True)), **held}
    return {name: each for name, each in found.items() if id(resource(each)) not in own}


def digests(values: Sequence[np.ndarray]) -> np.ndarray:
    """The digest of each array's bits, [len(values)] int64."""
    found = [xxhash.xxh3_64_intdigest(np.ascontiguousarray(each).data.cast("B")) for each in values]
    return np.array(found, np.uint64).view(np.int64)


def majority(every_rank: np.ndarray) -> int:
    """The first rank that has what most ranks have; [P, variables] int64."""
    rows = [each.tobytes() for each in every_rank]
    return rows.index(collections.Counter(rows).most_common(1)[0][0])


def differences(every_rank: np.ndarray, names: Sequence[str]) -> str:
    """Which variables differ on which ranks, in words; "" if none do.

    Args:
        every_rank: digests, [P, variables].
        names: of the variables.
    """
    usual = every_rank[majority(every_rank)]
    different = every_rank != usual
    places = np.flatnonzero(different.any(axis=0))
    if not len(places):
        return ""
    ranks = np.flatnonzero(different[:, places[0]])
    others = f", and {len(places) - 1} more variables" if len(places) > 1 else ""
    return f"{names[places[0]]} on {'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}{others}"
