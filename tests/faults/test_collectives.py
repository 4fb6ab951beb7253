"""Collectives of what users have at hand, and the start of Horovod where users start it."""

import subprocess
import sys
import textwrap

import pytest

from tests.faults import ranks
from tests.parallel.launch import ROOT


@pytest.fixture(scope="module")
def launched():
    return ranks.Launched("actors_collectives", count=2)


@pytest.fixture(scope="module")
def starting():
    # The proxy that is asked at the old commit never answers: a launch that hangs there has failed as well.
    return ranks.Launched("actors_starting", count=2, limit=120.0, environment={ranks.STARTED: "0"})


@pytest.mark.parametrize("name", ranks.names("actors_collectives"))
def test_collectives(name, launched):
    launched.require(name)


@pytest.mark.parametrize("name", ranks.names("actors_starting"))
def test_the_start(name, starting):
    starting.require(name)


ALONE = {
    "broadcast": """
        hvd.init()
        model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
        hvd.broadcast_variables(model.variables, root_rank=0)
    """,
    "allreduce": """
        hvd.init()
        assert float(hvd.allreduce(2.5)) == 2.5
    """,
    "init": """
        with tf.Graph().as_default():
            hvd.init()
        assert hvd.size() == 1
    """,
}


@pytest.mark.parametrize("name", ALONE)
def test_one_rank_without_a_launcher(name):
    imports = "import keras\nimport tensorflow as tf\nimport hvd_sparse as hvd\n"
    script = imports + textwrap.dedent(ALONE[name])
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
