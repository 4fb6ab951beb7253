"""The rooms: the modules that faults are drawn from, a room's own tests, and the tests that cannot reach it."""

from __future__ import annotations

import dataclasses
import pathlib

OF_DATACACHE = ("tests/datacache/*", "tests/faults/test_datacache_*")
OF_EXAMPLES = ("tests/examples/*", "tests/benchmarks/*")
OF_LARS = ("tests/lars/*",)
OF_LINK = ("tests/link/*",)
OF_OPS = ("tests/ops/*", "tests/gpu/*")
NOBODYS = ("tests/tools/*", "tests/test_documents.py", "tests/test_layers.py", "tests/test_tiers.py")


@dataclasses.dataclass(frozen=True)
class Room:
    """The files that belong to a room, as path patterns from the root of the repository.

    Attributes:
        tests: the room's own tests.
        modules: the modules that faults are drawn from; none for a room whose faults are listed.
        beyond: tests that run nothing of the room.
    """

    tests: tuple[str, ...]
    modules: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()


TWO_RANKS = "tests/faults/test_two_ranks.py"
OF_SENDERS = ("tests/keras/test_momentum*", "tests/keras/test_local_updates*")
CONTRACTS = ("tests/test_contracts.py", "tests/exchange/test_exchange_laws.py")
BESIDE = (*OF_DATACACHE, *OF_LINK)  # the tests of packages beside hvd_sparse
BELOW_KERAS = (*BESIDE, *OF_OPS)
KERNELS = (*BESIDE, *OF_LARS)

ROOMS = {
    "aggregators": Room(
        ("tests/aggregators/*", *CONTRACTS, "tests/keras/test_local_steps.py"),
        ("hvd_sparse/aggregators/*.py",),
        BESIDE,
    ),
    "collectives": Room(
        ("tests/collectives/*", "tests/faults/test_collectives.py", TWO_RANKS),
        ("hvd_sparse/collectives/*.py",),
        BESIDE,
    ),
    "compression": Room(("tests/compression/*", *CONTRACTS, *OF_SENDERS), ("hvd_sparse/compression/*.py",), BESIDE),
    "costs": Room(("tests/costs/*", "tests/tuning/test_planner.py"), ("hvd_sparse/costs/*.py",), BELOW_KERAS),
    "exchange": Room(
        (
            "tests/exchange/*",
            "tests/test_contracts.py",
            "tests/keras/test_callbacks.py",
            "tests/keras/test_optimizer.py",
            "tests/keras/test_tape.py",
            *OF_SENDERS,
        ),
        ("hvd_sparse/exchange/*.py",),
        BELOW_KERAS,
    ),
    "indices": Room(("tests/faults/test_indices.py", "tests/ops/test_sparse.py"), ("hvd_sparse/indices.py",), BESIDE),
    "keras": Room(
        (
            "tests/keras/*",
            "tests/faults/test_arguments.py",
            "tests/faults/test_checkpoints.py",
            "tests/grid/*",
            TWO_RANKS,
        ),
        (
            "hvd_sparse/storage/archives.py",
            "hvd_sparse/keras/broadcasting.py",
            "hvd_sparse/keras/checkpoint.py",
            "hvd_sparse/storage/files.py",
            "hvd_sparse/keras/own_state.py",
            "hvd_sparse/keras/ownership.py",
            "hvd_sparse/keras/tracked.py",
            "hvd_sparse/keras/callbacks/*.py",
        ),
        BELOW_KERAS,
    ),
    "optimizers": Room(
        ("tests/optimizers/*", "tests/exchange/*", "tests/grid/*", TWO_RANKS),
        ("hvd_sparse/optimizers/*.py",),
        BELOW_KERAS,
    ),
    "spec": Room(("tests/exchange/test_plan.py", *CONTRACTS), ("hvd_sparse/spec.py",), BESIDE),
    "transport": Room(
        ("tests/transport/*", TWO_RANKS, "tests/test_launch.py"),
        (
            "hvd_sparse/transport/communicator.py",
            "hvd_sparse/transport/eager.py",
            "hvd_sparse/transport/nodes.py",
            "hvd_sparse/transport/subgrid.py",
            "hvd_sparse/transport/topology.py",
        ),
        BELOW_KERAS,
    ),
    "tuning": Room(("tests/tuning/*",), ("hvd_sparse/tuning/*.py",), BELOW_KERAS),
    "datacache": Room(
        OF_DATACACHE,
        (
            "datacache/batches.py",
            "datacache/cache.py",
            "datacache/checkpoints.py",
            "datacache/disk.py",
            "datacache/files.py",
            "datacache/indexed.py",
            "datacache/layout.py",
            "datacache/limits.py",
            "datacache/order.py",
            "datacache/reader.py",
            "datacache/slab.py",
            "datacache/store.py",
            "datacache/world.py",
            "datacache/peers/*.py",
        ),
        (
            *OF_LARS,
            *OF_OPS,
            *CONTRACTS,
            "tests/aggregators/*",
            "tests/collectives/*",
            "tests/compression/*",
            "tests/costs/*",
            "tests/exchange/*",
            "tests/keras/*",
            "tests/transport/*",
            "tests/tuning/*",
        ),
    ),
    "lars": Room(OF_LARS, ("lars/*.py",), BELOW_KERAS),
    "link": Room(
        (*OF_LINK, "tests/datacache/test_peer*"), ("link/*.py",), (*OF_LARS, *OF_OPS, *CONTRACTS, "tests/collectives/*")
    ),
    "ops/select": Room(("tests/ops/test_select*", "tests/compression/*", *CONTRACTS), (), KERNELS),
    "ops/quantize": Room(("tests/ops/test_quantize.py", "tests/compression/*"), (), KERNELS),
    "ops/streams": Room(("tests/ops/test_merge*", "tests/collectives/*"), (), KERNELS),
    "ops/exchange": Room(("tests/ops/test_mean*", "tests/ops/test_sparse*", *CONTRACTS), (), KERNELS),
    "ops/shared_memory": Room(("tests/ops/test_shared_memory.py", "tests/transport/*"), (), KERNELS),
    "ops/lars": Room(OF_LARS, (), (*BESIDE, "tests/ops/*")),
    "ops/datacache": Room(OF_DATACACHE, (), (*OF_LARS, *OF_LINK, *OF_OPS)),
}


def found(root: pathlib.Path, patterns: tuple[str, ...]) -> list[str]:
    """The files that match one of the patterns, by their paths from the root."""
    paths = {path for pattern in patterns for path in root.glob(pattern) if path.suffix == ".py"}
    return sorted(path.relative_to(root).as_posix() for path in paths)


def modules(root: pathlib.Path, room: Room) -> list[str]:
    """The files that faults are drawn from, without those that only re-export names."""
    return [path for path in found(root, room.modules) if not path.endswith("__init__.py")]


def own_tests(root: pathlib.Path, room: Room) -> list[str]:
    """The room's own test files."""
    return [path for path in found(root, room.tests) if _is_test(path)]


def other_tests(root: pathlib.Path, room: Room) -> list[str]:
    """All other test files that may run something of the room."""
    left_out = set(found(root, (*room.tests, *room.beyond, *NOBODYS)))
    return [path for path in found(root, ("tests/**/*.py",)) if _is_test(path) and path not in left_out]


def _is_test(path: str) -> bool:
    return path.rpartition("/")[2].startswith("test_")
