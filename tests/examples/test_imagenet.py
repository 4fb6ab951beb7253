"""The ImageNet script: stages, layouts, samples, augmentation, accuracy, and a run that is killed and resumed."""

import contextlib
import json
import re
import threading
import time

import keras
import numpy as np
import psutil
import pytest
import tensorflow as tf

import datacache
import hvd_sparse as hvd
from examples import imagenet, photographs
from examples.vision import accuracy, augment, layouts, stages
from examples.vision.samples import Cached, Plain, Samples, _dividing
from examples.vision.stages import Stage
from tests import threads
from tests.parallel import launch

SIDE = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Crops in class folders: 40 for training, 23 for validation."""
    return photographs.write_halves(tmp_path_factory.mktemp("images") / "halves", 40, 23, SIDE)


@pytest.fixture(scope="module")
def records(folder, tmp_path_factory):
    """The same files as TFRecords, with labels from 1, in the order of the folder's samples."""
    path = tmp_path_factory.mktemp("records")
    for split, name in (("train", "train"), ("val", "validation")):
        source = layouts.find(folder, split)
        listing = source.scan()
        for part, indices in enumerate(np.array_split(np.arange(len(listing)), 2)):
            with tf.io.TFRecordWriter(str(path / f"{name}-{part:05}-of-00002")) as writer:
                for index in indices:
                    writer.write(example(source.read(listing, index), listing.labels[index] + 1))
    return path


def example(encoded, label):
    feature = {
        "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded])),
        "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(label)])),
    }
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def opened(path, split, tmp_path, cached=True, rank=0, ranks=1):
    source, world = layouts.find(path, split), datacache.World(rank, ranks)
    in_records = isinstance(source, datacache.TFRecords)
    decode = layouts.Decode(SIDE, in_records, 1 if in_records else 0)
    if not cached:
        return Plain(source, decode, seed=3, world=world)
    return Cached(source, decode, tmp_path, seed=3, world=world, memory_bytes=0)


def taken(dataset, batches):
    return [(images.numpy(), labels.numpy()) for images, labels in dataset.take(batches)]


# ---- options and stages ----


def test_the_defaults_are_commlibs():
    options = imagenet.parse([])
    assert stages.parse(options.stages) == (
        Stage(13, 96, 256),
        Stage(11, 128, 256),
        Stage(3, 224, 256),
        Stage(1, 288, 128),
    )
    assert (options.epochs, options.recipe, options.optimizer) == (28, "hitopk,13:torus2d", "lars")
    assert (options.target, options.warmup_epochs, options.schedule) == (("top5", 0.93), 5, "polynomial")


def test_the_reduced_run_has_the_same_schedule():
    options = imagenet.parse(["--reduced"])
    full, reduced = stages.parse(stages.FULL), stages.parse(options.stages)
    assert [stage.epochs for stage in reduced] == [stage.epochs for stage in full]
    assert [round(3 * stage.size / whole.size) for stage, whole in zip(reduced, full, strict=True)] == [1, 1, 1, 1]
    assert options.recipe == "hitopk,13:torus2d" and options.width < 1
    given = imagenet.parse(["--reduced", "--stages", "2x32x4", "--recipe", "dense"])
    assert (given.epochs, given.recipe) == (2, "dense")


def test_stages_follow_each_other():
    plan = stages.parse("2x32x8, 1x44x4")
    assert list(stages.spans(plan)) == [(0, 2, Stage(2, 32, 8)), (2, 3, Stage(1, 44, 4))]
    assert [stage.stored for stage in stages.parse(stages.FULL)] == [110, 146, 256, 329]
    assert stages.recipe(plan[:1]) == "hitopk"


