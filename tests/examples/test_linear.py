"""examples/linear.py and examples/make_ngrams.py: on 5-grams of installed files, compared with scikit-learn."""

import io
import json
import os
import subprocess
import sys
import sysconfig
import zlib
from pathlib import Path, PurePath

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import dump_svmlight_file, load_svmlight_file, load_svmlight_files
from sklearn.linear_model import LogisticRegression, SGDClassifier

from examples import linear, make_ngrams
from examples.linear_models import exchange, libsvm
from examples.linear_models.exchange import Entries
from examples.linear_models.sgd import SCHEDULES, ScaledVector
from hvd_sparse.transport.communicator import LoneCommunicator
from tests import threads
from tests.parallel import launch

PACKAGE = Path(sysconfig.get_path("purelib"), "sklearn")  # a few hundred modules, many of them tests


# ---- data ----


def ngrams(folder, dimensions):
    """The options: half of the package's modules for training, half for testing."""
    where = ["--out", str(folder), "--folder", str(PACKAGE), "--dimensions", str(dimensions)]
    return [*where, "--characters", "4000", "--held-out", "0.5"]


def write(folder, dimensions, *words):
    written = make_ngrams.main([*ngrams(folder, dimensions), *words])
    assert all(min(each.positive, each.samples - each.positive) > 50 for each in written.values())
    return folder


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    return write(tmp_path_factory.mktemp("wide"), 200_000)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    """Few features of both signs, so that coordinate descent reaches the optimum quickly."""
    folder, drawing = tmp_path_factory.mktemp("narrow"), np.random.default_rng(0)
    matrix = sparse.random_array((400, 121), density=0.08, rng=drawing, data_sampler=drawing.normal, format="csr")
    labels = np.where(matrix @ drawing.normal(size=121) + 0.5 * drawing.normal(size=400) + 0.3 > 0, 1, -1)
    for name, half in (("train.svm", slice(0, 250)), ("test.svm", slice(250, 400))):
        dump_svmlight_file(matrix[half], labels[half], str(folder / name), zero_based=False)
    return folder


def files(folder):
    return ["--train", str(folder / "train.svm"), "--test", str(folder / "test.svm")]


def by_scikit_learn(folder):
    return load_svmlight_files([folder / "train.svm", folder / "test.svm"], zero_based=False)


def test_ngrams_are_hashed_as_zlib_does():
    text = "Füße 漢字 \U0001f600 def f(x): return x"
    expected = [zlib.crc32(text[begin : begin + 5].encode("utf-32-le")) for begin in range(len(text) - 4)]
    assert make_ngrams.crc32_of_ngrams(text).tolist() == expected
    assert make_ngrams.crc32_of_ngrams("four").tolist() == []


def test_a_line_has_each_feature_once_and_length_one():
    matrix, labels = load_svmlight_file(io.BytesIO(make_ngrams.line(-1, "abcdefabcdef", 1_000)[0].encode()))
    assert labels.tolist() == [-1] and matrix.nnz == 6  # the remaining features are repetitions
    np.testing.assert_allclose(matrix.power(2).sum(), 1, rtol=1e-4)


def test_ngrams_written_twice_are_the_same_bytes_and_another_seed_gives_others(wide, tmp_path):
    again, other = tmp_path / "again", write(tmp_path / "other", 200_000, "--seed", "1")
    command = [sys.executable, "-m", "examples.make_ngrams", *ngrams(again, 200_000)]
    subprocess.run(command, cwd=launch.ROOT, env={**os.environ, "PYTHONHASHSEED": "1"}, check=True, timeout=120)
    for name in ("train.svm", "test.svm"):
        assert (wide / name).read_bytes() == (again / name).read_bytes() != (other / name).read_bytes()
    assert not list(again.glob(".*"))


@pytest.mark.parametrize(
    "name, test",
    [("a/test_b.py", True), ("tests/b.py", True), ("b_test.py", True), ("testing/b.py", False), ("contest.py", False)],
)
def test_the_label_says_whether_a_module_is_a_test(name, test):
    assert make_ngrams.is_test(PurePath(name)) == test


def test_noise_turns_over_its_share_of_labels(tmp_path):
    noisy, clean = (write(tmp_path / share, 10, "--noise", share) for share in ("0.05", "0"))
    turned = total = 0
    for name in ("train.svm", "test.svm"):
        (_, ours), (_, theirs) = (load_svmlight_file(folder / name, zero_based=False) for folder in (noisy, clean))
        turned, total = turned + (ours != theirs).sum(), total + len(ours)
    assert abs(turned - 0.05 * total) < 4 * (0.05 * 0.95 * total) ** 0.5 and turned > 0


# ---- reading ----


