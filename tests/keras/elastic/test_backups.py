"""Commits on disk, by threads as ranks: what a job that starts again has, with any number of ranks, and when not all
have written, or not rightly."""

import os
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse.exchange import remains
from hvd_sparse.keras.elastic import backups
from hvd_sparse.keras.elastic.backups import Backup, Backups
from hvd_sparse.keras.exchanging import exchange_of
from hvd_sparse.storage import claims
from tests.grid import world
from tests.keras.elastic.ranks import AFTER, BEFORE, RECIPES, Rank, means

QUICK = ("dense", "hitopk", "recommended", "blocks")
GRIDS = {"as before": (4, 2), "half": (2, 1), "more": (6, 2), "one": (1, 1)}


@pytest.fixture(autouse=True)
def without_claims():
    """Ranks are threads of one process here, which has one claim."""
    yield
    claims.release_all()


def trained(folder, recipe, grid=(4, 2), steps=BEFORE, **options):
    """The ranks after some steps."""

    def one_rank(_):
        with tf.init_scope():
            keras.utils.set_random_seed(3)
            rank = Rank(recipe, backup_dir=folder, **options)
        rank.state.sync()
        rank.train(steps)
        rank.lost = rank.own_waiting()
        return rank

    return world.run(*grid, one_rank)


def ended(ranks, grid=(4, 2)):
    """The ranks have all been told to end."""
    world.run(*grid, lambda number: ranks[number].state.back_up())


def resumed(folder, recipe, grid, then=lambda rank: rank, **options):
    """What a function returns on each rank of a new job."""

    def one_rank(_):
        with tf.init_scope():
            keras.utils.set_random_seed(4)
            rank = Rank(recipe, backup_dir=folder, **options)
        rank.state.sync()
        return then(rank)

    return world.run(*grid, one_rank)


def goes_on(rank):
    assert rank.state.step == BEFORE
    rank.train(AFTER)
    return rank.weights, rank.waiting(), rank.state.sizes


def adds_up(found, beginning, missing=0):
    weights, waiting, sizes = found[0]
    assert all((each[0] == weights).all() for each in found)
    expected = beginning.astype("f8") - means(sizes) + missing
    np.testing.assert_allclose(weights.astype("f8") - waiting / len(found), expected, atol=2e-4)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in QUICK else pytest.mark.thorough) for each in RECIPES]
)
def test_a_new_job_has_all_that_was_applied_and_all_that_waits(tmp_path, name, grid):
    ranks = trained(tmp_path, RECIPES[name])
    ended(ranks)
    found = resumed(tmp_path, RECIPES[name], GRIDS[grid], goes_on)
    assert found[0][2] == [4] * BEFORE + [len(found)] * AFTER
    adds_up(found, ranks[0].beginning)


@pytest.mark.parametrize("survivors", [[0, 1, 2, 3], [1], [2, 3], [0, 2]])
def test_what_survivors_write_alone_lacks_the_others_part_only(tmp_path, survivors):
    ranks = trained(tmp_path, RECIPES["hitopk"])
    for number in survivors:
        ranks[number].state.back_up_alone()  # needs no other rank
    found = resumed(tmp_path, RECIPES["hitopk"], (2, 1), goes_on)
    adds_up(found, ranks[0].beginning, sum(each.lost for n, each in enumerate(ranks) if n not in survivors) / 4)


def test_who_has_handed_over_has_what_all_had(tmp_path):
    ranks = trained(tmp_path, RECIPES["hitopk"])
    world.run(4, 2, lambda number: ranks[number].state.hand_over())
    ranks[2].state.back_up_alone()
    adds_up(resumed(tmp_path, RECIPES["hitopk"], (2, 1), goes_on), ranks[0].beginning)


@pytest.mark.parametrize("leaving", [[], [1], [0, 1, 2, 3]])
def test_all_write_if_there_is_no_host_from_which_no_rank_leaves(tmp_path, leaving):
    ranks = trained(tmp_path, RECIPES["hitopk"])  # on one host
    for number in leaving:
        ranks[number].state.leave()

    def may_end(number):
        ranks[number].state.hand_over()
        return ranks[number].state.take_leave()

    assert world.run(4, 2, may_end) == [bool(leaving)] * 4
    assert [each.counts for each in Backups(tmp_path, 1).found()] == [True] * bool(leaving)
    if leaving:
        adds_up(resumed(tmp_path, RECIPES["hitopk"], (2, 1), goes_on), ranks[0].beginning)


