"""The recommender: rows of a package index and of Criteo's logs, the DLRM, its scores, and runs of the script."""

import gzip
import hashlib
import json
import pathlib
import re

import keras
import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from examples import recommender, sharded_recommender
from examples.recommenders import checks, criteo, dlrm, index, packages, tables
from examples.recommenders.packages import Settings
from examples.recommenders.scores import Scores
from examples.recommenders.tables import InMemory, Table
from tests.examples import indexes
from tests.parallel import launch

SETTINGS = Settings(each=3, popular=10, fewest=5)
SMALL = ["--popular", "10", "--fewest", "5", "--width", "0.125", "--batch-size", "64", "--epochs", "6"]


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    return index.read(indexes.write(tmp_path_factory.mktemp("lists") / "release_Packages"))


@pytest.fixture(scope="module")
def rows(release):
    return packages.rows(release.packages, SETTINGS)


# ---- the index ----


def test_paragraphs_are_read(tmp_path):
    path = tmp_path / "some_Packages"
    path.write_text(indexes.REAL)
    read = index.read(path)
    assert [package["Package"] for package in read.packages] == ["0ad", "0ad-dbg"]
    assert read.packages[0]["Tag"].endswith("role::program, uitoolkit::sdl, x11::application")
    assert read.digest == hashlib.sha256(indexes.REAL.encode()).hexdigest()
    assert [packages.source(package) for package in read.packages] == ["0ad", "0ad"]
    groups = packages.dependencies(read.packages[0]["Depends"])
    assert groups == [["0ad-data"], ["libc6"], ["libgcc-s1"], ["zlib1g", "zlib1g-ng"]]
    assert packages.dependencies("") == []


def test_the_largest_index_of_the_machine_is_read(tmp_path):
    indexes.write(tmp_path / "security_Packages", 1)
    indexes.write(tmp_path / "release_Packages", 4)
    (tmp_path / "release_InRelease").write_text("x" * 100_000)
    assert index.read(lists=tmp_path).path.name == "release_Packages"


@pytest.mark.skipif(not pathlib.Path("/usr/lib/apt/apt-helper").exists(), reason="the machine has no apt")
def test_apt_reads_what_it_has_compressed(tmp_path):
    (tmp_path / "release_Packages.gz").write_bytes(gzip.compress(indexes.REAL.encode()))
    assert index.read(lists=tmp_path).digest == hashlib.sha256(indexes.REAL.encode()).hexdigest()
    (tmp_path / "release_Packages.xz").write_bytes(b"this is none" * 100)
    with pytest.raises(RuntimeError, match="pass the file without compression"):
        index.read(lists=tmp_path)


def test_a_machine_without_an_index_is_told_what_to_do(tmp_path):
    with pytest.raises(RuntimeError, match="run `apt-get update`"):
        index.read(lists=tmp_path)
    (tmp_path / "x_Packages").write_text("nothing\n")
    with pytest.raises(RuntimeError, match="found none: pass a Packages file"):
        index.read(lists=tmp_path)
    few = index.read(indexes.write(tmp_path / "few", 2))
    with pytest.raises(RuntimeError, match="pass the index of a whole release"):
        packages.make(few, Settings(popular=1))


# ---- rows of the index ----


def test_each_question_is_asked_twice_and_only_the_candidate_differs(release, rows):
    assert len(rows) > 1_000
    depends = {}
    for package in release.packages:
        names = {name for group in packages.dependencies(package.get("Depends", "")) for name in group}
        depends.setdefault(packages.source(package), []).append(names)
    for yes, no in zip(rows[::2], rows[1::2], strict=True):
        assert (yes.label, no.label) == (True, False)
        assert yes.numbers == no.numbers and yes.categories[1:] == no.categories[1:] and yes.source == no.source
        assert len(yes.numbers) == len(packages.NUMBERS) and len(yes.categories) == len(packages.CATEGORIES)
        others = set(yes.categories[-packages.OTHERS :]) - {""}
        of_package = others | {yes.categories[0]}
        assert of_package in depends[yes.source]  # only the candidate was left out
        assert yes.categories[0] not in others and no.categories[0] not in of_package


def test_the_label_is_not_among_the_features(release, rows):
    """A package's text without its dependencies gives the same row except for their names and number."""
    by_source = {}
    for package in release.packages:
        by_source.setdefault(packages.source(package), []).append(package)
    bare = [{**package, "Depends": "", "Pre-Depends": "x"} for package in release.packages]
    assert packages.rows(bare, SETTINGS) == []
    labels = np.array([row.label for row in rows])
    for field, column in enumerate(zip(*(row.categories for row in rows), strict=True)):
        told = {value: labels[[each == value for each in column]].mean() for value in set(column)}
        assert field == 0 or set(told.values()) == {0.5}


