"""Files of sharded servers: any number of ranks can resume from them."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_sparse import spec
from hvd_sparse.keras import servers_files
from hvd_sparse.servers.saving import Kept
from hvd_sparse.servers.state import State

SHAPES = ((3, 4), (5,), ())
ACCOUNT = servers_files.Account("Adam", [list(shape) for shape in SHAPES])
RANKS = st.integers(1, 5)


def saved(folder, ranks: int, random: np.random.Generator) -> list[Kept]:
    """What each of `ranks` ranks has written; integers, so that sums are exact."""

    def numbers(size):
        return random.integers(-99, 100, size).astype(np.float32)

    kept = []
    for rank, shard in enumerate(spec.shards(ACCOUNT.size, ranks)):
        arrays = {"parameters": numbers(shard.size), "velocities": numbers(shard.size)}
        if shard.size:
            arrays["number0"] = np.asarray(10 + rank, np.int64)
        state = State(arrays, numbers(shard.size), 2, 40 + rank, 7 * ranks)
        memory = {"0_velocity": numbers(shard.size), "0_steps": np.asarray(rank, np.int64)}
        kept.append(Kept(rank, state, numbers(ACCOUNT.size), memory))
        servers_files.write(folder / str(rank), kept[-1], ACCOUNT, ranks)
    return kept


def resumed(folder, before: int, after: int, sends_all: bool = False):
    paths = [folder / str(rank) for rank in range(before)]
    return [servers_files.resumed(paths, ACCOUNT, servers_files.Rank(rank, after, sends_all)) for rank in range(after)]


def joined(parts):
    return np.concatenate(list(parts))


@settings(max_examples=25, deadline=None)
@given(before=RANKS, after=RANKS, sends_all=st.booleans(), seed=st.integers(0, 2**32 - 1))
def test_shards_are_cut_anew_and_sums_are_kept(tmp_path_factory, before, after, sends_all, seed):
    folder = tmp_path_factory.mktemp("servers")
    kept = saved(folder, before, np.random.default_rng(seed))
    found = resumed(folder, before, after, sends_all)
    for name in ("parameters", "velocities"):
        old, new = joined(each.state.arrays[name] for each in kept), joined(each.state.arrays[name] for each in found)
        np.testing.assert_array_equal(new, old)
    waiting = sum(each.unsent for each in kept) + joined(each.state.gathered for each in kept)
    still = joined(each.state.gathered for each in found)
    for each in found:
        assert (each.unsent is None) == sends_all
        still = still + (0 if sends_all else each.unsent)
        assert each.state.pushes == 7 * after
        assert (each.memory == {}) == (after != before)
    np.testing.assert_array_equal(still, waiting)


def test_on_as_many_ranks_all_is_as_it_was(tmp_path):
    kept = saved(tmp_path, 3, np.random.default_rng(0))
    for old, new in zip(kept, resumed(tmp_path, 3, 3), strict=True):
        assert new.state._replace(arrays={}, gathered=None) == old.state._replace(arrays={}, gathered=None)
        np.testing.assert_array_equal(new.state.gathered, old.state.gathered)
        np.testing.assert_array_equal(new.unsent, old.unsent)
        assert new.state.arrays.keys() == old.state.arrays.keys()
        assert new.state.arrays["number0"] == old.state.arrays["number0"]
        assert new.memory.keys() == old.memory.keys()
        assert all((new.memory[name] == value).all() for name, value in old.memory.items())


def test_the_numbers_are_of_the_shard_that_most_is_of(tmp_path):
    saved(tmp_path, 2, np.random.default_rng(0))
    found = resumed(tmp_path, 2, 3)
    assert [int(each.state.arrays["number0"]) for each in found] == [10, 10, 11]
    assert [each.state.version for each in found] == [40, 40, 41]


@pytest.mark.parametrize("other", [ACCOUNT._replace(optimizer="SGD"), ACCOUNT._replace(shapes=[[6, 3]])])
def test_another_model_or_optimizer_is_told(tmp_path, other):
    saved(tmp_path, 1, np.random.default_rng(0))
    with pytest.raises(ValueError, match="was saved for another model or optimizer"):
        servers_files.resumed([tmp_path / "0"], other, servers_files.Rank(0, 1, False))


def test_updates_are_not_taken_for_gradients(tmp_path):
    saved(tmp_path, 1, np.random.default_rng(0))
    with pytest.raises(ValueError, match="was saved with clients that pushed gradients, and here they push updates"):
        servers_files.resumed([tmp_path / "0"], ACCOUNT._replace(unit="weights"), servers_files.Rank(0, 1, False))


def test_an_account_tells_a_model(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    account = servers_files.Account.of(keras.optimizers.SGD(), model.trainable_variables)
    assert account.optimizer == "SGD" and account.size == 8 and account.unit == "gradients"
    assert servers_files.Account.of(keras.optimizers.SGD(), [], sends_updates=True).unit == "weights"


def test_what_is_damaged_or_of_something_else_is_told(tmp_path):
    saved(tmp_path, 1, np.random.default_rng(0))
    path, who = tmp_path / "0", servers_files.Rank(0, 1, False)
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    with pytest.raises(OSError, match="it is damaged"):
        servers_files.resumed([path], ACCOUNT, who)
    servers_files.archives.write(path, {"format": servers_files.archives.FORMAT}, {})
    with pytest.raises(ValueError, match="was not saved by sharded servers"):
        servers_files.resumed([path], ACCOUNT, who)
