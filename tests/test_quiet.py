"""Our commands print only their own lines; programs that import our packages see all that TensorFlow prints."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quiet_tensorflow import ABOUT_ITSELF, LEVEL, NOT_NEEDED

ROOT = Path(__file__).resolve().parents[1]
SIMULATE = ["--simulate", "nodes=2", "local=2", "inter=1Gbit", "intra=10Gbit", "model=resnet50"]
TOLD = "oneDNN custom operations are on"
AS_A_LIBRARY = "import hvd_sparse, os; assert os.environ.get('TF_CPP_MIN_LOG_LEVEL') is None"
OURS = "from quiet_tensorflow import quiet; quiet(); "


def run(command, **settings):
    """What Python prints on standard error with only these settings."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env={**plain, **settings}, capture_output=True, text=True
    )
    return done.returncode, done.stderr


def test_a_command_of_the_package_prints_its_own_lines_alone():
    assert run(["-m", "hvd_sparse.planner", *SIMULATE]) == (0, "")


@pytest.mark.thorough
def test_a_library_hides_nothing():
    """Both print the line or neither does: TensorFlow prints none on processors without oneDNN's instructions."""
    alone = run(["-c", "import tensorflow"])[1]
    status, text = run(["-c", AS_A_LIBRARY])
    assert status == 0 and (TOLD in text) == (TOLD in alone)


@pytest.mark.thorough
def test_a_level_of_ones_own_wins():
    alone = run(["-c", "import tensorflow"], **{LEVEL: "0"})[1]
    text = run(["-c", f"{OURS}import os, tensorflow; assert os.environ['{LEVEL}'] == '0'"], **{LEVEL: "0"})[1]
    assert (TOLD in text) == (TOLD in alone)


IMPORTED = """
import sys
import tensorflow as tf
assert type(tf.__spec__.loader).__name__ == "_Quietly" and tf.__file__.endswith("__init__.py")
print("after", file=sys.stderr)
"""
FAKE = """
import os, sys
os.write(2, b"I0000 port.cc:153] {line}.\\nkept, by C++\\n")
print("kept, by Python", file=sys.stderr)
{end}
"""


@pytest.mark.parametrize("line", ABOUT_ITSELF)
@pytest.mark.parametrize("end, status", [("", 0), ("raise ImportError('broken')", 1), ("os.abort()", -6)])
def test_all_other_lines_are_shown_whatever_becomes_of_the_import(tmp_path, line, end, status):
    (tmp_path / "tensorflow.py").write_text(FAKE.format(line=line, end=end))
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    left, text = run(["-c", f"{OURS}import tensorflow"], PYTHONPATH=path)
    assert left == status
    assert text.startswith("kept, by C++\nkept, by Python\n") and line not in text
    assert ("ImportError: broken" in text) == (status == 1)


SEEN = """
import gc, importlib
collects = gc.isenabled()
try:
    found = importlib.import_module("sklearn") and importlib.import_module("matplotlib")
except ImportError:
    found = None
"""
AFTER = "import gc, sklearn, matplotlib; assert gc.isenabled() and gc.get_freeze_count()"


@pytest.mark.parametrize("first", ["tensorflow", "keras"])
@pytest.mark.parametrize("call, level", [("quiet()", "0"), ("quiet()", "2"), ("hasten()", "2")])
def test_what_no_command_needs_is_left_out_and_can_be_imported_later(tmp_path, first, call, level):
    (tmp_path / f"{first}.py").write_text(SEEN)
    for each in NOT_NEEDED:
        (tmp_path / f"{each}.py").touch()
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    hurried = f"from quiet_tensorflow import *; {call}; import {first} as tf; assert not tf.found and not tf.collects"
    assert run(["-c", f"{hurried}; {AFTER}"], PYTHONPATH=path, **{LEVEL: level})[0] == 0
    assert run(["-c", f"import {first} as tf; assert tf.found and tf.collects"], PYTHONPATH=path)[0] == 0


@pytest.mark.thorough
def test_what_is_printed_after_the_import_is_shown():
    status, text = run(["-c", f"{OURS}{IMPORTED}"])
    assert (status, text) == (0, "after\n")