@pytest.mark.parametrize("others", [[0], [0, 1, 3]])
def test_what_was_handed_over_counts_once(tmp_path, others):
    """Rank 2 had not noticed that all have handed over when another died."""
    ranks = trained(tmp_path, RECIPES["hitopk"])
    commits = ranks[2].state._commits
    world.run(4, 2, lambda number: ranks[number].state.hand_over())
    ranks[2].state._commits = commits
    for number in [2, *others]:
        ranks[number].state.back_up_alone()
    adds_up(resumed(tmp_path, RECIPES["hitopk"], (2, 1), goes_on), ranks[0].beginning)


def test_a_job_that_ends_before_its_first_exchange_passes_on_what_it_was_given(tmp_path):
    ranks = trained(tmp_path, RECIPES["hitopk"])
    ended(ranks)
    again = resumed(tmp_path, RECIPES["hitopk"], (4, 2))
    ended(again)
    adds_up(resumed(tmp_path, RECIPES["hitopk"], (2, 1), goes_on), ranks[0].beginning)


@pytest.mark.parametrize("survivors", [None, [1], [0, 1]])
def test_what_all_ranks_share_counts_once(tmp_path, survivors):
    """The velocities of the outer step: each rank writes them, as the others may not be able to."""
    recipe = lambda: hvd.recipes.diloco(every=2)  # noqa: E731
    ranks = trained(tmp_path, recipe, (2, 1))
    had = [remains.of(exchange_of(each.model.optimizer).planned, True).scaled(2).velocities for each in ranks]
    if survivors is None:
        ended(ranks, (2, 1))
    for number in survivors or ():
        ranks[number].state.back_up_alone()
    found = resumed(tmp_path, recipe, (2, 1), lambda rank: rank.state._handed["optimizer"].scaled(2).velocities)
    (expected,) = had[0].values()
    assert np.abs(expected).max() > 1
    for (velocity,) in (each.values() for each in found):
        np.testing.assert_array_equal(velocity, expected)


@pytest.mark.parametrize("grid", [(4, 2), (2, 1)])
def test_slots_on_shards_are_restored(tmp_path, grid):
    recipe, adam = lambda: hvd.recipes.updates(RECIPES["hitopk"]()), lambda: keras.optimizers.Adam(0.01)
    ranks = trained(tmp_path, recipe, optimizer=adam)
    gathered = world.run(4, 2, lambda n: (hvd.consolidate(ranks[n].model), ranks[n].model.optimizer.variables)[1])[0]
    expected = [np.array(each) for each in gathered]
    ended(ranks)

    def then(rank):
        hvd.consolidate(rank.model)
        return [np.array(each) for each in rank.model.optimizer.variables]

    for found in resumed(tmp_path, recipe, grid, then, optimizer=adam):
        for was, now in zip(expected, found, strict=True):
            np.testing.assert_allclose(now, was, rtol=1e-6)


def test_ranks_write_the_same_commit_while_they_train(tmp_path):
    ranks = trained(tmp_path, RECIPES["recommended"], backup_seconds=1e-6)
    for each in ranks:
        each.state.backups.wait()
    newest = Backups(tmp_path, 1).found()[0]
    assert newest.counts and newest.ranks == 4
    files = [Backups(tmp_path, 1).read(newest, rank).arrays for rank in range(4)]
    assert [sum(key.startswith("variable") for key in each) for each in files][1:] == [0, 0, 0]  # rank 0 has them

    def then(rank):
        assert 0 < rank.state.step <= BEFORE
        rank.train(1)
        return rank.weights, rank.waiting(), rank.state.sizes

    adds_up(resumed(tmp_path, RECIPES["recommended"], (2, 1), then), ranks[0].beginning)


