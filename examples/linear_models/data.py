"""The samples of a run: this rank's part of them, and the figures of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import tensorflow as tf
from scipy import sparse

from examples.linear_models import libsvm
from examples.linear_models.libsvm import Samples
from hvd_sparse.transport.communicator import Communicator

T = TypeVar("T")


class Data(NamedTuple):
    """Samples with one column more than there are features: the last one is 1, so that its weight is the intercept.

    Attributes:
        train: the training samples that this rank computes with.
        test: this rank's share of the test samples; None without test samples.
        features: number of columns without the last.
        first: index of the first of `train` among all training samples.
        samples: number of training samples of all ranks.
        nonzeros: nonzeros in all training samples, without the intercept's column.
    """

    train: Samples
    test: Samples | None
    features: int
    first: int
    samples: int
    nonzeros: int


def load(
    communicator: Communicator, train: Sequence[Path], test: Sequence[Path], features: int | None, everywhere: bool
) -> Data:
    """Reads libsvm files; a collective.

    Args:
        communicator: the ranks.
        train: files of training samples.
        test: files of test samples; may be empty.
        features: number of features; by default the greatest index in any of the files.
        everywhere: whether each rank gets all training samples, not only its share.

    Raises:
        ValueError: on every rank alike, if a line is bad on any of them, or there are no samples.
    """
    rank, size = communicator.rank, communicator.size

    def read() -> tuple[Samples, Samples | None]:
        share = (0, 1) if everywhere else (rank, size)
        return libsvm.read(train, *share, features), libsvm.read(test, rank, size, features) if test else None

    own, own_test = together(communicator, read)
    widest = max(own.matrix.shape[1], own_test.matrix.shape[1] if own_test else 0)
    told = communicator.gather_descriptions([widest, len(own.labels), own.matrix.nnz], "linear.samples")
    width = max(each[0] for each in told) if features is None else features
    counts = [each[1] for each in told]
    samples = counts[0] if everywhere else sum(counts)
    if samples == 0:
        raise ValueError(f"Expected training samples, found none in {', '.join(map(str, train))}.")
    return Data(
        _with_intercept(own, width),
        _with_intercept(own_test, width) if own_test else None,
        width,
        0 if everywhere else sum(counts[:rank]),
        samples,
        told[0][2] if everywhere else sum(each[2] for each in told),
    )


def together(communicator: Communicator, function: Callable[[], T]) -> T:
    """What a function returns; if it raises on any rank, all of them raise the same error; a collective.

    Raises:
        ValueError: if it raises a ValueError or an OSError on any rank.
    """
    result, fault = None, None
    try:
        result = function()
    except (OSError, ValueError) as error:
        fault = str(error)
    faults = communicator.gather_descriptions(fault, "linear.faults")
    first = next((each for each in faults if each is not None), None)
    if first is not None:
        raise ValueError(first)
    return result


def sums(communicator: Communicator, values: Sequence[float], name: str) -> list[float]:
    """Sums numbers over the ranks; a collective."""
    return communicator.allreduce(tf.constant(values, tf.float64), "sum", name).numpy().tolist()


def greatest(communicator: Communicator, value: float, name: str) -> float:
    """The greatest of the ranks' numbers; a collective."""
    return float(communicator.allreduce(tf.constant([value], tf.float64), "max", name)[0])


def _with_intercept(samples: Samples, width: int) -> Samples:
    matrix = samples.matrix
    matrix.resize(matrix.shape[0], width)
    ones = sparse.csr_matrix(np.ones((matrix.shape[0], 1)))
    return samples._replace(matrix=sparse.hstack([matrix, ones], format="csr"))
