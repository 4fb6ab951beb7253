"""Settings for all tests: quiet TensorFlow on few threads, nothing kept of what other runs have measured, and examples
by hypothesis that are the same on each run.
"""

import atexit
import os
import shutil
import tempfile

from tests.parallel.launch import QUIET

os.environ.update(QUIET)
os.environ["HVD_SPARSE_CACHE"] = tempfile.mkdtemp(prefix="hvd_sparse_tests")
atexit.register(shutil.rmtree, os.environ["HVD_SPARSE_CACHE"], ignore_errors=True)

import hypothesis  # noqa: E402 - TensorFlow reads the environment when it is first imported

hypothesis.settings.register_profile("suite", deadline=None, derandomize=True, max_examples=60, database=None)
hypothesis.settings.register_profile("search", deadline=None, max_examples=2000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))
