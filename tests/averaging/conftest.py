from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.averaging.group import Ranks
from tests.keras.conftest import fresh  # noqa: F401 - for all tests here


@pytest.fixture
def ranks() -> Iterator[Callable[..., Ranks]]:
    """Makes ranks that communicate through a relay, and closes them."""
    made: list[Ranks] = []

    def make(*arguments, **settings) -> Ranks:
        made.append(Ranks(*arguments, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()
