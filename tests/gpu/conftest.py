"""The selections under test: emulated on the CPU, and on a GPU if there is one."""

import pytest

from tests.gpu import library

LITTLE_SLACK = 256


def pytest_configure(config):
    """Registers the tier's marker; with --confcutdir=tests/gpu, the other conftest.py is not read."""
    config.addinivalue_line("markers", "thorough: not in `make test`, but in `make test-rest`")


@pytest.fixture(scope="session")
def emulated(tmp_path_factory):
    return library.emulated(tmp_path_factory.mktemp("native"), LITTLE_SLACK)


@pytest.fixture(scope="session")
def gpu(tmp_path_factory):
    reason = library.missing_gpu()
    if reason:
        pytest.skip(f"the kernels cannot run on a GPU: {reason}")
    return library.on_gpu(tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="session", params=["emulated", "gpu"])
def selection(request):
    return request.getfixturevalue(request.param)
