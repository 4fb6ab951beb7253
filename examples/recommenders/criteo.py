"""Criteo's click logs: lines `label <tab> 13 integers <tab> 26 categories`; all fields but the label may be empty.

The data of Kaggle's competition are one file, train.txt, with 45,840,617 lines in the order of seven days. As in the
DLRM's benchmark, each day is assumed to have a seventh of them. The first six days are for training, the first half of
the last day is for validation, and its second half for the test.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import tensorflow as tf

from examples.recommenders.tables import Batch, Task

NUMBERS, CATEGORIES = 13, 26
DAYS = 7
_SHUFFLED = 2**18  # lines in the shuffle buffer
_BLOCK = 2**24


class Lines:
    """`Rows` from a range of lines in files, which are read again in each epoch.

    Args:
        paths: files, one after the other.
        begin: number of the first line.
        end: number of the line after the last one.
        buckets: rows of each field's embedding table, to which categories are hashed.
    """

    def __init__(self, paths: Sequence[Path], begin: int, end: int, buckets: int):
        self._paths, self._begin, self._end, self._buckets = [str(path) for path in paths], begin, end, buckets

    def __len__(self) -> int:
        return self._end - self._begin

    def epoch(self, number: int, batch: int, rank: int, ranks: int, seed: int) -> Iterator[Batch]:
        """A rank's part of the lines, which are shuffled among neighbours, in the same order on every rank."""
        steps = len(self) // (batch * ranks)
        drawn = self._lines().shuffle(_SHUFFLED, seed=1_000 * seed + number).take(steps * batch * ranks)
        return self._batches(drawn.batch(batch).shard(ranks, rank))

    def share(self, batch: int, rank: int, ranks: int) -> Iterator[Batch]:
        """See `Rows`."""
        return self._batches(self._lines().shard(ranks, rank).batch(batch))

    def _lines(self) -> tf.data.Dataset:
        return tf.data.TextLineDataset(self._paths).skip(self._begin).take(len(self))

    def _batches(self, lines: tf.data.Dataset) -> Iterator[Batch]:
        parsed = lines.map(lambda text: parse(text, self._buckets), num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)
        return (Batch(*batch) for batch in parsed.as_numpy_iterator())


def parse(lines: tf.Tensor, buckets: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Parses lines into numbers, categories and labels, as in `Table`.

    A number x becomes log(1 + x); an empty or negative number counts as 0. The text of a category, even if it is empty,
    is hashed to 0 .. buckets - 1.

    Args:
        lines: strings [batch].
        buckets: number of buckets per field.

    Raises:
        tf.errors.InvalidArgumentError: if a line has another form.
    """
    forms = [tf.constant([], tf.float32), *[tf.constant([0.0])] * NUMBERS, *[tf.constant([""])] * CATEGORIES]
    columns = tf.io.decode_csv(lines, forms, field_delim="\t", use_quote_delim=False)
    numbers = tf.math.log1p(tf.maximum(tf.stack(columns[1 : 1 + NUMBERS], axis=1), 0.0))
    categories = tf.strings.to_hash_bucket_fast(tf.stack(columns[1 + NUMBERS :], axis=1), buckets)
    return numbers, tf.cast(categories, tf.int32), columns[0]


def make(paths: Sequence[Path], buckets: int = 2**18) -> Task:
    """Makes the task from one file with all days, or from several files, the last of which is the last day.

    Raises:
        ValueError: if there are too few lines.
        OSError: if a file cannot be read.
    """
    counts, digests = zip(*(_counted(path) for path in paths), strict=True)
    total = sum(counts)
    last = total * (DAYS - 1) // DAYS if len(paths) == 1 else total - counts[-1]
    middle = last + (total - last) // 2
    if not 0 < last < middle < total:
        raise ValueError(f"Expected lines for training, validation and test, got {total:,} in {len(paths)} files.")
    parts = [Lines(paths, begin, end, buckets) for begin, end in ((0, last), (last, middle), (middle, total))]
    digest = hashlib.sha256("".join([*digests, str(buckets)]).encode()).hexdigest()
    origin = f"{total:,} lines of {', '.join(path.name for path in paths)}"
    return Task(*parts, NUMBERS, (buckets,) * CATEGORIES, origin, digest)


def _counted(path: Path) -> tuple[int, str]:
    """The number of lines of a file, and its SHA-256."""
    state, count, last = hashlib.sha256(), 0, b"\n"
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            state.update(block)
            count, last = count + block.count(b"\n"), block[-1:]
    return count + (last != b"\n"), state.hexdigest()
