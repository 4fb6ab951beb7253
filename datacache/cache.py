"""The cache: a source, a decode function, and the levels between them and the training loop."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from datacache import closing, launchers, memory
from datacache.batches import AnyBatches, Batches, Supply, VaryingBatches, elements_of, refuse_fork
from datacache.opened import Opened
from datacache.order import Schedule, chosen, permutation, word
from datacache.sources import Progress, Source
from datacache.workers import Workers, threads_of
from datacache.world import World

_AHEAD = 4  # batches that are fetched ahead


class DataCache:
    """Decoded samples of a source: read from it once, then from this machine's disk and memory (CommLib 4.1, Fig. 5).

        cache = datacache.DataCache(
            source=datacache.ImageFolder("/data"), decode=decode, local_dir="/scratch/cache", memory_bytes=40 << 30
        )
        model.fit(cache.dataset(batch_size=256).map(augment), epochs=90)

    Attributes:
        elements: what decoded samples are: dtype and shape of each part, with None for dimensions that vary.
        layout: dtype and shape of the arrays that are kept of them.
        counters: where this process's samples came from, and what it waited for.
    """

    def __init__(
        self,
        source: Source,
        decode: Callable[..., Any],
        local_dir: str | os.PathLike,
        memory_bytes: int | None = None,
        seed: int = 0,
        world: World | None = None,
        disk_bytes: int | None = None,
        keep_decoded: bool = False,
        memory_dir: str | os.PathLike = memory.DIRECTORY,
        workers: int | None = None,
        progress: Progress | None = None,
        peer_timeout: float = 10.0,
        shape: Any = None,
    ):
        """Opens all levels; the first process of a node lists the source and decodes one sample.

        Args:
            source: where samples come from.
            decode: maps a sample's bytes (for `Tar` a dict of its members' bytes) to what batches are made of: an
                array, or any nest of dicts and tuples with arrays, numbers, strings and bytes; (x, y), or (x, y,
                weight), are what `fit` takes. If it returns no tuple, and the source has labels, elements are pairs
                with the label. All samples must have the same parts, dtypes and, unless `shape` says otherwise, shapes.
                Random augmentation belongs after the cache. With a second parameter `key` it also gets the sample's:
                the path below the source's directory, for TFRecords and Tar with the sample's first byte, for `Indexed`
                the index. Called by several threads at once.
            local_dir: a directory on a disk of this machine, the same for all ranks of a node.
            memory_bytes: for the decoded samples of a node, all its ranks together; what does not fit is read from the
                local disk. By default what all samples need, or with varying shapes half of what memory_dir has free; 0
                for no memory level.
            seed: of the order.
            world: the reading ranks; by default what the launcher reports (see `World.from_environment`), or one
                process alone. Without it and without peers, they follow the changes of an elastic job.
            disk_bytes: the limit of each level on the local disk, 0 for none; the rest comes from the source.
            keep_decoded: keep decoded samples on the local disk too.
            memory_dir: a directory on a tmpfs.
            workers: number of fetching threads, and so of requests in flight to a distant source; by default this
                rank's share of 32 for a node, or of four for each core if that is more.
            progress: of listing the source.
            peer_timeout: seconds without a sign of life after which a peer is left alone, and its samples are read from
                this node's own disk or the source. At the start a peer is waited for twice as long.
            shape: of decoded samples, with None for each dimension that varies from sample to sample, as in
                tf.TensorSpec: (None, None, 3) for colour images of any size. For nests a nest of shapes, in which parts
                of dicts may be missing: {"boxes": (None, 4)}. By default all samples have the shape of the first, and
                another shape is an error. Varying shapes, and strings, use a memory level of their own kind (LMDB on
                memory_dir), and exclude peers.

        Raises:
            OSError: if world.bind is not an address of this machine, or in use.
            UnsuitableFileSystemError: if local_dir is on a network file system.
            NoSpaceError: if memory_dir, or a limit of this process or its control group, leaves too few bytes.
            ValueError: if an argument is invalid, the decode function depends on something that cannot be described, or
                samples vary in shape and world has peers.
            DecodeError: if the first sample cannot be decoded.
        """
        self._world = World.from_environment() if world is None else world
        self._follows = world is None and not self._world.peers and launchers.is_elastic()
        if seed < 0 or (memory_bytes or 0) < 0 or (disk_bytes or 0) < 0 or (workers is not None and workers < 1):
            raise ValueError(
                f"Expected no negative numbers and at least one worker, got seed={seed}, memory_bytes={memory_bytes}, "
                f"disk_bytes={disk_bytes}, workers={workers}."
            )
        if peer_timeout <= 0:
            raise ValueError(f"Expected a peer_timeout of more than 0 seconds, got {peer_timeout}.")
        self._seed = seed
        self._opened = Opened(source, decode, local_dir, shape, progress, self._world)
        self._opened.open_levels(memory_bytes, disk_bytes, keep_decoded, Path(memory_dir), peer_timeout)
        self.elements, self.counters = self._opened.elements, self._opened.counters
        self.layout = self.elements.layout
        self._workers = Workers(workers or threads_of(self.world.size // self.world.nodes), "datacache")
        self._process = os.getpid()
        self._closing = closing.Closing(self, self._workers, self._opened.parts())

    def __len__(self) -> int:
        """The number of samples."""
        return len(self._opened.store.listing)

    def __enter__(self) -> DataCache:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or issubclass(kind, Exception):
            self.close()
        else:  # such as KeyboardInterrupt
            self._closing.end(closing.PATIENCE)

    @property
    def world(self) -> World:
        """The reading ranks; in an elastic job those that the launcher reports now."""
        return World.from_environment() if self._follows else self._world

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the labels, if the source has them."""
        return self._opened.store.listing.classes

    def schedule(
        self,
        batch_size: int,
        epoch: int = 0,
        position: int = 0,
        drop_remainder: bool = False,
        shuffle: bool = True,
        pad: bool = False,
    ) -> Schedule:
        """How an epoch is cut into batches: arguments as for `dataset`; `Schedule.position` is what to save."""
        order = permutation(len(self), self._seed, epoch) if shuffle else np.arange(len(self))
        cut, drawn = (order, batch_size, self.world.size, position), word(self._seed, epoch)
        if pad and drop_remainder:
            raise ValueError("Expected either pad or drop_remainder, got both: a batch is filled, or left out.")
        return Schedule.padded(*cut, drawn) if pad else Schedule(*cut, drop_remainder, word=drawn)

    def batches(
        self,
        batch_size: int,
        epoch: int = 0,
        position: int = 0,
        drop_remainder: bool = False,
        shuffle: bool = True,
        pad: bool = False,
    ) -> Iterator[Any]:
        """The batches of `dataset` as NumPy arrays, without TensorFlow; strings are Python's, in arrays of objects.

        A part whose shape varies is a list of read-only arrays, each in its own shape.
        """
        made = self.prepare(self.schedule(batch_size, epoch, position, drop_remainder, shuffle, pad))
        return (elements_of(made, step) for step in range(len(made)))

    def dataset(
        self,
        batch_size: int,
        epoch: int | None = None,
        position: int = 0,
        drop_remainder: bool = False,
        map_func: Callable[..., Any] | None = None,
        first_epoch: int = 0,
        shuffle: bool = True,
        pad: bool = False,
    ) -> Any:
        """An epoch, or one after another, as a `tf.data.Dataset` of batches, such as (samples, labels).

            model.fit(cache.dataset(256), epochs=90)
            model.evaluate(cache.dataset(256, shuffle=False, pad=True))

        Args:
            batch_size: per rank.
            epoch: number of the epoch; seed and epoch decide the order of all samples, whatever the number of ranks.
                Each pass over the dataset then has this order. By default each pass has the next epoch, beginning with
                `first_epoch`; a pass counts once its last batch was read, unless Keras's `evaluate` or `predict` read
                it. So all ranks must read the same passes.
            position: number of samples of the epoch that all ranks together have already read, to resume in mid-epoch.
            drop_remainder: leave out the last global batch if it is not full; otherwise it is divided evenly.
            map_func: maps one element, as (sample, label), to whatever is batched, in TensorFlow, as for
                `tf.data.Dataset.map`. It is applied after the cache and before batching, to several samples at once,
                and keeps their order. If shapes vary, it must bring them to one shape. With a further parameter `seed`
                it also gets the sample's in this epoch, int64 [2], for tf.image.stateless_random_crop and the like,
                whatever the number of ranks.
            first_epoch: the epoch of the first pass, such as `initial_epoch` of `fit`.
            shuffle: False for the source's order in each epoch.
            pad: fill the last batch of each rank, with samples of weight 0. Elements (x, y) become (x, y, weight), and
                (x, y, weight) weigh 0 there; anything else becomes (element, weight). Weights are float32 [b].

        Returns:
            Batches of elements, as samples [b, ...] and labels int64 [b], the same number on every rank. With
            `map_func`, batches of what it returns. Without it, parts whose shapes vary are each a `tf.RaggedTensor`.

        Raises:
            ValueError: if the last global batch has fewer samples than there are ranks, unless it is left out or
                filled, or if a position is given without its epoch.
        """
        from datacache import dataset  # TensorFlow is imported only here, if it is needed

        def prepare(number: int) -> AnyBatches:
            return self.prepare(self.schedule(batch_size, number, position, drop_remainder, shuffle, pad))

        if epoch is not None or not shuffle and map_func is None:
            return dataset.make(prepare(epoch or 0), map_func, told=shuffle)
        if position:
            raise ValueError(
                f"Expected the epoch of position {position}: pass epoch=, or use cache.training(...), which goes on "
                "with the epochs after it."
            )
        return dataset.make_epochs(functools.lru_cache(maxsize=2)(prepare), first_epoch, map_func)

    def select(self, rows: Any, map_func: Callable[..., Any] | None = None) -> Any:
        """The samples of batches that are chosen elsewhere, as a `tf.data.Dataset` of (samples, labels).

            shared = hvd_sparse.servers.SharedBatches(len(cache), batch_size=64)
            model.fit(cache.select(shared.dataset()), epochs=10)

        The samples of a batch are fetched by all workers at once, one batch ahead, as later ones are not known yet.

        Args:
            rows: a `tf.data.Dataset` of the indices of each batch's samples in the source, as for `take`.
            map_func: as for `dataset`; here it is applied to the samples of a batch in parallel.

        Returns:
            A batch, as from `dataset`, for each element of `rows`.
        """
        from datacache import dataset  # TensorFlow is imported only here, if it is needed

        return dataset.select(self._take, self.elements, rows, map_func)

    def take(self, indices: Any) -> Any:
        """The samples at these indices of the source, as in `batches`.

        Args:
            indices: integers [b >= 1], or of more dimensions, which are read row by row; or a mask, bool [len(self)].

        Raises:
            IndexError, ValueError: if no sample, or one that does not exist, is chosen; if they are no such array.
        """
        return self.elements.batch(*self._take(indices))

    def training(
        self,
        directory: str | os.PathLike,
        batch_size: int,
        save_every: int,
        keep: int = 2,
        drop_remainder: bool = False,
        broadcast: Callable[[Any], Any] | None = None,
        beside: Any = None,
    ) -> Any:
        """A Keras callback for training that resumes in mid-epoch, with no sample repeated or left out.

            training = cache.training("/shared/run7", batch_size=256, save_every=500)
            model.fit(
                training.dataset().map(augment), epochs=90, initial_epoch=training.epoch,
                steps_per_epoch=training.steps_per_epoch, callbacks=[training],
            )

        Model, optimizer and position are saved together, in one file; the same script, started again, resumes from the
        newest one, also on another number of ranks. The metrics of the resumed epoch cover only the rest of it.

        Args:
            directory: of checkpoints, on a file system that all ranks share, or with `broadcast` one that rank 0 has.
            batch_size: per rank; it may change when training resumes.
            save_every: number of batches between checkpoints; one is also saved at the end of each epoch. Rank 0 saves.
            keep: number of checkpoints to keep, at least 2: if the newest is damaged, all ranks resume from the one
                before it, with a warning that names both.
            drop_remainder: as for `dataset`.
            broadcast: gives all ranks rank 0's value, such as `hvd_sparse.broadcast_object`, which does not pickle.
            beside: a `datacache.training.Beside`, such as the module `hvd_sparse.checkpoint` for residuals. A
                checkpoint counts as damaged if its companion files are.

        Returns:
            A `datacache.training.Training`.

        Raises:
            ValueError: as `dataset`, or if the checkpoint is of another order of samples.
        """
        from datacache import training  # Keras is imported only here, if it is needed

        def schedule(epoch: int, position: int) -> Schedule:
            return self.schedule(batch_size, epoch, position, drop_remainder)

        return training.Training(self._input(schedule), directory, save_every, keep, broadcast, beside)

    def elastic(self, state: Any, batch_size: int, drop_remainder: bool = False) -> Any:
        """A Keras callback for training whose ranks change: it goes on with the sample that comes next.

            @hvd.elastic.run
            def train(state):
                training = cache.elastic(state, batch_size=256)
                model.fit(
                    training.dataset(), epochs=90, initial_epoch=training.epoch,
                    steps_per_epoch=training.steps_per_epoch,
                    callbacks=[training, hvd.elastic.CommitStateCallback(state)],
                )

        Each sample is read once an epoch, in the history that counts after a death. Where fewer samples than ranks are
        left of an epoch, they go into the next one, and one line says how many.

        Args:
            state: an object with the numbers `epoch` and `position`, both 0 at the start, such as
                `hvd_sparse.elastic.KerasState(model, epoch=0, position=0)`. The callback keeps them up to date, so pass
                it before the one that commits.
            batch_size: per rank.
            drop_remainder: as for `dataset`; then nothing goes into the next epoch.

        Returns:
            A `datacache.elastic.ElasticTraining`.

        Raises:
            ValueError: if the cache has peers, was opened for other ranks, or has fewer samples than there are ranks.
        """
        from datacache import elastic  # Keras is imported only here, if it is needed

        elastic.require_current(self.world)
        cut = len(self), self._seed, batch_size, self.world.size, drop_remainder
        schedule = functools.partial(Schedule.carrying, *cut)
        return elastic.ElasticTraining(self._input(schedule), state)

    def prepare(self, schedule: Schedule, rank: int | None = None) -> AnyBatches:
        """The batches of a rank, by default of this one, to be read by number.

        Raises:
            RuntimeError: in a process that was forked from the one that made this.
        """
        refuse_fork(self._process)
        supply = Supply(self._opened.reader, self._opened.owners, self._workers, self.counters, _AHEAD, self)
        kind = VaryingBatches if self.layout.varies else Batches
        return kind(self.elements, schedule, self.world.rank if rank is None else rank, supply)

    def fetch(self, index: int) -> Any:
        """The element of one sample, as (sample, label), by its index in the source; errors as in `Batches.read`.

        Peers are not asked. It may be called in a process that was forked from the one that made this; the only other
        method allowed there is `close`, which does nothing.
        """
        record = self._opened.reader.fetch(index).record
        return self.elements.one(self.layout.unpack(record.payload), record.label)

    def stored_bytes(self, index: int) -> int:
        """The bytes that levels keep of a decoded sample; errors as from `fetch`."""
        return len(self._opened.reader.fetch(index).record.payload)

    def close(self) -> None:
        """Waits for running reads, saves counters and closes all levels; calling it again does nothing.

        Peers that still read get this node's samples from elsewhere from then on, so a job closes after all have read.
        A process that ends, by Ctrl-C or otherwise, closes its caches too, but waits at most 5 s for reads that do not
        return.
        """
        self._closing.end()

    def _take(self, indices: Any) -> tuple[Any, np.ndarray]:
        """The samples at these indices as levels keep them, and their labels; errors as from `take`."""
        order = chosen(indices, len(self))
        return self.prepare(Schedule(order, len(order), ranks=1), rank=0).read(0)

    def _input(self, schedule: Callable[[int, int], Schedule]) -> Any:
        """What callbacks need, for the ranks that there are now."""
        from datacache.position import Input  # as in `training`

        prepare = functools.partial(self.prepare, rank=self.world.rank)
        order = {"samples": len(self), "seed": self._seed}
        return Input(schedule, prepare, self.world.rank, order, self._opened.store.fingerprint)