def test_rows_are_the_same_in_any_order_of_the_packages(release, rows):
    turned = packages.rows(sorted(release.packages, key=lambda package: package["Size"]), SETTINGS)
    yes = [sorted((row.source, *row.categories) for row in each if row.label) for each in (rows, turned)]
    assert yes[0] == yes[1]


def test_no_source_is_in_two_parts_and_folds_share_out_the_test(release):
    tests = []
    for fold in range(4):
        task = packages.make(release, SETTINGS._replace(fold=fold))
        groups = [set(part.table.groups.tolist()) for part in task[:3]]
        assert not groups[0] & groups[1] and not groups[0] & groups[2] and not groups[1] & groups[2]
        tests.append(groups[2])
        assert 0.15 < len(groups[2]) / 400 < 0.35
    assert sum(map(len, tests)) == len(set.union(*tests)) == 400
    with pytest.raises(ValueError, match="fold of 0 to 3, got 4"):
        packages.make(release, SETTINGS._replace(fold=4))


def test_the_digest_changes_with_the_index_and_with_the_rows(release):
    task = packages.make(release, SETTINGS)
    assert packages.make(release, SETTINGS).digest == task.digest
    assert packages.make(release, SETTINGS._replace(each=2)).digest != task.digest
    package = {**release.packages[0], "Size": "999999"}
    changed = release._replace(packages=[package, *release.packages[1:]])
    assert packages.make(changed, SETTINGS).digest != task.digest


def test_tables_are_bounded_and_rare_categories_share_one_embedding():
    column = ["a"] * 4 + ["b"] * 4 + ["c"] * 3 + ["d", "e"]
    groups = np.array([0, 1, 2, 3, 0, 1, 2, 2, 0, 0, 0, 5, 6])
    train = np.array([True] * 12 + [False])
    numbers, size = tables.numbered(column, groups, train, fewest=2, largest=9)
    assert numbers.tolist() == [1] * 4 + [2] * 4 + [0] * 5 and size == 3  # c has only one group; e is not trained on
    numbers, size = tables.numbered(column, groups, train, fewest=1, largest=3)
    assert size == 3 and numbers.max() == 2


def test_each_row_is_in_one_batch_of_one_rank():
    table = Table(np.zeros((23, 1), np.float32), np.arange(23)[:, None], np.zeros(23, np.float32), np.arange(23))
    made = InMemory(table)
    for share in (False, True):
        seen = []
        for rank in range(2):
            batches = list(made.share(4, rank, 2) if share else made.epoch(1, 4, rank, 2, seed=3))
            assert share or [len(batch.labels) for batch in batches] == [4, 4]
            seen += [number for batch in batches for number in batch.categories[:, 0].tolist()]
        assert len(seen) == len(set(seen)) == (23 if share else 16)
    orders = [next(made.epoch(*which[:1], 16, 0, 1, which[1])).categories[:, 0].tolist() for which in ((0, 0), (1, 0))]
    assert orders[0] != orders[1]


# ---- Criteo ----


def criteo_line(number):
    fields = [str(number % 2), *(str(number + each) for each in range(13)), *(f"{number:08x}" for _ in range(26))]
    return "\t".join(fields)


def test_lines_of_criteo_are_read(tmp_path):
    first = criteo_line(7).split("\t")
    first[1], first[2], first[14] = "", "-3", ""
    lines = ["\t".join(first), *(criteo_line(number) for number in range(8, 21))]
    (tmp_path / "train.txt").write_text("\n".join(lines))  # no newline at the end of the last line
    task = criteo.make([tmp_path / "train.txt"], buckets=50)
    assert [len(part) for part in task[:3]] == [12, 1, 1]
    assert (task.features, task.sizes) == (13, (50,) * 26)
    (batch,) = task.train.share(100, 0, 1)
    assert batch.labels.tolist() == [number % 2 for number in range(7, 19)]
    np.testing.assert_allclose(batch.numbers[0, :3], [0, 0, np.log(10)], rtol=1e-6)
    assert batch.categories.dtype == np.int32 and 0 <= batch.categories.min() and batch.categories.max() < 50
    assert len(set(batch.categories[1].tolist())) == 1 and len(set(batch.categories[:, 5].tolist())) > 6
    assert batch.categories[0, 0] != batch.categories[0, 1]
    seen = [
        int(round(float(np.expm1(number))))
        for rank in range(2)
        for given in task.train.epoch(0, 2, rank, 2, seed=0)
        for number in given.numbers[:, 2]
    ]
    assert sorted(seen) == list(range(9, 21))


