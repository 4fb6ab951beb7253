"""Bugs in importing hvd_sparse where Horovod is missing, or hidden by a folder of its name."""

import shutil

import pytest

from tests.faults import environments

HOW = "build_wheel.sh"


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    return environments.without("horovod", tmp_path_factory.mktemp("environment") / "packages")


def imported(packages, module="hvd_sparse"):
    done = environments.python(["-c", f"import {module}"], packages)
    return done.returncode, done.stderr.strip().splitlines()


def test_the_error_says_how_to_get_horovod(packages):
    status, lines = imported(packages)
    assert status == 1 and lines[-1].startswith("ModuleNotFoundError: hvd_sparse needs horovod") and HOW in lines[-1]


def test_the_error_names_the_folder_that_is_found_instead(packages):
    hiding = packages.parent / "horovod"
    hiding.mkdir()
    (hiding / "__init__.py").touch()
    try:
        status, lines = imported(packages)
    finally:
        shutil.rmtree(hiding)
    assert status == 1 and str(hiding) in lines[-1]


def test_control_what_needs_no_horovod_is_imported(packages):
    assert imported(packages, "datacache") == (0, [])
