"""Bugs in starting one process on a machine with GPUs: scripts select their GPU after `hvd.init`, as Horovod's do."""

import subprocess
import sys

import pytest

CONFIGURE = "tf.config.threading.set_inter_op_parallelism_threads(7)"  # an error once TensorFlow is initialised
REFUSED = "cannot be modified after initialization"
BEGIN = "import tensorflow as tf\nimport hvd_sparse as hvd\n"


def run(program):
    done = subprocess.run([sys.executable, "-c", BEGIN + program], capture_output=True, text=True)
    return done.returncode, done.stderr


@pytest.mark.parametrize("start", ["hvd.init()", "hvd.init(local_size=1)\nhvd.shutdown()\nhvd.init()"])
def test_tensorflow_may_be_configured_after_init(start):
    status, told = run(f"{start}\n{CONFIGURE}")
    assert status == 0, told


def test_control_tensorflow_may_not_be_configured_after_an_operation():
    status, told = run(f"hvd.init()\ntf.constant(0)\n{CONFIGURE}")
    assert status == 1 and REFUSED in told
