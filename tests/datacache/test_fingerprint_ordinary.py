"""Ordinary decode functions have a fingerprint, the same in every process, before and after they are used."""

import json
import os
import subprocess
import sys

import pytest

from datacache import fingerprint
from tests.datacache.decoders import DECODERS


@pytest.fixture(scope="module")
def printed():
    """The fingerprints in three processes, with different seeds of Python's hashes."""
    found = []
    for seed in ("0", "1", "2"):
        environment = {**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path)), "PYTHONHASHSEED": seed}
        command = [sys.executable, "-m", "tests.datacache.decoders"]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        found.append(json.loads(ended.stdout.splitlines()[-1]))
    return found


@pytest.mark.parametrize("name", DECODERS)
def test_every_process_finds_the_same_before_and_after_use(name, printed):
    found = {each[when][name] for each in printed for when in ("before", "after")}
    assert len(found) == 1, printed


def test_all_are_different():
    assert len(DECODERS) >= 30
    assert len({fingerprint.of(decode) for decode, _ in DECODERS.values()}) == len(DECODERS)
