"""Each of examples/from_horovod on two ranks; they share one launch, as that is most of the cost of a short run."""

from __future__ import annotations

import re

import pytest

from tests.examples.horovod_ranks import RUNS
from tests.parallel import launch

pytestmark = pytest.mark.thorough

LEAST = 0.3  # accuracy after a few dozen steps; chance is a tenth
UNJUDGED = ("keras_imagenet_resnet50", "tensorflow2_keras_mnist_restart")  # their steps are too few to learn


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    """The output of both ranks."""
    folder = tmp_path_factory.mktemp("examples")
    ended = launch.horovodrun(2, ["-m", "tests.examples.horovod_ranks", str(folder)], limit=1200)
    assert ended.status == 0, ended.output[-4000:]
    return ended.output, folder


@pytest.mark.parametrize("name", RUNS)
def test_an_example_runs(name, output):
    text, folder = output
    for rank in (0, 1):
        printed = "\n".join(re.findall(rf"^\[{rank}\]<stdout>: ?(.*)$", text, flags=re.MULTILINE))
        own = re.search(rf"^began {name}\n(.*?)^(ended|failed) {name}$(.*?)(?=^began|\Z)", printed, re.DOTALL | re.M)
        assert own and own[2] == "ended", own[3] if own else printed[-2000:]
        if rank == 0:
            _check(name, own[1], folder / name)


def _check(name, printed, folder):
    if "benchmark" in name:
        assert re.search(r"all 2 ranks: \d+\.\d \+- \d+\.\d images/s", printed), printed
        return
    accuracy = re.search(r"test accuracy (\d\.\d+)", printed)
    assert accuracy, printed
    if name not in UNJUDGED:
        assert float(accuracy[1]) > LEAST, printed
    if name in ("keras_mnist", "keras_mnist_advanced", "tensorflow2_mnist"):
        assert list(folder.glob("checkpoint*")), "rank 0 wrote no checkpoint"


def test_a_job_goes_on_where_it_stopped(output):
    assert re.search(r"2 ranks trained epochs \[1, 2\]", output[0])
    assert re.search(r"2 ranks trained epochs \[3\]", output[0])
