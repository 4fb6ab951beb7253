"""A rank in the tests of `World.from_horovod`: it joins, reads, and writes its observations to a file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import sys
import time
from pathlib import Path

import numpy as np

import datacache
from datacache import World
from tests.datacache.node import BATCH, COUNT, decode, expected, sample


def error_of(**arguments) -> str:
    """The error message of from_horovod."""
    try:
        World.from_horovod(**arguments)
    except (OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def is_right(cache: datacache.DataCache, epoch: int) -> bool:
    """Reads an epoch; returns whether all samples were right."""
    found = [np.concatenate(part) for part in zip(*cache.batches(BATCH, epoch), strict=True)]
    wanted = expected(cache.world.rank, cache.world.size, epoch)
    return all(np.array_equal(*pair) for pair in zip(found, wanted, strict=True))


def from_peers(cache: datacache.DataCache) -> float:
    """The number of samples this rank got from peers."""
    return cache.counters.numbers().get("samples.peers", 0)


def wait_for_peers(cache: datacache.DataCache) -> bool:
    """Reads until peers answer again."""
    before = from_peers(cache)
    for epoch in range(2, 1000):
        if not is_right(cache, epoch):
            return False
        if from_peers(cache) > before:
            return True
        time.sleep(0.1)
    return False


def run(folder: Path, local_size: int) -> None:
    """Tests two nodes of `local_size` ranks on this host."""
    unequal = error_of(bind="lo", local_size=3)
    elsewhere = error_of(bind="lo" if hvd.rank() else "192.0.2.1", local_size=local_size)
    anywhere = error_of(bind="0.0.0.0", local_size=local_size)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        is_taken = error_of(bind="127.0.0.1", port=port if hvd.rank() == 0 else 0, local_size=local_size)
    alone = World.from_horovod("lo", local_size=hvd.size())
    worlds = [World.from_horovod("lo", local_size=local_size) for _ in range(2)]
    same_port = error_of(bind="lo", port=int(worlds[0].peers[0].rpartition(":")[2]), local_size=local_size)
    world = worlds[0]
    decode.datacache_fingerprint = "1"
    source = datacache.Indexed(sample, COUNT, "samples of the tests of Horovod", labels=range(COUNT))
    places = {"local_dir": folder / f"local-{world.node}", "memory_dir": folder / "shm"}
    cache = datacache.DataCache(source, decode, **places, world=world, peer_timeout=5)
    world.barrier()  # all caches serve now; a cache that opens late must not make others time out
    right = [is_right(cache, epoch) for epoch in range(2)]
    world.barrier()
    numbers = cache.counters.numbers()
    serves = numbers.get("served.samples", 0) > 0
    again = None
    if local_size > 1:  # the rank that serves node 1 stops early
        if world.node == 1 and serves:
            cache.close()
        world.barrier()
        again = wait_for_peers(cache) if world.node == 0 else None
    world.barrier()
    cache.close()
    seen = {
        "errors": [unequal, elsewhere, anywhere, is_taken, same_port],
        "alone": [alone.rank, alone.size, alone.node, alone.nodes, alone.peers, alone.bind, alone.secret],
        "world": [world.rank, world.size, world.node, world.nodes, world.bind],
        "peers": [each.peers for each in worlds],
        "secrets": [hashlib.sha256(each.secret).hexdigest() for each in worlds],
        "secret is shown": any(text in repr(world) for text in (world.secret.hex(), str(world.secret), "secret=")),
        "right": right,
        "samples": numbers.get("samples.peers", 0),
        "serves": serves,
        "again": again,
    }
    print(world, worlds)
    (folder / f"rank-{world.rank}.json").write_text(json.dumps(seen))
    (folder / f"secret-{world.rank}").write_text(world.secret.hex())


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    if options["sparse"]:
        import hvd_sparse as hvd

        hvd.init(local_size=options["local_size"])
    else:
        import horovod.tensorflow as hvd

        with contextlib.suppress(RuntimeError):
            World.from_horovod("lo")
            raise AssertionError("Horovod was not started")
        hvd.init()
    run(Path(options["folder"]), options["local_size"])
