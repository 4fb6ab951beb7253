"""Samples of a split at the size of a stage, read through datacache or by plain tf.data; both in the same order."""

from __future__ import annotations

import abc
import functools
import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import datacache
from datacache import dataset, training
from datacache.order import Schedule, permutation
from datacache.position import Input
from examples.vision.layouts import Decode


class Samples(abc.ABC):
    """The samples of a split, uint8 [side, side, 3] with labels; all ranks create it together.

    Training leaves out the last global batch if it is not full; `once` leaves out no sample.
    """

    @abc.abstractmethod
    def __len__(self) -> int:
        """The number of samples, of all ranks together."""

    @property
    @abc.abstractmethod
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, if the source has any."""

    @abc.abstractmethod
    def stream(self, batch: int, epoch: int, position: int) -> tf.data.Dataset:
        """This rank's batches from a position in an epoch onwards, without end, all later epochs included."""

    @abc.abstractmethod
    def once(self, batch: int) -> tf.data.Dataset:
        """This rank's share of all samples, each on exactly one rank, in batches."""

    @abc.abstractmethod
    def saving(self, directory: Path, batch: int, save_every: int, **options: Any) -> training.Training:
        """The callback that saves model and position; see `datacache.DataCache.training`."""

    @abc.abstractmethod
    def close(self) -> None:
        """Releases the samples; by then all ranks have read theirs."""

    def __enter__(self) -> Samples:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Cached(Samples):
    """Reads through a `datacache.DataCache`, and takes its arguments."""

    def __init__(self, source: datacache.Source, decode: Decode, local_dir: str | os.PathLike, **options: Any):
        self._cache = datacache.DataCache(source, decode, local_dir, **options)

    def __len__(self) -> int:
        return len(self._cache)

    @property
    def classes(self) -> tuple[str, ...]:
        return self._cache.classes

    def stream(self, batch: int, epoch: int, position: int) -> tf.data.Dataset:
        @functools.lru_cache(maxsize=2)  # the current epoch, and the next one, which is read ahead
        def prepare(each: int) -> Any:
            begin = position if each == epoch else 0
            return self._cache.prepare(self._cache.schedule(batch, each, begin, drop_remainder=True))

        return dataset.make_stream(prepare, epoch, equal=True)

    def once(self, batch: int) -> tf.data.Dataset:
        return self._cache.dataset(_dividing(len(self), batch, self._cache.world.size), epoch=0)

    def saving(self, directory: Path, batch: int, save_every: int, **options: Any) -> training.Training:
        return self._cache.training(directory, batch, save_every, drop_remainder=True, **options)

    def close(self) -> None:
        self._cache.close()


class Plain(Samples):
    """Reads by plain tf.data: reads and decodes every sample anew in every epoch."""

    def __init__(self, source: datacache.Source, decode: Decode, seed: int, world: datacache.World):
        self._source, self._decode, self._seed, self._world = source, decode, seed, world
        self._listing = source.scan()

    def __len__(self) -> int:
        return len(self._listing)

    @property
    def classes(self) -> tuple[str, ...]:
        return self._listing.classes

    def stream(self, batch: int, epoch: int, position: int) -> tf.data.Dataset:
        def indices(number: np.ndarray) -> np.ndarray:
            return self._own(self._schedule(batch, int(number), position if number == epoch else 0))

        def one_epoch(number: tf.Tensor) -> tf.data.Dataset:
            order = tf.numpy_function(indices, [number], tf.int64)
            order.set_shape([None])
            return self._decoded(order).batch(batch, drop_remainder=True)

        return tf.data.Dataset.counter(epoch).flat_map(one_epoch).prefetch(tf.data.AUTOTUNE)

    def once(self, batch: int) -> tf.data.Dataset:
        batch = _dividing(len(self), batch, self._world.size)
        schedule = Schedule(np.arange(len(self)), batch, self._world.size)
        return self._decoded(tf.constant(self._own(schedule))).batch(batch).prefetch(tf.data.AUTOTUNE)

    def saving(self, directory: Path, batch: int, save_every: int, **options: Any) -> training.Training:
        def schedule(epoch: int, position: int) -> Schedule:
            return self._schedule(batch, epoch, position)

        order = {"samples": len(self), "seed": self._seed}
        content = self._listing.fingerprint()
        needed = Input(schedule, _not_prepared, self._world.rank, order, content)
        return training.Training(needed, directory, save_every, **options)

    def close(self) -> None:
        pass

    def _schedule(self, batch: int, epoch: int, position: int) -> Schedule:
        order = permutation(len(self), self._seed, epoch)
        return Schedule(order, batch, self._world.size, position, drop_remainder=True)

    def _own(self, schedule: Schedule) -> np.ndarray:
        steps = [schedule.indices(step, self._world.rank) for step in range(len(schedule))]
        return np.concatenate(steps) if steps else np.empty(0, np.int64)

    def _decoded(self, order: tf.Tensor) -> tf.data.Dataset:
        labels = tf.constant(self._listing.labels)

        def read(index: np.ndarray) -> bytes:
            return self._source.read(self._listing, int(index))

        def decoded(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            payload = tf.ensure_shape(tf.numpy_function(read, [index], tf.string), [])
            image, label = self._decode.in_graph(payload, labels[index])
            return tf.ensure_shape(image, [self._decode.side, self._decode.side, 3]), label

        samples = tf.data.Dataset.from_tensor_slices(order)
        return samples.map(decoded, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _not_prepared(schedule: Schedule) -> Any:
    raise NotImplementedError("Plain.stream makes the batches.")


def _dividing(samples: int, batch: int, ranks: int) -> int:
    """A batch size near `batch` that gives every rank a part of the last batch; smaller sizes are tried first.

    Raises:
        ValueError: if there are fewer samples than ranks.
    """
    if samples < ranks:
        raise ValueError(f"Expected at least as many held-out samples as ranks, got {samples} and {ranks} ranks.")
    sizes = itertools.chain(range(batch, 0, -1), itertools.count(batch + 1))
    return next(size for size in sizes if samples % (size * ranks) == 0 or samples % (size * ranks) >= ranks)