def test_the_last_of_criteo_s_files_is_the_last_day(tmp_path):
    paths = [tmp_path / f"day_{day}" for day in range(3)]
    for day, path in enumerate(paths):
        path.write_text("".join(f"{criteo_line(10 * day + number)}\n" for number in range(4)))
    task = criteo.make(paths)
    assert [len(part) for part in task[:3]] == [8, 2, 2]
    (batch,) = task.test.share(10, 0, 1)
    np.testing.assert_allclose(np.expm1(batch.numbers[:, 0]), [22, 23], rtol=1e-5)
    with pytest.raises(ValueError, match="for training, validation and test, got 4"):
        criteo.make(paths[:1])
    other = criteo.make(paths[1:], buckets=7)
    assert other.digest != criteo.make(paths[1:], buckets=8).digest != task.digest


# ---- the model ----


def test_the_model_is_that_of_the_paper():
    model = dlrm.dlrm(13, [100] * 26)
    shapes = {layer.name: [tuple(weight.shape) for weight in layer.weights] for layer in model.layers}
    assert [shapes[f"bottom_{n}"][0] for n in (1, 2, 3, 4)] == [(13, 512), (512, 256), (256, 64), (64, 16)]
    assert [shapes[f"top_{n}"][0] for n in (1, 2, 3, 4)] == [(367, 512), (512, 256), (256, 128), (128, 1)]
    assert [shapes[f"table_{n}"] for n in range(1, 27)] == [[(100, 16)]] * 26
    again = keras.Model.from_config(model.get_config())
    assert again.output_shape == (None, 1)


def test_the_interaction_is_all_dot_products_but_the_diagonal():
    vectors = np.random.default_rng(0).standard_normal((5, 4, 3)).astype("float32")
    told = np.asarray(dlrm.PairwiseDots()([vectors[:, each] for each in range(4)]))
    expected = [[(row[i] @ row[j]) for i in range(4) for j in range(i)] for row in vectors]
    np.testing.assert_allclose(told, expected, rtol=1e-5, atol=1e-6)


def test_seeds_decide_the_weights_and_layers_can_be_put_in():
    small = {"bottom": (8, 4), "top": (8, 1)}
    one, same, other = (dlrm.dlrm(3, [5, 6], **small, seed=seed).get_weights() for seed in (1, 1, 2))
    assert all(np.array_equal(*pair) for pair in zip(one, same, strict=True))
    assert not any(np.array_equal(*pair) for pair in zip(one, other, strict=True) if pair[0].any())
    inputs = [np.ones((2, 3), "float32"), np.ones((2, 2), "int32")]
    plain = dlrm.dlrm(3, [5, 6], **small)
    stopped = dlrm.dlrm(3, [5, 6], **small, after={"top_1": keras.layers.Rescaling(0.0)})
    stopped.set_weights(plain.get_weights())
    assert np.asarray(plain(inputs)).any() and not np.asarray(stopped(inputs)).any()
    with pytest.raises(ValueError, match="layers bottom_1, bottom_2, top_1, top_2, got 'top_3'"):
        dlrm.dlrm(3, [5, 6], **small, after={"top_3": keras.layers.ReLU()})


# ---- scores and checks ----


def test_scores_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    logits = rng.standard_normal(1_000).astype("float32")
    labels = (logits + rng.standard_normal(1_000) > 0).astype("float32")
    given = InMemory(Table(logits[:, None], np.zeros((1_000, 1), "int32"), labels, np.arange(1_000)))
    inputs = [keras.Input((1,)), keras.Input((1,), dtype="int32")]
    told = Scores(keras.Model(inputs, keras.layers.Identity()(inputs[0])), given, batch=300)()
    np.testing.assert_allclose(told["loss"], log_loss(labels, 1 / (1 + np.exp(-logits.astype("float64")))), rtol=1e-6)
    np.testing.assert_allclose(told["auc"], roc_auc_score(labels, logits), atol=1e-3)
    assert told["accuracy"] == pytest.approx(np.mean((logits > 0) == (labels > 0)))


