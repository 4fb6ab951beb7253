"""What the package tells goes through the logger "hvd_sparse", which prints by default and is the user's to change."""

import os
import subprocess
import sys

import pytest

from tests.parallel.launch import QUIET

ON_ONE_NODE = """
import hvd_sparse as hvd, keras
hvd.init()
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), aggregator=hvd.recipes.hitopk(0.01))
optimizer.apply([keras.ops.ones(8)], [keras.Variable(keras.ops.ones(8))])
"""


def _printed(before):
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": os.environ["PYTHONPATH"], **QUIET}
    command = [sys.executable, "-W", "ignore", "-c", before + ON_ONE_NODE]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return ran.stdout, ran.stderr


@pytest.mark.parametrize(
    "before, told",
    [
        ("", "hvd_sparse: all ranks are on one node"),
        ("import logging; logging.getLogger('hvd_sparse').setLevel('WARNING')", ""),
        ("import logging; logging.basicConfig()", "hvd_sparse: all ranks are on one node"),  # and is not printed twice
    ],
)
def test_news_is_printed_once_by_default(before, told):
    out, error = _printed(before)
    assert out.startswith(told) and out.count("\n") == (told != "")
    assert "hvd_sparse" not in error


def test_a_handler_of_the_scripts_gets_it_instead():
    before = "import logging, sys; logging.getLogger('hvd_sparse').addHandler(logging.StreamHandler(sys.stderr))"
    out, error = _printed(before)
    assert out == "" and "all ranks are on one node" in error and "hvd_sparse:" not in error
