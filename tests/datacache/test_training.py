"""Training that is killed and restarted: every epoch contains each sample once, for any number of ranks."""

import json
import os
import shutil
import signal
import subprocess
import sys
import warnings

import h5py
import keras
import numpy as np
import pytest

import datacache
from datacache import World
from datacache.order import permutation
from tests.datacache import resuming
from tests.datacache.members import flip
from tests.datacache.resuming import BATCH, COUNT, EPOCHS
from tests.parallel.launch import QUIET, ROOT, horovodrun

LIMIT = 600  # seconds until a process counts as hanging


def run_script(folder, ranks=1, launcher=False, **settings):
    """Runs the script to its end; returns its status and output."""
    arguments = ["-m", "tests.datacache.resuming", json.dumps({"folder": str(folder), **settings})]
    if ranks > 1 or launcher:
        return horovodrun(ranks, arguments, LIMIT)
    environment = {**os.environ, **QUIET}
    ended = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT
    )
    return ended.returncode, ended.stderr


def counts_and_state(path):
    """How often a checkpoint's model has seen each sample, and the checkpoint's metadata."""
    found = []
    with h5py.File(path, "r") as file:
        file.visititems(lambda _, each: found.append(each[:]) if getattr(each, "shape", None) == (COUNT,) else None)
        return found[0], json.loads(file.attrs["datacache"])


def assert_each_checkpoint_agrees(folder):
    """Asserts that each checkpoint's model has seen the samples before its position; returns their number."""
    checkpoints = list(folder.glob("epoch-*.weights.h5"))
    for path in checkpoints:
        counts, told = counts_and_state(path)
        wanted = np.full(COUNT, told["epoch"])
        wanted[permutation(COUNT, 0, told["epoch"])[: told["position"]]] += 1
        np.testing.assert_array_equal(counts, wanted)
    return len(checkpoints)


def assert_ended_right(folder):
    assert json.loads((folder / "end.json").read_text()) == [EPOCHS] * COUNT


def test_killed_in_mid_epoch_it_goes_on(tmp_path):
    assert run_script(tmp_path, death=[1, 7])[0] == -signal.SIGKILL
    assert assert_each_checkpoint_agrees(tmp_path / "checkpoints") == 2
    assert run_script(tmp_path, death=[1, 2])[0] == -signal.SIGKILL  # the third of the remaining batches
    assert assert_each_checkpoint_agrees(tmp_path / "checkpoints") == 2
    status, told = run_script(tmp_path, batch_size=BATCH + 2)
    assert status == 0, told
    assert "ran out of data" not in told
    assert_ended_right(tmp_path)
    assert assert_each_checkpoint_agrees(tmp_path / "checkpoints") == 2