def test_checks_find_a_feature_that_tells_and_only_that(release):
    task = packages.make(release, SETTINGS)
    train, test = (part.table for part in (task.train, task.test))
    honest = checks.of_single_features(train, test)
    assert min(honest.values()) > 0.6 and len(honest) == len(packages.NUMBERS) + len(packages.CATEGORIES)
    leaking = [table._replace(categories=table.categories.copy()) for table in (train, test)]
    for table in leaking:
        table.categories[:, 3] = table.labels
    told = checks.of_single_features(*leaking)
    assert told.pop(packages.CATEGORIES[3]) < 0.05 and min(told.values()) > 0.6
    assert checks.of_logistic_regression(*leaking, task.sizes) < 0.1
    assert checks.of_logistic_regression(train, test, task.sizes) > 0.5


def test_what_is_resolved_is_what_the_spread_says():
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(500), 4)
    shared = rng.exponential(size=2_000)
    one, other = (shared + rng.normal(scale=0.1, size=(6, 2_000)) for _ in range(2))
    found = checks.resolution(one, other, groups)
    assert found.seeds == 6 and found.loss == pytest.approx(one.mean())
    of_mean = 0.1 * np.sqrt(2 / 6) / np.sqrt(2_000) / found.loss
    assert found.rows == pytest.approx(of_mean, rel=0.15)
    assert found.resolved == pytest.approx(2 * np.hypot(found.paired / np.sqrt(6), found.rows))
    alike = [np.repeat(each[:, ::4], 4, axis=1) for each in (one, other)]  # all rows of a group are equal
    assert checks.resolution(*alike, groups).rows == pytest.approx(2 * of_mean, rel=0.2)
    shifted = checks.resolution(one, one + np.arange(6)[:, None], groups)
    assert shifted.paired == pytest.approx(np.std(range(6), ddof=1) / found.loss) and shifted.rows < 1e-9
    assert checks.resolution(one + np.arange(6)[:, None], one, groups).apart > 0.5


# ---- the script ----


def test_presets_give_defaults_and_words_change_them():
    usual, logs = recommender.parse([]), recommender.parse(["--criteo", "day_0", "day_1", "--epochs", "2"])
    assert (usual.optimizer, usual.epochs, usual.in_rows) == ("adam", 1, False)
    assert (logs.optimizer, logs.epochs, logs.batch_size, logs.in_rows) == ("sgd", 2, 128, True)


def test_it_learns_what_goes_with_what(release):
    options = recommender.parse([*SMALL, "--index", str(release.path)])
    outcome = recommender.train(options, packages.make(release, SETTINGS))
    assert outcome.test["loss"] < 0.5 and outcome.test["auc"] > 0.85
    assert [line["epoch"] for line in outcome.lines] == list(range(6))
    with pytest.raises(ValueError, match="rows for a step of all ranks"):
        few = recommender.parse([*SMALL, "--batch-size", "100000"])
        recommender.train(few, packages.make(release, SETTINGS))


@pytest.mark.thorough
def test_sharded_tables_are_those_of_the_recommender(release):
    task = packages.make(release, SETTINGS)
    words = [*SMALL, "--index", str(release.path), "--learning-rate", "0.03"]
    options = sharded_recommender.parse([*words, "--epochs", "2"])
    keras.utils.set_random_seed(0)
    sharded, tables = sharded_recommender.make_model(options, task)
    whole = recommender.make_model(options, task)
    for number, table in enumerate(tables.read(), start=1):
        whole.get_layer(f"table_{number}").set_weights([table])
    rows = task.test.table.rows(np.arange(50))
    given = [rows.numbers, rows.categories]
    np.testing.assert_array_equal(np.asarray(sharded(given)), np.asarray(whole(given)))
    outcome = sharded_recommender.train(options, task)
    assert outcome.lines[-1]["train_loss"] < 0.69 > outcome.test["loss"]


@pytest.mark.thorough
def test_two_ranks_train_by_a_recipe_and_tables_in_rows(release, tmp_path):
    run = [*SMALL, "--batch-size", "32", "--epochs", "3", "--recipe", "hitopk", "--density", "0.3", "--in-rows"]
    run += ["--index", str(release.path), "--checkpoint-dir", str(tmp_path)]
    ended = launch.horovodrun(2, ["-m", "examples.recommender", *run], limit=600)
    assert ended.status == 0, ended.output
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < lines[0]["loss"] < 0.7 and lines[-1]["auc"] > 0.7
    assert re.search(r"rows [0-9a-f]{16}", ended.output) and re.search(r"test: loss 0\.\d+", ended.output)