def test_each_line_is_read_once_whatever_the_shares(tmp_path):
    paths = [tmp_path / name for name in ("a", "b", "c")]
    lines = [f"{(-1) ** n} {n + 1}:{n + 0.5}" + " " * (200 if n == 3 else 0) for n in range(9)]
    paths[0].write_text("\n".join(lines[:5]))  # no newline at the end of the last line
    paths[1].write_text("")
    paths[2].write_text("# a comment\n\n" + "\n".join(lines[5:]) + "\n")
    whole = libsvm.read(paths)
    assert whole.matrix.shape == (9, 9) and whole.labels.tolist() == [1, -1] * 4 + [1]
    for size in range(1, 40):
        parts = [libsvm.read(paths, rank, size, features=9) for rank in range(size)]
        np.testing.assert_array_equal(np.concatenate([part.matrix.toarray() for part in parts]), whole.matrix.toarray())
        np.testing.assert_array_equal(np.concatenate([part.labels for part in parts]), whole.labels)


BAD = ["1 3:abc", "x 1:2", "1 5", "1 4:1 3:1", "1 3:1 3:1", "1 0:1", "1 -2:1", "1 3:nan", "1 3:inf", "2 1:1", "nan 1:1"]
BAD += ["1 99:1", "1 3:1 7:", "1 99999999999:1", "1:1 2:1"]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("size", [1, 3])
def test_a_bad_line_is_named_with_its_file(tmp_path, bad, size):
    path = tmp_path / "bad.svm"
    path.write_text("1 1:1\n-1 2:0.5\n\n" + f"{bad}\n" + "1 2:2\n" * 3)
    with pytest.raises(ValueError, match=r"bad\.svm, line 4: expected `label index:value \.\.\.`.*Correct or remove"):
        for rank in range(size):
            libsvm.read([path], rank, size, features=50)


# ---- parts ----


