from tests.keras.conftest import fresh  # noqa: F401 - for all tests here