def test_none_writes_until_all_would(tmp_path):
    def one_rank(rank):
        state = hvd.elastic.ObjectState(step=0, backup_dir=tmp_path, backup_seconds=1e-6 if rank else 1000)
        state.sync()
        state.commit()
        state.backups.wait()

    world.run(2, 1, one_rank)
    assert not Backups(tmp_path, 1).found()


# ---- each rank's own, and the learning rate ----


def with_own_state(folder):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.BatchNormalization(name="norm"), keras.layers.Dropout(0.5, seed=1, name="drop")]
    model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(2)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.5)), "mse")
    return hvd.elastic.KerasState(model, backup_dir=folder, epoch=0)


def own_of(state):
    norm, drop = state.model.get_layer("norm"), state.model.get_layer("drop")
    return float(norm.moving_mean.numpy()[0]), drop.seed_generator.state.numpy().tolist()


def test_each_rank_gets_its_own_back_and_others_the_means(tmp_path):
    def before(rank):
        state = with_own_state(tmp_path)
        state.sync()
        state.model.get_layer("norm").moving_mean.assign([float(rank)] * 3)
        state.model.get_layer("drop").seed_generator.state.assign([7, rank])
        state.commit()
        state.back_up()

    def after(rank):
        state = with_own_state(tmp_path)
        own = own_of(state)[1]
        state.sync()
        return *own_of(state), own, float(state.model.optimizer.learning_rate)

    world.run(2, 1, before)
    found = world.run(3, 1, after)
    assert [each[:2] for each in found[:2]] == [(0.0, [7, 0]), (1.0, [7, 1])]
    assert found[2][0] == 0.5 and found[2][1] == found[2][2]
    assert {each[3] for each in found} == {0.75}


# ---- what counts ----


def test_the_newest_whole_commit_counts(tmp_path):
    ranks = trained(tmp_path, RECIPES["hitopk"], steps=2)
    ended(ranks)
    world.run(4, 2, lambda n: ranks[n].train(1))
    ended(ranks)
    world.run(4, 2, lambda n: ranks[n].train(1))
    ended(ranks)
    newest = max(each.number for each in Backups(tmp_path, 1).found())
    assert {each.number for each in Backups(tmp_path, 1).found()} == {newest, newest - 1}
    (tmp_path / f"commit-{newest:08}.npz.rank2of4").unlink()
    assert resumed(tmp_path, RECIPES["hitopk"], (2, 1))[0].state.step == 3


def test_a_damaged_one_is_passed_over_on_all_ranks_with_a_warning(tmp_path):
    ranks = trained(tmp_path, RECIPES["hitopk"], steps=2)
    ended(ranks)
    world.run(4, 2, lambda n: ranks[n].train(1))
    ended(ranks)
    newest = max(each.number for each in Backups(tmp_path, 1).found())
    path = tmp_path / f"commit-{newest:08}.npz.rank3of4"
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.warns(UserWarning, match=f"Commit {newest} in .* is passed over: .*rank3of4 is not an intact"):
        again = resumed(tmp_path, RECIPES["hitopk"], (2, 1))
    assert {each.state.step for each in again} == {2}
    ended(again, (2, 1))
    assert max(each.number for each in Backups(tmp_path, 1).found()) > newest


def test_files_of_several_jobs_do_not_mix(tmp_path):
    ranks = trained(tmp_path, RECIPES["hitopk"], steps=2)
    ended(ranks)
    other = trained(tmp_path / "other", RECIPES["hitopk"], steps=2)
    ended(other)
    (name,) = {each.name for each in (tmp_path / "other").glob("*.rank1of4")}
    os.replace(tmp_path / "other" / name, tmp_path / name)
    with pytest.warns(UserWarning, match="its files are of several commits"):
        assert resumed(tmp_path, RECIPES["hitopk"], (2, 1))[0].state.step == 0


def test_another_model_is_refused_on_every_rank(tmp_path):
    ended(trained(tmp_path, RECIPES["dense"]))

    def one_rank(_):
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(2)])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.5)), "mse")
        with pytest.raises(ValueError, match=r"It has .*\[96, 1\], expected .*\[5, 2\].*choose another backup_dir"):
            hvd.elastic.KerasState(model, step=0, backup_dir=tmp_path).sync()

    world.run(2, 1, one_rank)