@pytest.mark.parametrize(
    "words, told",
    [
        (["--stages", "13x96"], "Expected stages such as 13x96x256"),
        (["--stages", "0x96x8"], "Expected stages"),
        (["--stages", "1x24x8"], "size of at least 32"),
        (["--photographs", "12"], "Expected --photographs such as 1280x640"),
        (["--recipe", "hitop"], "Expected a recipe"),
        (["--epochs", "3"], "unrecognized arguments"),
    ],
)
def test_options_that_cannot_be_end_the_script_with_a_sentence(words, told, capsys):
    with pytest.raises(SystemExit):
        imagenet.parse(words)
    assert told in capsys.readouterr().err


# ---- photographs, layouts, decoding ----


def test_held_out_crops_are_of_the_other_halves(folder):
    names = {split: {path.name for path in (folder / split).iterdir()} for split in ("train", "val")}
    assert names["train"] == names["val"] and len(names["train"]) == 20
    whole = photographs.load(1)["astronaut"]
    left, right = (photographs._half(whole, half) for half in ("left", "right"))
    assert left.width + right.width == whole.width
    both = np.concatenate([np.asarray(left), np.asarray(right)], axis=1)
    np.testing.assert_array_equal(both, np.asarray(whole))


def test_photographs_are_written_once(folder, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.jpg")}
    assert len(before) == 63
    photographs.write_halves(folder, 40, 23, SIDE)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.jpg")} == before
    assert list(folder.parent.iterdir()) == [folder]


def test_layouts_are_found(folder, records, tmp_path):
    assert isinstance(layouts.find(folder, "val"), datacache.ImageFolder)
    assert isinstance(layouts.find(records, "val"), datacache.TFRecords)
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.tfrecord").touch()
    assert isinstance(layouts.find(tmp_path, "train"), datacache.TFRecords)
    with pytest.raises(FileNotFoundError, match=r"images for val in .* one of the layouts val/CLASS/\*.jpg"):
        layouts.find(tmp_path, "val")


@pytest.mark.parametrize("cached", [True, False])
def test_folder_and_records_give_the_same_samples(folder, records, tmp_path, cached):
    with opened(folder, "train", tmp_path, cached) as one, opened(records, "train", tmp_path, cached) as other:
        assert len(one) == len(other) == 40 and len(one.classes) == 20
        for (images, labels), (others, other_labels) in zip(
            taken(one.stream(8, 0, 0), 7), taken(other.stream(8, 0, 0), 7), strict=True
        ):
            np.testing.assert_array_equal(images, others)
            np.testing.assert_array_equal(labels, other_labels)


def test_an_image_is_cut_square_and_resized():
    pixels = np.zeros((30, 60, 3), np.uint8)
    pixels[:, 15:45] = 200  # the square in the middle
    payload = tf.io.encode_png(pixels).numpy()
    decode = layouts.Decode(12)
    np.testing.assert_array_equal(decode(payload), np.full((12, 12, 3), 200))
    in_graph, _ = decode.in_graph(tf.constant(payload), tf.constant(0))
    np.testing.assert_array_equal(in_graph, decode(payload))


# ---- samples ----


def test_with_and_without_cache_the_order_is_the_same(folder, tmp_path):
    with opened(folder, "train", tmp_path) as cached, opened(folder, "train", tmp_path, cached=False) as plain:
        for (images, labels), (others, other_labels) in zip(
            taken(cached.stream(6, 1, 12), 9), taken(plain.stream(6, 1, 12), 9), strict=True
        ):
            np.testing.assert_array_equal(labels, other_labels)
            assert np.mean(np.abs(images.astype(float) - others)) < 3  # of 255; they resize differently


@pytest.mark.parametrize("cached", [True, False])
def test_a_stream_goes_on_where_it_was(folder, tmp_path, cached):
    with opened(folder, "train", tmp_path, cached) as samples:
        whole = taken(samples.stream(6, 0, 0), 15)
        later = taken(samples.stream(6, 1, 18), 6)  # 6 batches per epoch, 4 samples left out
    for (images, labels), (others, other_labels) in zip(whole[9:], later, strict=True):
        np.testing.assert_array_equal(images, others)
        np.testing.assert_array_equal(labels, other_labels)


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("ranks", [3, *(pytest.param(ranks, marks=pytest.mark.thorough) for ranks in (1, 2, 4))])
def test_every_held_out_sample_is_seen_once(folder, tmp_path, cached, ranks):
    seen = []
    for rank in range(ranks):
        with opened(folder, "val", tmp_path, cached, rank, ranks) as samples:
            seen += [image.tobytes() for images, _ in samples.once(4) for image in images.numpy()]
    with opened(folder, "val", tmp_path, cached) as samples:
        every = [image.tobytes() for images, _ in samples.once(23) for image in images.numpy()]
    assert sorted(seen) == sorted(every) and len(every) == 23


def test_batches_that_leave_a_rank_without_samples_are_not_chosen():
    for samples in range(1, 60):
        for ranks in range(1, min(samples, 9) + 1):
            for batch in range(1, 9):
                chosen = _dividing(samples, batch, ranks) * ranks
                assert samples % chosen == 0 or samples % chosen >= ranks
    assert _dividing(50_000, 256, 128) == 256
    with pytest.raises(ValueError, match="got 3 and 4 ranks"):
        _dividing(3, 8, 4)


# ---- augmentation ----


def test_crops_are_the_same_for_the_same_seed_and_step(folder, tmp_path):
    with opened(folder, "train", tmp_path) as samples:

        def batches(position, first_step, seed=5):
            return taken(augment.training_batches(samples.stream(6, 0, position), 16, seed, first_step, 0.35), 4)

        whole, later, other = batches(0, 0), batches(12, 2), batches(0, 0, seed=6)
    for (images, _), (others, _) in zip(whole[2:], later[:2], strict=True):
        np.testing.assert_array_equal(images, others)
    assert np.any(whole[0][0] != other[0][0])
    assert whole[0][0].shape == (6, 16, 16, 3) and whole[0][0].dtype == np.float32


def test_crops_are_within_the_image_and_as_large_as_told():
    rows = np.linspace(0, 255, 64)
    down, across = np.broadcast_to(rows[:, None], (64, 64)), np.broadcast_to(rows, (64, 64))
    image = np.stack([down, across, np.zeros((64, 64))], -1)
    images = np.broadcast_to(np.round(image).astype(np.uint8), (400, 64, 64, 3))
    crops = augment.crop_and_flip(tf.constant(images), 8, tf.constant([0, 1], tf.int64), 0.25).numpy()
    assert -1 <= crops.min() and crops.max() <= 1
    height = (crops[:, -1, 0, 0] - crops[:, 0, 0, 0]) / 2
    width = (crops[:, 0, -1, 1] - crops[:, 0, 0, 1]) / 2
    area = height * np.abs(width)
    assert 0.25 - 0.02 < area.min() < 0.35 and area.max() <= 1.001 and abs(area.mean() - 0.6) < 0.06
    assert 0.4 < np.mean(width < 0) < 0.6  # mirrored


def test_held_out_images_are_the_middle():
    images = np.random.default_rng(0).integers(0, 256, (2, 10, 10, 3), np.uint8)
    np.testing.assert_allclose(augment.held_out(tf.constant(images), 6), images[:, 2:8, 2:8] / 127.5 - 1, atol=1e-6)


# ---- accuracy ----


class Given(Samples):
    """Samples with the logits as their images' first pixels."""

    classes = ()

    def __init__(self, logits, labels, claimed=None):
        images = np.zeros((len(labels), 8, 8, 3), np.uint8)
        images[:, 0, :, 0] = logits
        self._dataset = tf.data.Dataset.from_tensor_slices((images, labels.astype(np.int64)))
        self._claimed = claimed or len(labels)

    def __len__(self):
        return self._claimed

    def once(self, batch):
        return self._dataset.batch(batch)

    def stream(self, batch, epoch, position):
        raise NotImplementedError

    def saving(self, directory, batch, save_every, **options):
        raise NotImplementedError

    def close(self):
        pass


def test_accuracy_is_that_of_numpy_and_counts_all():
    hvd.init()
    random = np.random.default_rng(0)
    logits = np.stack([random.permutation(256)[:8] for _ in range(50)])
    labels = random.integers(0, 8, 50)
    image = keras.Input((None, None, 3))
    model = keras.Model(image, keras.layers.Lambda(lambda x: x[:, 0, :, 0])(image))
    measured = accuracy.Accuracy(model)
    measured.size, measured.batch, measured.samples = 8, 7, Given(logits, labels)
    order = np.argsort(-logits, axis=1)
    scaled = logits / 127.5 - 1
    losses = np.log(np.exp(scaled).sum(1)) - scaled[np.arange(50), labels]
    found = measured(model)
    assert found["top1"] == np.mean(order[:, 0] == labels)
    assert found["top5"] == np.mean((order[:, :5] == labels[:, None]).any(1)) < 1
    assert found["loss"] == pytest.approx(losses.mean(), rel=1e-5)
    measured.samples = Given(logits, labels, claimed=51)
    with pytest.raises(RuntimeError, match="Expected 51 held-out samples, but the ranks counted 50"):
        measured(model)


def test_statistics_are_averaged_over_ranks():
    def one_rank(grid):
        rank = grid.world.rank
        variables = [keras.Variable(np.full((2, 3), rank, "float32")), keras.Variable(np.float32(10 * rank))]
        accuracy.average(variables, grid.world)
        return [variable.numpy() for variable in variables]

    for matrix, number in threads.run(ranks=3, local_size=1, function=one_rank):
        np.testing.assert_array_equal(matrix, np.ones((2, 3)))
        assert number == 10


# ---- whole runs ----

TINY = (
    "--model vgg19 --width 0.0625 --photographs 96x45 --stages 3x32x8,2x40x8 --optimizer momentum --learning-rate 0.02 "
    "--warmup-epochs 1 --save-every 2 --recipe hitopk@0.05,3:torus2d --target top5=0.2 --reduced"
).split()


def run(tmp_path, name, words=()):
    command = ["-m", "examples.imagenet", *TINY, "--cache-dir", str(tmp_path / "cache"), *words]
    return launch.horovodrun(2, [*command, "--checkpoint-dir", str(tmp_path / name)], limit=600)


def kill_in_mid_epoch(tmp_path, name):
    """Starts a run and kills its ranks after one has saved in the middle of the second or a later epoch; its output."""
    found = []
    thread = threading.Thread(target=lambda: found.append(run(tmp_path, name)))
    thread.start()
    while thread.is_alive() and not list((tmp_path / name).glob("epoch-00000[123]-position-*[1-9]?.weights.h5")):
        time.sleep(0.005)
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # Horovod ends the others once one is gone
            if "examples.imagenet" in process.cmdline() and "horovod.runner.launch" not in process.cmdline():
                process.kill()
    thread.join()
    return found[0]


@pytest.mark.thorough
def test_a_run_that_is_killed_in_mid_epoch_ends_as_one_that_is_not(tmp_path):
    whole = run(tmp_path, "whole")
    assert whole.status == 0, whole.output
    killed = kill_in_mid_epoch(tmp_path, "parts")
    assert killed.status != 0 and "ended after" not in killed.output
    rest = run(tmp_path, "parts", words=["--resume"])
    assert rest.status == 0, rest.output
    expected, log = (
        [json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        for name in ("whole", "parts")
    )
    for one, other in zip(expected, log, strict=True):
        for name in ("epoch", "learning_rate", "loss", "top1", "top5"):
            assert one[name] == other[name], (one, other)
    ends = [re.search(r"ended after epoch 5: .* weights [0-9a-f]{16}", ended.output) for ended in (whole, rest)]
    assert ends[0] and ends[1] and ends[0][0] == ends[1][0]
    assert "top5 of 0.2 reached" in whole.output
    ended = imagenet.parse([*TINY, "--cache-dir", str(tmp_path / "cache"), "--checkpoint-dir", str(tmp_path / "parts")])
    with pytest.raises(ValueError, match="nothing is left"):
        imagenet.train(ended)
