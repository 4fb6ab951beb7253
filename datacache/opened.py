"""What a cache has open: the list of its source, the levels, and the nodes that it shares samples with."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datacache import closing, fingerprint, nests
from datacache.counters import Counters
from datacache.elements import Elements
from datacache.levels import Level, Nowhere
from datacache.peers.owners import Nobody
from datacache.peers.server import Shelf
from datacache.peers.start import Idle, meet, serve
from datacache.reader import Decoder, ReadThrough
from datacache.sources import Progress, Source
from datacache.store import Store
from datacache.workers import threads_of
from datacache.world import World


class Opened:
    """A cache's store and, once they are open, its levels.

    Attributes:
        store: the local directory, with the list of the source.
        counters: where this process's samples came from, and what it waited for.
        elements: what decoded samples are.
        reader: reads a sample through all levels.
        owners: the other nodes to ask.
        serving: what serves this node's samples to them.
        levels: of the source's bytes, of decoded samples on disk, and of those in memory.
    """

    elements: Elements
    reader: ReadThrough

    def __init__(
        self,
        source: Source,
        decode: Callable[..., Any],
        local_dir: str | os.PathLike,
        shape: Any,
        progress: Progress | None,
        world: World,
    ):
        """Lists the source; arguments and errors as for `DataCache`."""
        wanted = None if shape is None else nests.parse_shapes(shape)
        self._world, self._decoder = world, Decoder(decode, wanted)
        self._key = fingerprint.with_shape(fingerprint.of(decode), wanted)
        self.counters, self.store = Counters(), Store(source, local_dir, progress=progress)
        self.owners, self.serving, self.levels = Nobody(), Idle(), list[Level]()

    def open_levels(
        self,
        memory_bytes: int | None,
        disk_bytes: int | None,
        keep_decoded: bool,
        memory_dir: Path,
        peer_timeout: float,
    ) -> None:
        """Opens all levels and meets the peers, or closes what it has opened; arguments and errors as for `DataCache`.

        The first process of a node decodes one sample.
        """
        try:
            self.levels.append(self.store.open_source_level(disk_bytes))
            self.elements = self._decoder.elements = self._find_elements()
            self._require_one_shape_for_peers()
            layout = self.elements.layout
            decoded: Level = Nowhere("decoded")
            if keep_decoded:
                decoded = self.store.open_decoded_level(self._key, layout, disk_bytes)
            self.levels.append(decoded)
            self.levels.append(self.store.open_memory_level(self._key, layout, self._owned(), memory_dir, memory_bytes))
            self.reader = self._read_through(*self.levels)
            if self._world.peers:
                self._join_peers(peer_timeout)
        except BaseException:
            self.parts().close()
            raise

    def parts(self) -> closing.Parts:
        """What is to be closed."""
        return closing.Parts(self.owners, self.serving, self.levels, self.store, self.counters)

    def _owned(self) -> range:
        """The samples that this node serves to its peers; all without peers."""
        return self._world.owned(len(self.store.listing))

    def _require_one_shape_for_peers(self) -> None:
        if self.elements.layout.varies and self._world.peers:
            raise ValueError(
                f"Peers serve each other samples of one shape only, got {self.elements} and "
                f"{len(self._world.peers)} peers: leave out World.peers (DATACACHE_PEERS), or let the decode "
                "function bring all to one shape, without strings."
            )

    def _find_elements(self) -> Elements:
        """What decoded samples are, from the first one; determined once for all processes and runs."""
        known = self.store.load_elements(self._key)
        if known:
            return known
        reader = self._read_through(self.levels[0], Nowhere("decoded"), Nowhere("memory"))
        reader.fetch(min(self._owned().start, len(self.store.listing) - 1))  # one that no other node reads
        assert self._decoder.elements is not None
        self.store.save_elements(self._key, self._decoder.elements)
        return self._decoder.elements

    def _read_through(self, disk: Level, decoded: Level, memory: Level) -> ReadThrough:
        return self.store.read_through(self._decoder, memory, decoded, disk, self.counters, self._owned())

    def _join_peers(self, peer_timeout: float) -> None:
        """Serves this node's samples, or stands by while another process does, and prepares to ask for others."""
        layout, store, samples = self.elements.layout, self.store, len(self.store.listing)
        shape = "x".join(map(str, layout.shape))
        data = f"{store.listing.content()}-{self._key}-{layout.dtype}-{shape}-{samples}"
        shelf = Shelf(self._owned(), layout.size, self.levels[-1].gather, self.reader.fetch_record)
        threads = threads_of(self._world.size // self._world.nodes)
        self.serving = serve(self._world, data, shelf, self.counters, store.directory, threads)
        self.owners = meet(self._world, data, layout.size, samples, peer_timeout, self.counters)