@pytest.mark.thorough
@pytest.mark.parametrize("moment", ["position", "name", "directory"])
def test_killed_in_a_save_the_checkpoint_is_the_one_before_or_the_new_one(moment, tmp_path):
    assert run_script(tmp_path, death=[moment, 6])[0] == -signal.SIGKILL
    newest = max((tmp_path / "checkpoints").glob("epoch-*"))
    # three saves in each epoch of ten batches, and one at its end; the sixth is at batch 6 of epoch 1
    assert counts_and_state(newest)[1]["position"] == (6 if moment == "directory" else 3) * BATCH
    assert assert_each_checkpoint_agrees(tmp_path / "checkpoints") > 0
    status, told = run_script(tmp_path)
    assert status == 0, told
    assert_ended_right(tmp_path)
    assert not list((tmp_path / "checkpoints").glob("*part*"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "before, after, shared", [(2, 1, True), (1, 2, False)], ids=["fewer, one file system", "more, rank 0's alone"]
)
def test_it_goes_on_with_another_number_of_ranks(before, after, shared, tmp_path):
    ended = run_script(tmp_path, before, launcher=True, death=[1, 3], shared=shared)
    assert ended.status not in (0, None), ended.output
    folder = tmp_path / ("checkpoints" if shared else "checkpoints-0")
    newest = max(folder.glob("epoch-*"))
    told = counts_and_state(newest)[1]
    assert (told["epoch"], told["position"]) == (1, 3 * BATCH * before)
    assert assert_each_checkpoint_agrees(folder) == 2
    ended = run_script(tmp_path, after, launcher=True, shared=shared)
    assert ended.status == 0, ended.output
    assert_ended_right(tmp_path)
    assert assert_each_checkpoint_agrees(folder) == 2
    assert shared or not list(tmp_path.glob("checkpoints-1/*"))


@pytest.mark.thorough
def test_residuals_go_on_with_the_model(tmp_path):
    """With hvd_sparse.checkpoint too, a run that was killed ends with the same bits as one that was not."""

    def end_of(name, **settings):
        (tmp_path / name).mkdir(exist_ok=True)
        ended = run_script(tmp_path / name, 2, launcher=True, sparse=True, **settings)
        assert (ended.status == 0) == ("death" not in settings), ended.output
        return None if "death" in settings else json.loads((tmp_path / name / "end.json").read_text())

    wanted = end_of("whole")
    kept = {each.name.partition(".")[2] for each in (tmp_path / "whole" / "checkpoints").iterdir()}
    assert kept == {"weights.h5", "beside.npz", "beside.npz.rank0of2", "beside.npz.rank1of2"}
    assert len(list((tmp_path / "whole" / "checkpoints").glob("*.weights.h5"))) == 2
    end_of("killed", death=[1, 4])
    shutil.copytree(tmp_path / "killed", tmp_path / "without")
    newest = max((tmp_path / "killed" / "checkpoints").glob("epoch-*.beside.npz"))
    flip(newest, newest.stat().st_size // 2, 1)
    assert end_of("killed") == wanted  # resumed from the previous checkpoint
    assert end_of("without", residuals=False) != wanted


# ---- in this process ----


@pytest.fixture
def make_cache(tmp_path):
    made = []

    def make(**options):
        source = datacache.Indexed(resuming.read, COUNT, "numbers", labels=range(COUNT))
        folders = {"local_dir": tmp_path / "local", "memory_dir": tmp_path / "shm"}
        made.append(datacache.DataCache(source, resuming.decode, **folders, **{"world": World(), **options}))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def model():
    keras.backend.clear_session()
    return resuming.compiled()


def fit(model, training, callbacks=(), **changed):
    arguments = {
        "initial_epoch": training.epoch,
        "steps_per_epoch": training.steps_per_epoch,
        "epochs": EPOCHS,
        "verbose": 0,
        **changed,
    }
    return model.fit(training.dataset(), callbacks=[training, *callbacks], **arguments)


class Stop(keras.callbacks.Callback):
    """Ends `fit` in the way of EarlyStopping or TerminateOnNaN."""

    def __init__(self, epoch, batch=None):
        super().__init__()
        self.when = epoch, batch

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == self.when:
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        if (epoch, None) == self.when:
            self.model.stop_training = True


@pytest.mark.parametrize(
    "when, memory_bytes",
    [
        ((0, 4), None),
        ((1, None), 0),
        *(pytest.param(when, None, marks=pytest.mark.thorough) for when in [(1, 0), (1, None), (1, 9), (0, 9)]),
        pytest.param((1, 0), 10_000, marks=pytest.mark.thorough),
    ],
)
def test_a_fit_that_is_stopped_goes_on_in_another_fit(when, memory_bytes, make_cache, model, tmp_path):
    cache = make_cache(memory_bytes=memory_bytes)
    training = cache.training(tmp_path / "kept", BATCH, save_every=4)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*ran out of data")
        fit(model, training, [Stop(*when)])
        assert assert_each_checkpoint_agrees(tmp_path / "kept") > 0
        history = fit(model, training)
    assert history.epoch[-1] == EPOCHS - 1
    np.testing.assert_array_equal(model.get_weights()[0], EPOCHS)
    assert (training.epoch, training.position) == (EPOCHS, 0)


def test_another_callback_may_stop_at_the_end_of_a_short_epoch(make_cache, model, tmp_path):
    training = make_cache().training(tmp_path / "kept", BATCH, save_every=4)
    fit(model, training, [Stop(0, 4)])
    assert fit(model, training, [Stop(0)]).epoch == [0]
    assert (training.epoch, training.position) == (1, 0)


def test_what_would_be_dropped_at_the_end_is_dropped_on_another_number_of_ranks_too(make_cache, model, tmp_path):
    training = make_cache().training(tmp_path / "kept", BATCH, save_every=4, drop_remainder=True)
    fit(model, training, [Stop(0, 7)])
    assert training.position == 40
    training = make_cache(world=World(0, 2)).training(tmp_path / "kept", BATCH, save_every=4, drop_remainder=True)
    assert (training.epoch, training.position) == (1, 0)


def test_optimizer_and_learning_rate_go_on(make_cache, model, tmp_path):
    model.compile(keras.optimizers.SGD(1.0, momentum=0.5), jit_compile=False)
    fit(model, make_cache().training(tmp_path / "kept", BATCH, save_every=4), [Stop(1, 4)])
    weights = [each.numpy() for each in model.optimizer.variables]
    other = resuming.Summing(model.inputs, resuming.Counting()(model.inputs[0]))
    other.compile(keras.optimizers.SGD(0.25, momentum=0.5), jit_compile=False)
    restored = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            restored.extend([each.numpy() for each in self.model.optimizer.variables])
            self.model.stop_training = True

    fit(other, make_cache().training(tmp_path / "kept", BATCH, save_every=4), [Look()])
    for got, wanted in zip(restored[: len(weights)], weights, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_a_checkpoint_that_cannot_be_read_is_passed_over(make_cache, model, tmp_path, caplog):
    fit(model, make_cache().training(tmp_path / "kept", BATCH, save_every=4), [Stop(1, 5)])
    older, newest = sorted((tmp_path / "kept").glob("epoch-*"))
    newest.write_bytes(newest.read_bytes()[:1000])
    training = make_cache().training(tmp_path / "kept", BATCH, save_every=4, keep=1)
    assert (training.epoch, training.position) == (1, 4 * BATCH)
    assert f"{newest} cannot be read" in caplog.text and f"training resumes from {older.name}" in caplog.text
    fit(model, training)
    np.testing.assert_array_equal(model.get_weights()[0], EPOCHS)


def test_a_damaged_checkpoint_does_not_count_as_one_of_those_that_stay(make_cache, model, tmp_path):
    fit(model, make_cache().training(tmp_path / "kept", BATCH, save_every=3), [Stop(0, 7)])
    older, newest = sorted((tmp_path / "kept").glob("epoch-*"))
    flip(newest, newest.stat().st_size // 2, 8)
    training = make_cache().training(tmp_path / "kept", BATCH, save_every=9)
    fit(model, training, [Stop(0, 2)])  # past it; this fit saves for the first time at its end
    assert older.exists()


def test_where_no_checkpoint_is_whole_training_begins_anew(make_cache, model, tmp_path, caplog):
    fit(model, make_cache().training(tmp_path / "kept", BATCH, save_every=4), [Stop(1, 5)])
    for each in (tmp_path / "kept").glob("epoch-*"):
        flip(each, each.stat().st_size - 5, 1)
    training = make_cache().training(tmp_path / "kept", BATCH, save_every=4)
    assert (training.epoch, training.position) == (0, 0)
    assert caplog.text.count("its digest is wrong); no older one is intact, so training starts over") == 2


def test_the_file_is_one_of_keras_and_needs_its_digest(make_cache, model, tmp_path, caplog):
    fit(model, make_cache().training(tmp_path / "kept", BATCH, save_every=4), [Stop(0, 5)])
    path = max((tmp_path / "kept").glob("epoch-*"))
    saved = model.get_weights()[0]
    model.set_weights([np.zeros(COUNT)])
    model.load_weights(path)
    np.testing.assert_array_equal(model.get_weights()[0], saved)
    position = make_cache().training(tmp_path / "kept", BATCH, save_every=4).position
    path.write_bytes(path.read_bytes()[:-40])
    assert make_cache().training(tmp_path / "kept", BATCH, save_every=4).position != position
    assert "the digest at its end is missing" in caplog.text


def test_the_shape_of_batches_is_known_where_all_are_equal(make_cache, tmp_path):
    def batches(**options):
        return make_cache().training(tmp_path, save_every=1, **options).dataset().element_spec[0].shape[0]

    assert batches(batch_size=COUNT) == COUNT
    assert batches(batch_size=BATCH) is None
    assert batches(batch_size=BATCH, drop_remainder=True) == BATCH


class TestRefused:
    """Invalid arguments."""

    @pytest.mark.parametrize(
        "changed, told",
        [
            ({"steps_per_epoch": 3}, "Expected fit\\(steps_per_epoch=10\\).*got 3"),
            ({"steps_per_epoch": None}, "Expected fit\\(steps_per_epoch=10\\).*got None"),
            ({"initial_epoch": 1}, "Expected fit\\(initial_epoch=0\\).*got 1"),
        ],
    )
    def test_a_fit_that_is_not_as_it_was_told(self, changed, told, make_cache, model, tmp_path):
        with pytest.raises(ValueError, match=told):
            fit(model, make_cache().training(tmp_path, BATCH, save_every=4), **changed)

    def test_a_dataset_of_an_earlier_fit(self, make_cache, model, tmp_path):
        training = make_cache().training(tmp_path, BATCH, save_every=4)
        arguments = {"steps_per_epoch": 10, "callbacks": [training], "verbose": 0}
        old = training.dataset()
        fit(model, training, [Stop(0, 4)])
        with pytest.raises(Exception, match="training is at 25 of epoch 0: call dataset\\(\\) again for another fit"):
            model.fit(old, initial_epoch=0, epochs=2, **arguments)
        fit(model, training, epochs=1)
        with pytest.raises(Exception, match="training is at 0 of epoch 1: call dataset"):
            model.fit(old, initial_epoch=1, epochs=2, **arguments)

    def test_another_order(self, make_cache, model, tmp_path):
        fit(model, make_cache().training(tmp_path / "kept", BATCH, save_every=4), epochs=1)
        with pytest.raises(ValueError, match="'seed': 0.*expected.*'seed': 1.*Choose another directory"):
            make_cache(seed=1).training(tmp_path / "kept", BATCH, save_every=4)

    def test_a_model_that_is_not_built(self, make_cache, model, tmp_path):
        fit(model, make_cache().training(tmp_path / "kept", BATCH, save_every=4), epochs=1)
        unbuilt = keras.Sequential([resuming.Counting()])
        unbuilt.compile("sgd", "mse", jit_compile=False)
        with pytest.raises(ValueError, match="the model is not built: give it an input shape"):
            fit(unbuilt, make_cache().training(tmp_path / "kept", BATCH, save_every=4))

    def test_several_steps_at_once(self, make_cache, model, tmp_path):
        model.compile("sgd", steps_per_execution=2, jit_compile=False)
        with pytest.raises(ValueError, match="Expected steps_per_execution of 1, got 2"):
            fit(model, make_cache().training(tmp_path, BATCH, save_every=4))

    @pytest.mark.parametrize("wrong", [{"save_every": 0}, {"keep": 0}])
    def test_numbers(self, wrong, make_cache, tmp_path):
        with pytest.raises(ValueError, match="save_every and keep of at least 1"):
            make_cache().training(tmp_path, BATCH, **{"save_every": 1, **wrong})
