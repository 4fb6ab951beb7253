"""A stage that gets invalid messages names the sender and continues: a short run of `python -m tests.pipeline.fuzz`."""

from __future__ import annotations

import random

import pytest

from tests.pipeline.fuzz import After, Before


@pytest.mark.parametrize("neighbour", [Before, After])
@pytest.mark.parametrize("count", [100, pytest.param(1_000, marks=pytest.mark.thorough)])
def test_what_is_not_right_is_told_of_its_sender(neighbour, count):
    played = neighbour(random.Random(count))
    played.play(count)
    assert count // 10 < played.counts["accepted"] < count // 2
    assert sum(played.counts.values()) == count
