import keras
import pytest

import hvd_sparse as hvd


@pytest.fixture(autouse=True)
def fresh():
    """One rank, a fixed seed and no policy left from another test."""
    hvd.init()
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("float32")
    yield
    keras.config.set_dtype_policy("float32")
