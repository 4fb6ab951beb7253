"""The example scripts, run as a user runs them."""

import re

import pytest

from tests.parallel import launch

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize(
    "script, epochs", [("keras_digits", 6), ("lossy_digits", 6), ("split_digits", 3), ("tape_digits", 6)]
)
def test_a_script_trains_on_two_ranks(script, epochs):
    ended = launch.horovodrun(2, ["-m", f"examples.{script}", "--epochs", str(epochs)], limit=600)
    assert ended.status == 0, ended.output
    accuracy = re.search(r"test accuracy (\d\.\d+)", ended.output)
    assert accuracy and float(accuracy[1]) > 0.8, ended.output