def test_a_directory_that_another_job_uses_is_refused(tmp_path):
    holder = claims_in_another_process(tmp_path)
    try:
        with pytest.raises(OSError, match=r"use the directory for backups.*Another job saves"):
            hvd.elastic.ObjectState(step=0, backup_dir=tmp_path).sync()
    finally:
        holder.stdin.close()
        holder.wait()


def claims_in_another_process(folder):
    import subprocess
    import sys

    text = f"from hvd_sparse.storage import claims; claims.take({str(folder)!r}); print(flush=True); input()"
    holder = subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    holder.stdout.readline()
    return holder


# ---- one process ----


def test_seconds_must_be_positive(tmp_path):
    with pytest.raises(ValueError, match="backup_seconds of more than 0, got 0"):
        hvd.elastic.ObjectState(backup_dir=tmp_path, backup_seconds=0)


def test_commits_are_written_beside_training_and_removed_at_its_end(tmp_path):
    state = hvd.elastic.ObjectState(step=0, of={"a": np.arange(3)}, backup_dir=tmp_path / "new", backup_seconds=1e-6)

    @hvd.elastic.run
    def train(state):
        for state.step in range(1, 5):
            state.commit()
            state.backups.wait()
        again = hvd.elastic.ObjectState(step=0, of=None, backup_dir=tmp_path / "new")
        again.sync()
        return again, sorted(each.name for each in (tmp_path / "new").iterdir() if each.name != "claim.json")

    again, names = train(state)
    assert again.step == 4 and again.of["a"].tolist() == [0, 1, 2]
    assert len(names) == 2 and all(each.endswith(".npz.rank0of1") for each in names)
    assert not list((tmp_path / "new").iterdir())


def test_variables_are_restored(tmp_path):
    def made():
        variables = [tf.Variable([1.0, 2.0]), tf.Variable(tf.ones([2], tf.bfloat16)), keras.Variable(3)]
        return hvd.elastic.TensorFlowState(variables, step=0, backup_dir=tmp_path)

    state = made()
    state.sync()
    for each in state.variables:
        each.assign(each + each)
    state.step = 5
    state.save()
    state.back_up()
    again = made()
    again.sync()
    assert again.step == 5 and [np.array(each).astype("f4").tolist() for each in again.variables] == [[2, 4], [2, 2], 6]


def test_a_directory_that_cannot_be_made_does_not_end_training(tmp_path, capsys):
    blocked = tmp_path / "file"
    blocked.write_text("")
    writes = Backups(blocked / "below", 1)
    writes.write_beside(backups.whole(1, 0, 1), {"ranks": []}, {})
    writes.wait()
    assert "commit 1 could not be backed up, and training goes on without" in capsys.readouterr().err


def test_one_is_due_after_its_time_unless_the_last_is_still_written(tmp_path):
    writes, may_end = Backups(tmp_path, 1e-6), threading.Event()
    assert writes.is_due() and not Backups(tmp_path, 100).is_due()
    writes._writer = threading.Thread(target=may_end.wait)
    writes._writer.start()
    assert not writes.is_due()
    may_end.set()
    writes.wait()
    assert writes.is_due()


def test_files_of_others_are_left_alone(tmp_path):
    for name in ("commit-1.npz", "model.keras", "commit-00000001.npz.rank0of2.txt"):
        (tmp_path / name).touch()
    writes = Backups(tmp_path, 1)
    writes.write(backups.whole(7, 0, 2), {"ranks": []}, {})
    writes.write(backups.rest(9, 1, 2), {"ranks": []}, {})
    assert writes.found() == [Backup(9, "rest", 2, [1]), Backup(7, "commit", 2, [0])]
    assert [each.counts for each in writes.found()] == [True, False]
    (tmp_path / "commit-00000008.npz.rank0of2.123.tmp").touch()
    writes.remove()
    assert sorted(os.listdir(tmp_path)) == ["commit-00000001.npz.rank0of2.txt", "commit-1.npz", "model.keras"]
