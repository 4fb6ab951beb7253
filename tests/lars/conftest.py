import keras
import pytest


@pytest.fixture(autouse=True)
def fresh():
    """Sets a fixed seed and removes the dtype policy of other tests."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("float32")
    yield
    keras.config.set_dtype_policy("float32")
