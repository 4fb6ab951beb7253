import keras
import pytest

import hvd_sparse as hvd


@pytest.fixture(autouse=True)
def fresh():
    """Sets one rank, a node of its own that is to select, and a fixed seed; removes the dtype policy of other tests."""
    hvd.init(local_size=1)
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("float32")
    yield
    keras.config.set_dtype_policy("float32")