def test_lazy_shrinking_is_that_of_all_weights():
    drawing = np.random.default_rng(0)
    lazy, eager = ScaledVector(50), np.zeros(50)
    for _ in range(300):  # the scale falls below its limit several times
        where = np.sort(drawing.choice(50, 5, replace=False)).astype(np.int32)
        values = drawing.normal(size=5).astype(np.float32)
        for entries in (Entries(where, values), Entries(None, np.ones(50, np.float32))):
            lazy.shrink(0.8)
            lazy.subtract(entries, 0.1)
            eager[:-1] *= 0.8
            eager[slice(None) if entries.indices is None else where] -= 0.1 * entries.values.astype(np.float64)
    np.testing.assert_allclose(lazy.whole(), eager, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(lazy.at(np.arange(3)), lazy.whole()[:3])


def test_schedules():
    told = {name: [schedule(passes, 2.0) for passes in (0, 4)] for name, schedule in SCHEDULES.items()}
    assert told == {"constant": [1, 1], "inverse": [1, 1 / 9], "inverse-sqrt": [1, 1 / 3]}


@pytest.mark.parametrize(
    "words",
    [
        ["--method", "cd", "--batch-size", "5"],
        ["--coordinates", "5"],
        ["--passes", "0"],
        ["--asynchronous", "--method", "cd"],
        ["--asynchronous", "--exchange", "dense"],
        ["--density", "0.1"],
    ],
)
def test_options_that_do_not_fit_are_refused(words):
    with pytest.raises(SystemExit):
        linear.parse(["--train", "a", *words])


# ---- learning ----


def train(words, ranks=1):
    """The results of a run on threads."""
    options = linear.parse(words)
    if ranks == 1:
        return linear.train(options, LoneCommunicator())
    everyone = threads.run(ranks, 1, lambda grid: linear.train(options, grid.world))
    assert all(each == everyone[0] for each in everyone)
    return everyone[0]


def curve(figures, name="objective"):
    return [each[name] for each in figures["passes"]]


SGD = ["--passes", "3", "--schedule", "inverse-sqrt", "--l2", "1e-3"]


@pytest.fixture(scope="module")
def alone(wide):
    return train([*files(wide), *SGD, "--exchange", "dense", "--batch-size", "40"])


@pytest.mark.parametrize(
    "kind, ranks",
    [
        pytest.param(kind, ranks, marks=[] if ranks == 2 else pytest.mark.thorough)
        for kind in exchange.SUMS
        for ranks in (1, 2, 4)
        if (kind, ranks) != (exchange.AUTO, 4)  # its measurements are slow with more threads than cores
    ],
)
def test_losses_are_those_of_one_rank_for_every_exchange(wide, alone, kind, ranks):
    figures = train([*files(wide), *SGD, "--exchange", kind, "--batch-size", str(40 // ranks)], ranks)
    for name in ("objective", "loss", "test_loss"):
        np.testing.assert_allclose(curve(figures, name), curve(alone, name), rtol=0, atol=1e-6)
    assert curve(figures)[2] < curve(figures)[0] < np.log(2)
    assert figures["samples"] == alone["samples"] and figures["nonzeros"] == alone["nonzeros"]


@pytest.mark.parametrize("method, kind", [("sgd", "split_allgather"), ("sgd", "dense"), ("cd", "allgather")])
def test_ranks_may_be_without_samples_or_features(tmp_path, method, kind):
    path = tmp_path / "few.svm"
    path.write_text("1 1:1\n-1 2:1\n")
    words = ["--train", str(path), "--test", str(path), "--method", method, "--exchange", kind, "--passes", "20"]
    figures = train(words, ranks=4)
    assert curve(figures, "accuracy")[-1] == curve(figures, "test_accuracy")[-1] == 1
    assert curve(figures)[-1] < curve(figures)[0] < np.log(2)


@pytest.mark.thorough
@pytest.mark.parametrize("loss, theirs", [("logistic", "log_loss"), ("hinge", "hinge")])
def test_accuracy_is_that_of_scikit_learn_s_sgd(wide, loss, theirs):
    words = ["--loss", loss, "--l2", "1e-3", "--passes", "20", "--batch-size", "8", "--schedule", "inverse-sqrt"]
    figures = train([*files(wide), *words, "--exchange", "split_allgather", "--learning-rate", "4"])
    matrix, labels, test_matrix, test_labels = by_scikit_learn(wide)
    rival = SGDClassifier(loss=theirs, alpha=1e-3, max_iter=100, tol=None, random_state=0).fit(matrix, labels)
    accuracy = rival.score(test_matrix, test_labels)
    assert accuracy > 0.85 and abs(curve(figures, "test_accuracy")[-1] - accuracy) <= 0.01


CD = ["--method", "cd", "--l2", "1e-2", "--coordinates", "4"]


def optimum(folder, l2):
    """The minimum of the logistic-regression objective, by scikit-learn."""
    matrix, labels = by_scikit_learn(folder)[:2]
    best = LogisticRegression(C=1 / (l2 * len(labels)), tol=1e-10, max_iter=10_000).fit(matrix, labels)
    losses = np.logaddexp(0, -labels * best.decision_function(matrix))
    return losses.mean() + l2 / 2 * np.square(best.coef_).sum()


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:scipy.optimize")  # scikit-learn passes an option that SciPy has deprecated
@pytest.mark.parametrize("ranks", [1, 3])
def test_coordinate_descent_reaches_the_optimum(narrow, ranks):
    figures = train([*files(narrow), *CD, "--passes", "40"], ranks)
    least = optimum(narrow, 1e-2)
    assert least - 1e-9 < curve(figures)[-1] < least + 1e-6 < curve(figures)[0]
    assert all(np.diff(curve(figures)) < 1e-7)


def test_gathering_sparse_or_dense_gives_the_same_bits(narrow):
    sparse, dense = (
        train([*files(narrow), *CD, "--passes", "2", "--exchange", kind], 3) for kind in exchange.GATHERINGS
    )
    assert sparse["weights"] == dense["weights"] and curve(sparse) == curve(dense)


def test_coordinate_descent_refuses_a_loss_without_a_derivative(narrow):
    with pytest.raises(ValueError, match="logistic, squared-hinge"):
        train([*files(narrow), *CD, "--loss", "hinge"])


# ---- runs ----


def run(words):
    return launch.horovodrun(2, ["-m", "examples.linear", *words], limit=600)


@pytest.mark.thorough
def test_two_processes_learn_what_one_does(wide, alone, tmp_path):
    words = ["--exchange", "recursive_doubling", "--batch-size", "20", "--meet", "--json", str(tmp_path / "told.json")]
    ended = run([*files(wide), *SGD, *words])
    assert ended.status == 0, ended.output
    figures = json.loads((tmp_path / "told.json").read_text())
    np.testing.assert_allclose(curve(figures), curve(alone), rtol=0, atol=1e-6)
    assert 0 < figures["communication"] + figures["waiting"] < figures["seconds"] and figures["waiting"] > 0
    assert "| pass | objective | loss |" in ended.output and "2 ranks, recursive_doubling:" in ended.output


@pytest.mark.thorough
def test_two_processes_end_with_the_bad_line_of_one(tmp_path):
    path = tmp_path / "bad.svm"
    path.write_text("1 1:1\n" * 50 + "1 1;1\n")  # the second rank reads it
    ended = run(["--train", str(path)])
    assert ended.status != 0 and f"ValueError: {path}, line 51: expected" in ended.output


@pytest.mark.thorough
def test_asynchronous_processes_learn_as_synchronous_ones_do(wide, alone, tmp_path):
    """Twice the steps per pass, each on half of the samples, with weights that may be a step old."""
    words = ["--asynchronous", "--density", "0.05", "--batch-size", "20", "--json", str(tmp_path / "told.json")]
    ended = run([*files(wide), *SGD, *words])
    assert ended.status == 0, ended.output
    figures = json.loads((tmp_path / "told.json").read_text())
    assert curve(figures)[-1] < curve(alone)[-1] + 0.01
    assert "2 ranks, servers:" in ended.output and 0 < figures["entries"] < 0.3 * figures["features"]
